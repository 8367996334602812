//! Arguments on their way to the server, and values on their way back.

use std::fmt::Write;

use super::signature::failure;
use crate::api::{Function, Length, Object, Objects, Scalars, Type};

/// What is wrong whatever the server says is told at once.
pub(super) fn checks(code: &mut String, function: &Function) {
    let invalid = failure(function, "STATUSES.invalid");
    let no_handle = failure(function, "STATUSES.handle");
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::Handle(kind) | Type::Free(kind) => {
                writeln!(code, "    if !front.is(kinds::{kind}, {name}) {{ return {no_handle}; }}")
            }
            Type::Foreign(handle) => writeln!(
                code,
                "    if !front.is(gpuremote_client::HandleKind {{ number: {}, first: {} }}, {name}) {{ return {no_handle}; }}",
                handle.kind, handle.first
            ),
            Type::New(_) | Type::Found(_) | Type::Text => writeln!(code, "    if {name}.is_null() {{ return {invalid}; }}"),
            Type::Null => {
                let refusal = failure(function, &format!("front.refuse(\"{} with {name}\")", function.name));
                writeln!(code, "    if !{name}.is_null() {{ return {refusal}; }}")
            }
            Type::Object(Object { kind, wrong }) => {
                let wrong = failure(function, &wrong.to_string());
                writeln!(code, "    let Some({name}_object) = crate::object(kinds::{kind}, {name}) else {{ return {wrong} }};")
            }
            Type::Maybe(Object { kind, wrong }) => {
                let wrong = failure(function, &wrong.to_string());
                writeln!(
                    code,
                    "    let {name}_object = crate::object(kinds::{kind}, {name});\n    if {name}_object.is_none() && !{name}.is_null() {{ return {wrong} }}"
                )
            }
            Type::Objects(Objects { kind, length, wrong, required }) => {
                let length = count(length);
                let wrong = failure(function, &wrong.to_string());
                if *required {
                    let _ = writeln!(code, "    if {name}.is_null() || {length} == 0 {{ return {invalid} }}");
                }
                writeln!(code, "    let Some({name}_objects) = crate::objects(kinds::{kind}, {name}, {length}) else {{ return {wrong} }};")
            }
            _ => Ok(()),
        };
    }
}

/// Numbers and handles come first, so that the server knows all lengths before it reads arrays.
pub(super) fn encode(code: &mut String, function: &Function) {
    if function.returns.is_some() {
        code.push_str("        encoder.u64(minted);\n");
    }
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::Scalar(scalar) => writeln!(code, "        encoder.{scalar}({name});"),
            Type::Handle(_) | Type::Free(_) | Type::Foreign(_) => writeln!(code, "        encoder.u64({name});"),
            Type::New(_) | Type::Want(_) => writeln!(code, "        encoder.u64(minted_{name});"),
            Type::Object(_) => writeln!(code, "        encoder.u64({name}_object.number);"),
            Type::Maybe(_) => writeln!(code, "        encoder.u64({name}_object.as_ref().map_or(0, |object| object.number));"),
            Type::Out(..) => writeln!(code, "        encoder.u8(u8::from(!{name}.is_null()));"),
            _ => Ok(()),
        };
    }
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::In(scalar, length) => encode_array(code, name, length, scalar),
            Type::InHandles(_, length) => encode_array(code, name, length, "u64"),
            Type::Objects(_) => writeln!(
                code,
                "        encoder.u8(u8::from(!{name}_objects.is_empty()));\n        for object in &{name}_objects {{ encoder.u64(object.number); }}"
            ),
            Type::Scalars(scalars) => encode_scalars(code, name, scalars),
            Type::Text => writeln!(code, "        encoder.bytes_counted(std::ffi::CStr::from_ptr({name}).to_bytes());"),
            _ => Ok(()),
        };
    }
}

fn encode_array(code: &mut String, name: &str, length: &Length, scalar: &str) -> std::fmt::Result {
    writeln!(
        code,
        "        encoder.u8(u8::from(!{name}.is_null()));\n        if !{name}.is_null() {{ for i in 0..{} {{ encoder.{scalar}(*{name}.add(i)); }} }}",
        count(length)
    )
}

/// A first byte says what follows: nothing as the pointer is null, host memory, or an address on the GPU.
fn encode_scalars(code: &mut String, name: &str, scalars: &Scalars) -> std::fmt::Result {
    let device = match &scalars.handle {
        Some(handle) => format!("crate::by_hand::in_device_mode({handle})"),
        None => "false".to_owned(),
    };
    let host = if scalars.read {
        format!("encoder.bytes_counted(std::slice::from_raw_parts({name}.cast_const(), {}));", by_hand(&scalars.bytes))
    } else {
        format!("encoder.u32({} as u32);", by_hand(&scalars.bytes))
    };
    let host = if scalars.written { host } else { host.replace(".cast_const()", "") };
    writeln!(
        code,
        "        if {name}.is_null() {{ encoder.u8(0); }} else if {device} {{ encoder.u8(2); encoder.u64({name} as u64); }} else {{ encoder.u8(1); {host} }}"
    )
}

/// A number of bytes, or the call of a function by hand.
fn by_hand(bytes: &str) -> String {
    if bytes.ends_with(')') {
        format!("crate::by_hand::{bytes}")
    } else {
        bytes.to_owned()
    }
}

/// The values of a reply, after success.
pub(super) fn decode(code: &mut String, function: &Function) {
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::Out(scalar, length) => {
                writeln!(
                    code,
                    "        if !{name}.is_null() {{ for i in 0..{} {{ *{name}.add(i) = decoder.{scalar}()?; }} }}",
                    count(length)
                )
            }
            Type::Found(_) => writeln!(code, "        *{name} = decoder.u64()?;"),
            Type::Info => {
                writeln!(code, "        answered_{name} = crate::answer(decoder.bytes_counted()?, {name}_size, {name}, {name}_size_ret);")
            }
            Type::Scalars(Scalars { written: true, bytes, handle, .. }) => {
                let host = handle.as_ref().map_or(String::new(), |handle| format!(" && !crate::by_hand::in_device_mode({handle})"));
                let bytes = by_hand(bytes);
                writeln!(code, "        if !{name}.is_null(){host} {{ let bytes = {bytes}; std::ptr::copy_nonoverlapping(decoder.take(bytes)?.as_ptr(), {name}, bytes); }}")
            }
            _ => Ok(()),
        };
    }
}

/// How many values an array has.
fn count(length: &Length) -> String {
    match length {
        Length::Fixed(count) => count.to_string(),
        Length::Argument(1, name) => format!("usize::try_from({name}).unwrap_or(0)"),
        Length::Argument(times, name) => format!("{times} * usize::try_from({name}).unwrap_or(0)"),
    }
}
