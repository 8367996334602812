//! The front end's side.

use std::fmt::Write;

use crate::parse::{Api, Function, Length, Scalars, Type, Way};

/// The front end's Rust code: a symbol for each function, `numbers` on the wire, `STATUSES` and `ENTRY_POINTS` by name.
///
/// The code calls `crate::front()`, a `gpuremote_client::Front`. Functions that are local or manual are expected in `crate::by_hand`.
pub fn client(api: &Api) -> String {
    let mut code = String::from("use gpuremote_client::wire::Malformed;\n");
    let s = &api.statuses;
    let _ = writeln!(
        code,
        "/// Statuses that stubs return themselves.\npub const STATUSES: gpuremote_client::Statuses = gpuremote_client::Statuses {{ ok: {}, lost: {}, invalid: {}, handle: {}, unsupported: {} }};",
        s.ok, s.lost, s.invalid, s.handle, s.unsupported
    );
    let _ = writeln!(code, "/// The API's number on the wire.\npub const API: u8 = {};", api.number);
    let _ = writeln!(code, "/// Numbers of the functions on the wire.\n#[allow(missing_docs, dead_code)]\npub mod numbers {{");
    for (number, function) in api.functions.iter().enumerate() {
        let _ = writeln!(code, "    pub const {}: u16 = {number};", function.name);
    }
    let _ = writeln!(code, "}}\n/// Kinds of handles.\n#[allow(missing_docs, dead_code)]\npub mod kinds {{");
    for (kind, (name, first)) in api.handles.iter().enumerate() {
        let _ = writeln!(
            code,
            "    pub const {name}: gpuremote_client::HandleKind = gpuremote_client::HandleKind {{ number: {kind}, first: {first} }};"
        );
    }
    code.push_str("}\n");
    code.push_str("/// Stubs that functions written by hand call.\n#[allow(non_snake_case, dead_code)]\npub mod remote {\n    #[allow(unused_imports)]\n    use super::*;\n");
    for (number, function) in api.functions.iter().enumerate().filter(|(_, function)| function.wrapped) {
        stub(&mut code, function, number);
    }
    code.push_str("}\n");
    for (number, function) in api.functions.iter().enumerate().filter(|(_, function)| !function.wrapped) {
        match function.way {
            Way::Sync | Way::Async | Way::Cached => stub(&mut code, function, number),
            Way::Refused => refusal(&mut code, function),
            Way::Local | Way::Manual => {}
        }
    }
    code.push_str("/// Each function that this library has, by name.\n#[allow(dead_code)]\npub static ENTRY_POINTS: &[(&str, gpuremote_client::Entry)] = &[\n");
    for function in api.functions.iter().filter(|function| !function.name.starts_with("nearmetal")) {
        let place = if function.wrapped || matches!(function.way, Way::Local | Way::Manual) { "crate::by_hand::" } else { "" };
        let _ = writeln!(code, "    (\"{0}\", gpuremote_client::Entry({place}{0} as *const ())),", function.name);
    }
    code.push_str("];\n");
    code
}

fn refusal(code: &mut String, function: &Function) {
    let name = &function.name;
    let _ = writeln!(
        code,
        "/// Not supported.\n#[no_mangle]\npub extern \"C\" fn {name}() -> i32 {{\n    crate::front().refuse(\"{name}\")\n}}"
    );
}

fn c_type(r#type: &Type) -> String {
    match r#type {
        Type::Scalar(name) => name.clone(),
        Type::Handle(_) | Type::Free(_) | Type::Foreign(_) => "u64".into(),
        Type::Scalars(Scalars { written: true, .. }) => "*mut u8".into(),
        Type::Scalars(_) => "*const u8".into(),
        Type::New(_) => "*mut u64".into(),
        Type::In(name, _) => format!("*const {name}"),
        Type::InHandles(..) => "*const u64".into(),
        Type::Out(name, _) => format!("*mut {name}"),
        Type::Text => "*const std::ffi::c_char".into(),
        Type::Null => "*const std::ffi::c_void".into(),
    }
}

fn length(of: &Length) -> String {
    match of {
        Length::Fixed(count) => count.to_string(),
        Length::Argument(times, name) => format!("{times} * usize::try_from({name}).unwrap_or(0)"),
    }
}

