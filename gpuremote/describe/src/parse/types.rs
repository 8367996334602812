//! Types of arguments.

use crate::api::{Api, ForeignHandle, Length, Objects, Scalars, Type};

pub(super) fn read_type(api: &Api, text: &str) -> Result<Type, String> {
    let is_handle = |name: &str| api.handles.iter().any(|(handle, _)| handle == name);
    let handle = |name: &str| {
        if !is_handle(name) || api.object(name).is_some() {
            return Err(format!("{name} is no handle"));
        }
        Ok(name.to_owned())
    };
    let object = |name: &str| api.object(name).cloned().ok_or(format!("{name} is no object"));
    let Some((word, what)) = text.split_once(' ') else {
        return match text {
            "str" => Ok(Type::Text),
            "null" => Ok(Type::Null),
            "info" => Ok(Type::Info),
            _ if text.contains('.') => read_foreign(api, text),
            _ => match api.object(text) {
                Some(object) => Ok(Type::Object(object.clone())),
                None if is_handle(text) => Ok(Type::Handle(text.to_owned())),
                None => Ok(Type::Scalar(number(text)?)),
            },
        };
    };
    match word {
        "new" => Ok(Type::New(handle(what)?)),
        "found" => Ok(Type::Found(handle(what)?)),
        "free" => Ok(Type::Free(handle(what)?)),
        "in" => {
            let (name, length) = read_array(what)?;
            match api.object(name).cloned() {
                Some(object) => Ok(Type::Objects(Objects { kind: object.kind, length, wrong: object.wrong, required: true })),
                None if is_handle(name) => Ok(Type::InHandles(name.to_owned(), length)),
                None => Ok(Type::In(number(name)?, length)),
            }
        }
        "out" => {
            let (name, length) = read_array(what)?;
            Ok(Type::Out(number(name)?, length))
        }
        "scalar" => read_scalars(what, true, false),
        "result" => read_scalars(what, false, true),
        "inout" => read_scalars(what, true, true),
        "maybe" => Ok(Type::Maybe(object(what)?)),
        "want" => Ok(Type::Want(object(what)?.kind)),
        "list" => {
            let (what, status) = what.rsplit_once(' ').ok_or("write: list KIND[n] STATUS")?;
            let (name, length) = read_array(what)?;
            let wrong = status.parse().map_err(|_| format!("{status} is no status"))?;
            Ok(Type::Objects(Objects { kind: object(name)?.kind, length, wrong, required: false }))
        }
        _ => Err(format!("\"{text}\" is no type")),
    }
}

fn read_foreign(api: &Api, text: &str) -> Result<Type, String> {
    let (of, name) = text.split_once('.').ok_or("write: API.HANDLE")?;
    let other = api.others.iter().find(|other| other.name == of).ok_or(format!("write \"use {of}\" first"))?;
    let kind = other.handles.iter().position(|(handle, _)| handle == name).ok_or(format!("{text} is no handle"))?;
    Ok(Type::Foreign(ForeignHandle { api: of.to_owned(), name: name.to_owned(), kind, first: other.handles[kind].1 }))
}

fn read_scalars(text: &str, read: bool, written: bool) -> Result<Type, String> {
    let (what, handle) = match text.split_once(" of ") {
        Some((what, handle)) => (what.trim(), Some(handle.trim().to_owned())),
        None => (text.trim(), None),
    };
    let bytes = if what.ends_with(')') {
        what.to_owned()
    } else {
        let (name, length) = read_array(what)?;
        let Length::Fixed(count) = length else { return Err(format!("{what} has no fixed length")) };
        (number_bytes(name).ok_or(format!("{name} is no number"))? * count).to_string()
    };
    Ok(Type::Scalars(Scalars { read, written, bytes, handle }))
}

fn read_array(text: &str) -> Result<(&str, Length), String> {
    let Some((name, length)) = text.split_once('[') else { return Ok((text, Length::Fixed(1))) };
    let length = length.strip_suffix(']').ok_or("a length has no end")?.trim();
    let length = match length.parse() {
        Ok(count) => Length::Fixed(count),
        Err(_) => match length.split_once(" * ") {
            Some((times, name)) => Length::Argument(times.parse().map_err(|_| format!("{times} is no number"))?, name.to_owned()),
            None => Length::Argument(1, length.to_owned()),
        },
    };
    Ok((name.trim(), length))
}

fn number(name: &str) -> Result<String, String> {
    match number_bytes(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err(format!("{name} is neither a number nor a handle")),
    }
}

/// How many bytes a number of this type takes. None where the type is none of numbers.
fn number_bytes(name: &str) -> Option<usize> {
    match name {
        "u8" | "i8" => Some(1),
        "u16" | "i16" => Some(2),
        "u32" | "i32" | "f32" => Some(4),
        "u64" | "i64" | "f64" | "usize" => Some(8),
        _ => None,
    }
}
