//! What runs one function: it decodes, looks objects up, calls, and encodes.

use std::fmt::Write;

use crate::api::{Api, Function, Length, Object, Objects, Scalars, Type, Way};

pub(super) fn arm(code: &mut String, api: &Api, function: &Function, number: usize) {
    let _ = writeln!(code, "        {number} => {{");
    decode_numbers(code, function);
    decode_arrays(code, api, function);
    code.push_str("            decoder.finish()?;\n");
    look_up(code, api, function);
    let _ = writeln!(
        code,
        "            let Some(run) = server.functions.{} else {{ return Ok(Outcome::Status({})) }};",
        function.name, api.statuses.unsupported,
    );
    run(code, api, function);
    encode(code, api, function);
    code.push_str("            status\n        }\n");
}

/// Numbers and handles come first, so that all lengths are known before arrays are read.
fn decode_numbers(code: &mut String, function: &Function) {
    if function.returns.is_some() {
        code.push_str("            let new_number = decoder.u64()?;\n");
    }
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::Scalar(scalar) => writeln!(code, "            let {name} = decoder.{scalar}()?;"),
            Type::Handle(_) | Type::Free(_) | Type::New(_) | Type::Foreign(_) | Type::Object(_) | Type::Maybe(_) | Type::Want(_) => {
                writeln!(code, "            let {name}_number = decoder.u64()?;")
            }
            Type::Out(..) => writeln!(code, "            let wants_{name} = decoder.u8()? != 0;"),
            _ => Ok(()),
        };
    }
}

fn decode_arrays(code: &mut String, api: &Api, function: &Function) {
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::In(scalar, length) => writeln!(
                code,
                "            let {name}_values = super::array(decoder, {}, size_of::<{scalar}>(), |d| d.{scalar}())?;\n            let {name} = {name}_values.as_ref().map_or(std::ptr::null(), |v| v.as_ptr());",
                count(length)
            ),
            Type::InHandles(kind, length) => decode_handles(code, name, kind, length, api.statuses.handle),
            Type::Objects(Objects { kind, length, wrong, .. }) => decode_handles(code, name, kind, length, *wrong),
            Type::Scalars(Scalars { read, .. }) => writeln!(
                code,
                "            let mut {name}_scalars = crate::library::Scalars::take(decoder, {read})?;\n            let {name} = {name}_scalars.pointer();"
            ),
            Type::Text => writeln!(
                code,
                "            let {name}_text = super::text(decoder)?;\n            let {name} = {name}_text.as_ptr();"
            ),
            Type::Null => writeln!(code, "            let {name} = std::ptr::null();"),
            Type::Out(scalar, length) => writeln!(
                code,
                "            let mut {name}_values = vec![{scalar}::default(); super::bounded(if wants_{name} {{ {} }} else {{ 0 }}, size_of::<{scalar}>())?];\n            let {name} = if wants_{name} {{ {name}_values.as_mut_ptr() }} else {{ std::ptr::null_mut() }};",
                count(length)
            ),
            _ => Ok(()),
        };
    }
}

/// An array of handles; `wrong` is the status where a number stands for none.
fn decode_handles(code: &mut String, name: &str, kind: &str, length: &Length, wrong: i32) -> std::fmt::Result {
    writeln!(
        code,
        "            let Some({name}_values) = super::handle_array(decoder, {}, &server.handles, kinds::{kind})? else {{ return Ok(Outcome::Status({wrong})) }};\n            let {name} = {name}_values.as_ref().map_or(std::ptr::null(), |v| v.as_ptr());",
        count(length)
    )
}