fn stub(code: &mut String, function: &Function, number: usize) {
    let name = &function.name;
    let list: Vec<_> = function.arguments.iter().map(|a| format!("{}: {}", a.name, c_type(&a.r#type))).collect();
    let exported = if function.wrapped { "" } else { "#[no_mangle]\n" };
    let _ = writeln!(code, "/// Remote.\n{exported}pub unsafe extern \"C\" fn {name}({}) -> i32 {{", list.join(", "));
    code.push_str("    let front = crate::front();\n");
    checks(code, function);
    for argument in &function.arguments {
        if let Type::New(kind) = &argument.r#type {
            let _ = writeln!(code, "    let minted_{0} = front.mint(kinds::{kind});", argument.name);
        }
    }
    code.push_str("    let encode = |encoder: &mut gpuremote_client::wire::Encoder| {\n        let _ = &encoder;\n");
    encode(code, function);
    code.push_str("    };\n");
    if function.way == Way::Async {
        let _ = writeln!(code, "    let status = front.post({number}, encode);");
    } else {
        code.push_str("    let decode = |decoder: &mut gpuremote_client::wire::Decoder<'_>| {\n        let _ = &decoder;\n");
        decode(code, function);
        code.push_str("        Ok::<(), Malformed>(())\n    };\n");
        let call = if function.way == Way::Cached { "ask" } else { "call" };
        match moded_results(function) {
            Some(handle) => {
                let _ = writeln!(
                    code,
                    "    let status = if crate::by_hand::in_device_mode({handle}) {{ front.post({number}, encode) }} else {{ front.{call}({number}, encode, decode) }};"
                );
            }
            None => {
                let _ = writeln!(code, "    let status = front.{call}({number}, encode, decode);");
            }
        }
    }
    for argument in &function.arguments {
        match &argument.r#type {
            Type::New(kind) => {
                let _ = writeln!(
                    code,
                    "    if status == STATUSES.ok {{ *{0} = minted_{0}; }} else {{ front.unmint(kinds::{kind}, minted_{0}); }}",
                    argument.name
                );
            }
            Type::Free(kind) => {
                let _ = writeln!(code, "    front.unmint(kinds::{kind}, {});", argument.name);
            }
            _ => {}
        }
    }
    code.push_str("    status\n}\n");
}

/// The handle whose mode says whether results come back. None where others do in any case.
fn moded_results(function: &Function) -> Option<&str> {
    let others = function.arguments.iter().any(|a| matches!(a.r#type, Type::Out(..) | Type::New(_)));
    let handle = function.arguments.iter().find_map(|a| match &a.r#type {
        Type::Scalars(Scalars { written: true, handle, .. }) => handle.as_deref(),
        _ => None,
    });
    handle.filter(|_| !others)
}

/// What is wrong whatever the server says is told at once.
fn checks(code: &mut String, function: &Function) {
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::Handle(kind) | Type::Free(kind) => {
                writeln!(code, "    if !front.is(kinds::{kind}, {name}) {{ return STATUSES.handle; }}")
            }
            Type::Foreign(handle) => writeln!(
                code,
                "    if !front.is(gpuremote_client::HandleKind {{ number: {}, first: {} }}, {name}) {{ return STATUSES.handle; }}",
                handle.kind, handle.first
            ),
            Type::New(_) | Type::Text => writeln!(code, "    if {name}.is_null() {{ return STATUSES.invalid; }}"),
            Type::Null => writeln!(code, "    if !{name}.is_null() {{ return front.refuse(\"{} with {name}\"); }}", function.name),
            _ => Ok(()),
        };
    }
}

/// Numbers and handles come first, so that the server knows all lengths before it reads arrays.
fn encode(code: &mut String, function: &Function) {
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::Scalar(scalar) => writeln!(code, "        encoder.{scalar}({name});"),
            Type::Handle(_) | Type::Free(_) | Type::Foreign(_) => writeln!(code, "        encoder.u64({name});"),
            Type::New(_) => writeln!(code, "        encoder.u64(minted_{name});"),
            Type::Out(..) => writeln!(code, "        encoder.u8(u8::from(!{name}.is_null()));"),
            _ => Ok(()),
        };
    }
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::In(scalar, of) => writeln!(
                code,
                "        encoder.u8(u8::from(!{name}.is_null()));\n        if !{name}.is_null() {{ for i in 0..{} {{ encoder.{scalar}(*{name}.add(i)); }} }}",
                length(of)
            ),
            Type::InHandles(_, of) => writeln!(
                code,
                "        encoder.u8(u8::from(!{name}.is_null()));\n        if !{name}.is_null() {{ for i in 0..{} {{ encoder.u64(*{name}.add(i)); }} }}",
                length(of)
            ),
            Type::Scalars(scalars) => encode_scalars(code, name, scalars),
            Type::Text => writeln!(code, "        encoder.bytes_counted(std::ffi::CStr::from_ptr({name}).to_bytes());"),
            _ => Ok(()),
        };
    }
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

fn decode(code: &mut String, function: &Function) {
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::Out(scalar, of) => {
                writeln!(code, "        if !{name}.is_null() {{ for i in 0..{} {{ *{name}.add(i) = decoder.{scalar}()?; }} }}", length(of))
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