/// What numbers stand for. A number that ends by the call stands for nothing from here on.
fn look_up(code: &mut String, api: &Api, function: &Function) {
    for argument in &function.arguments {
        let name = &argument.name;
        let (place, wrong) = match &argument.r#type {
            Type::Handle(kind) => (format!("server.handles.get(kinds::{kind}, {name}_number)"), api.statuses.handle),
            Type::Free(kind) => (format!("server.handles.take(kinds::{kind}, {name}_number)"), api.statuses.handle),
            Type::Foreign(handle) => {
                let table = format!("server.{}.handles()", handle.api);
                (format!("{table}.get(crate::{}::kinds::{}, {name}_number)", handle.api, handle.name), api.statuses.handle)
            }
            Type::Object(Object { kind, wrong }) => {
                let ends = if function.way == Way::Release { "take" } else { "get" };
                (format!("server.handles.{ends}(kinds::{kind}, {name}_number)"), *wrong)
            }
            Type::Maybe(Object { kind, wrong }) => {
                let _ = writeln!(
                    code,
                    "            let {name} = if {name}_number == 0 {{ Some(std::ptr::null_mut()) }} else {{ server.handles.get(kinds::{kind}, {name}_number) }};"
                );
                (name.clone(), *wrong)
            }
            Type::New(_) | Type::Found(_) => {
                let _ =
                    writeln!(code, "            let mut new_{name} = std::ptr::null_mut();\n            let {name} = &raw mut new_{name};");
                continue;
            }
            Type::Want(_) => {
                let _ = writeln!(
                    code,
                    "            let mut new_{name} = std::ptr::null_mut();\n            let {name} = if {name}_number == 0 {{ std::ptr::null_mut() }} else {{ &raw mut new_{name} }};"
                );
                continue;
            }
            _ => continue,
        };
        let _ = writeln!(code, "            let Some({name}) = {place} else {{ return Ok(Outcome::Status({wrong})) }};");
    }
}

/// The call itself.
fn run(code: &mut String, api: &Api, function: &Function) {
    let list = |info: &str| {
        let names = function.arguments.iter().map(|a| if a.r#type == Type::Info { info } else { a.name.as_str() });
        names.collect::<Vec<_>>().join(", ")
    };
    let Some(kind) = &function.returns else {
        if function.arguments.iter().all(|a| a.r#type != Type::Info) {
            let _ = writeln!(code, "            let status = run({});", list(""));
            return;
        }
        // The length first, then as many bytes.
        let _ = writeln!(
            code,
            "            let mut info_bytes = 0;\n            let mut status = run({});\n            if status == {ok} {{\n                let mut info = vec![0u8; super::bounded(info_bytes, 1)?];\n                status = run({});\n                if status == {ok} {{ encoder.bytes_counted(&info); }}\n            }}",
            list("0, std::ptr::null_mut(), &raw mut info_bytes"),
            list("info.len(), info.as_mut_ptr(), std::ptr::null_mut()"),
            ok = api.statuses.ok
        );
        return;
    };
    let _ = writeln!(
        code,
        "            let mut status = {ok};\n            let new = run({}, &raw mut status);\n            if status == {ok} {{ server.handles.put(kinds::{kind}, new_number, new)?; }}",
        list(""),
        ok = api.statuses.ok
    );
}

/// Gives new objects their numbers, and appends what the library has written.
fn encode(code: &mut String, api: &Api, function: &Function) {
    let ok = api.statuses.ok;
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::New(kind) => {
                writeln!(code, "            if status == {ok} {{ server.handles.put(kinds::{kind}, {name}_number, new_{name})?; }}")
            }
            Type::Found(kind) => writeln!(
                code,
                "            encoder.u64(if status == {ok} {{ server.handles.number(kinds::{kind}, new_{name})? }} else {{ 0 }});"
            ),
            Type::Want(kind) => wanted(code, ok, function, name, kind),
            Type::Scalars(Scalars { written: true, .. }) => writeln!(code, "            {name}_scalars.put(encoder);"),
            Type::Out(scalar, _) => writeln!(code, "            for value in {name}_values {{ encoder.{scalar}(value); }}"),
            _ => Ok(()),
        };
    }
}

/// A new object that the client may want. Without a reply it believes that it has one, so it gets one that tells of the failure.
fn wanted(code: &mut String, ok: i32, function: &Function, name: &str, kind: &str) -> std::fmt::Result {
    writeln!(
        code,
        "            if status == {ok} && {name}_number != 0 {{ server.handles.put(kinds::{kind}, {name}_number, new_{name})?; }}"
    )?;
    if let (Way::Async, Some(first)) = (function.way, function.first_object()) {
        writeln!(code, "            if status != {ok} && {name}_number != 0 {{ server.failed({first}, {name}_number, status)?; }}")?;
    }
    Ok(())
}

/// How many values an array has.
fn count(length: &Length) -> String {
    match length {
        Length::Fixed(count) => format!("{count}usize"),
        Length::Argument(times, name) => format!("usize::try_from({name}).unwrap_or(0).saturating_mul({times})"),
    }
}
