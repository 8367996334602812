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
    if !api.objects.is_empty() {
        releases(&mut code, api);
    }
    code.push_str("/// Stubs that functions written by hand call.\n#[allow(non_snake_case, dead_code)]\npub mod remote {\n    #[allow(unused_imports)]\n    use super::*;\n");
    for (number, function) in api.functions.iter().enumerate().filter(|(_, function)| function.wrapped) {
        stub(&mut code, api, function, number);
    }
    code.push_str("}\n");
    for (number, function) in api.functions.iter().enumerate().filter(|(_, function)| !function.wrapped) {
        match function.way {
            Way::Sync | Way::Async | Way::Cached => stub(&mut code, api, function, number),
            Way::Refused => refusal(&mut code, api, function),
            Way::Retain | Way::Release => count(&mut code, api, function),
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

/// Which function releases an object, by kind.
fn releases(code: &mut String, api: &Api) {
    let _ = writeln!(
        code,
        "/// The number of the function that releases objects, by kind.\npub const RELEASES: [Option<u16>; {}] = [",
        api.handles.len()
    );
    for (kind, _) in &api.handles {
        let releases =
            |function: &Function| function.way == Way::Release && function.arguments.iter().any(|a| a.r#type == Type::Handle(kind.clone()));
        let _ = write!(code, "{:?}, ", api.functions.iter().position(releases));
    }
    code.push_str("];\n");
}

fn parameters(api: &Api, function: &Function) -> String {
    let mut list: Vec<_> = function
        .arguments
        .iter()
        .map(|a| match &a.r#type {
            Type::Info => format!("{0}_size: usize, {0}: *mut u8, {0}_size_ret: *mut usize", a.name),
            r#type => format!("{}: {}", a.name, c_type(api, r#type)),
        })
        .collect();
    if function.returns.is_some() {
        list.push("errcode_ret: *mut i32".into());
    }
    list.join(", ")
}

fn result(function: &Function) -> &'static str {
    if function.returns.is_some() {
        "*mut crate::Object"
    } else {
        "i32"
    }
}

/// What returns this status from the function.
fn failure(function: &Function, status: &str) -> String {
    if function.returns.is_some() {
        format!("crate::failed({status}, errcode_ret)")
    } else {
        status.to_owned()
    }
}

/// A reference counted here. The last one's release is sent by the object's end.
fn count(code: &mut String, api: &Api, function: &Function) {
    let [argument] = function.arguments.as_slice() else { return };
    let Type::Handle(kind) = &argument.r#type else { return };
    let _ = writeln!(
        code,
        "/// Counted here.\n#[no_mangle]\npub unsafe extern \"C\" fn {}({1}: *mut crate::Object) -> i32 {{\n    if crate::{2}(kinds::{kind}, {1}) {{ STATUSES.ok }} else {{ {3} }}\n}}",
        function.name,
        argument.name,
        if function.way == Way::Retain { "retain" } else { "release" },
        api.object(kind).unwrap_or(api.statuses.handle),
    );
}

fn refusal(code: &mut String, api: &Api, function: &Function) {
    let name = &function.name;
    if function.returns.is_some() {
        let refuses = failure(function, &format!("crate::front().refuse(\"{name}\")"));
        let list = parameters(api, function);
        let _ = writeln!(
            code,
            "/// Not supported.\n#[no_mangle]\n#[allow(unused_variables)]\npub unsafe extern \"C\" fn {name}({list}) -> *mut crate::Object {{\n    {refuses}\n}}"
        );
        return;
    }
    let _ = writeln!(
        code,
        "/// Not supported.\n#[no_mangle]\npub extern \"C\" fn {name}() -> i32 {{\n    crate::front().refuse(\"{name}\")\n}}"
    );
}

fn c_type(api: &Api, r#type: &Type) -> String {
    match r#type {
        Type::Handle(kind) if api.object(kind).is_some() => "*mut crate::Object".into(),
        Type::InHandles(kind, _) if api.object(kind).is_some() => "*const *mut crate::Object".into(),
        Type::Maybe(_) => "*mut crate::Object".into(),
        Type::Want(_) => "*mut *mut crate::Object".into(),
        Type::List(..) => "*const *mut crate::Object".into(),
        Type::Info => "*mut u8".into(),
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
        Length::Argument(1, name) => format!("usize::try_from({name}).unwrap_or(0)"),
        Length::Argument(times, name) => format!("{times} * usize::try_from({name}).unwrap_or(0)"),
    }
}

fn stub(code: &mut String, api: &Api, function: &Function, number: usize) {
    let name = &function.name;
    let exported = if function.wrapped { "" } else { "#[no_mangle]\n" };
    let _ = writeln!(
        code,
        "/// Remote.\n{exported}pub unsafe extern \"C\" fn {name}({}) -> {} {{",
        parameters(api, function),
        result(function)
    );
    code.push_str("    let front = crate::front();\n");
    checks(code, api, function);
    let is_object = |kind: &str| api.object(kind).is_some();
    for argument in &function.arguments {
        if let Type::New(kind) = &argument.r#type {
            let _ = writeln!(code, "    let minted_{0} = front.mint(kinds::{kind});", argument.name);
        }
        if let Type::Want(kind) = &argument.r#type {
            let _ = writeln!(code, "    let minted_{0} = if {0}.is_null() {{ 0 }} else {{ front.mint(kinds::{kind}) }};", argument.name);
        }
        if argument.r#type == Type::Info {
            let _ = writeln!(code, "    let mut answered_{} = STATUSES.ok;", argument.name);
        }
    }
    if let Some(kind) = &function.returns {
        let _ = writeln!(code, "    let minted = front.mint(kinds::{kind});");
    }
    let first = function.arguments.iter().find(|a| matches!(&a.r#type, Type::Handle(kind) if is_object(kind))).map(|a| &a.name);
    code.push_str("    let encode = |encoder: &mut gpuremote_client::wire::Encoder| {\n        let _ = &encoder;\n");
    if function.returns.is_some() {
        code.push_str("        encoder.u64(minted);\n");
    }
    encode(code, api, function);
    code.push_str("    };\n");
    if function.way == Way::Async {
        let _ = writeln!(code, "    let status = front.post({number}, encode);");
    } else {
        code.push_str("    let decode = |decoder: &mut gpuremote_client::wire::Decoder<'_>| {\n        let _ = &decoder;\n");
        decode(code, function);
        code.push_str("        Ok::<(), Malformed>(())\n    };\n");
        // Numbers of objects come again, so what never changes about an object is kept with it.
        let call = match (function.way, first) {
            (Way::Cached, Some(first)) => format!("front.ask_of(&{first}_object, {number}, encode, decode)"),
            (Way::Cached, None) => format!("front.ask({number}, encode, decode)"),
            _ => format!("front.call({number}, encode, decode)"),
        };
        let _ = match moded_results(function) {
            Some(handle) => writeln!(
                code,
                "    let status = if crate::by_hand::in_device_mode({handle}) {{ front.post({number}, encode) }} else {{ {call} }};"
            ),
            None => writeln!(code, "    let status = {call};"),
        };
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
            Type::Want(kind) => {
                let parent = first.map_or("None".to_owned(), |first| format!("Some(&{first}_object)"));
                let _ = writeln!(
                    code,
                    "    if !{0}.is_null() {{ if status == STATUSES.ok {{ *{0} = crate::made(kinds::{kind}, minted_{0}, {parent}, numbers::{1}); }} else {{ front.unmint(kinds::{kind}, minted_{0}); }} }}",
                    argument.name, function.name
                );
            }
            Type::Info => {
                let _ = writeln!(code, "    let status = if status == STATUSES.ok {{ answered_{} }} else {{ status }};", argument.name);
            }
            _ => {}
        }
    }
    let Some(kind) = &function.returns else {
        code.push_str("    status\n}\n");
        return;
    };
    let parent = first.map_or("None".to_owned(), |first| format!("Some(&{first}_object)"));
    let _ = writeln!(
        code,
        "    if status != STATUSES.ok {{ front.unmint(kinds::{kind}, minted); return crate::failed(status, errcode_ret); }}\n    if !errcode_ret.is_null() {{ *errcode_ret = status; }}\n    crate::made(kinds::{kind}, minted, {parent}, numbers::{})\n}}",
        function.name
    );
}

/// The handle whose mode says whether results come back. None where others do in any case.
fn moded_results(function: &Function) -> Option<&str> {
    let others = function.arguments.iter().any(|a| matches!(a.r#type, Type::Out(..) | Type::Info | Type::New(_) | Type::Want(_)));
    let handle = function.arguments.iter().find_map(|a| match &a.r#type {
        Type::Scalars(Scalars { written: true, handle, .. }) => handle.as_deref(),
        _ => None,
    });
    handle.filter(|_| !others && function.returns.is_none())
}

/// What is wrong whatever the server says is told at once.
fn checks(code: &mut String, api: &Api, function: &Function) {
    for argument in &function.arguments {
        let name = &argument.name;
        let fail = |status: i32| failure(function, &status.to_string());
        let _ = match &argument.r#type {
            Type::Handle(kind) if api.object(kind).is_some() => writeln!(
                code,
                "    let Some({name}_object) = crate::object(kinds::{kind}, {name}) else {{ return {} }};",
                fail(api.object(kind).unwrap_or_default())
            ),
            Type::Maybe(kind) => writeln!(
                code,
                "    let {name}_object = crate::object(kinds::{kind}, {name});\n    if {name}_object.is_none() && !{name}.is_null() {{ return {} }}",
                fail(api.object(kind).unwrap_or_default())
            ),
            Type::InHandles(kind, of) if api.object(kind).is_some() => writeln!(
                code,
                "    if {name}.is_null() || {0} == 0 {{ return {1} }}\n    let Some({name}_objects) = crate::objects(kinds::{kind}, {name}, {0}) else {{ return {2} }};",
                length(of),
                fail(api.statuses.invalid),
                fail(api.object(kind).unwrap_or_default())
            ),
            Type::List(kind, of, status) => writeln!(
                code,
                "    let Some({name}_objects) = crate::objects(kinds::{kind}, {name}, {}) else {{ return {} }};",
                length(of),
                fail(*status)
            ),
            Type::Handle(kind) | Type::Free(kind) => {
                writeln!(code, "    if !front.is(kinds::{kind}, {name}) {{ return STATUSES.handle; }}")
            }
            Type::Foreign(handle) => writeln!(
                code,
                "    if !front.is(gpuremote_client::HandleKind {{ number: {}, first: {} }}, {name}) {{ return STATUSES.handle; }}",
                handle.kind, handle.first
            ),
            Type::New(_) | Type::Text => {
                writeln!(code, "    if {name}.is_null() {{ return {}; }}", failure(function, "STATUSES.invalid"))
            }
            Type::Null => writeln!(code, "    if !{name}.is_null() {{ return front.refuse(\"{} with {name}\"); }}", function.name),
            _ => Ok(()),
        };
    }
}

/// Numbers and handles come first, so that the server knows all lengths before it reads arrays.
fn encode(code: &mut String, api: &Api, function: &Function) {
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::Scalar(scalar) => writeln!(code, "        encoder.{scalar}({name});"),
            Type::Handle(kind) if api.object(kind).is_some() => writeln!(code, "        encoder.u64({name}_object.number);"),
            Type::Maybe(_) => writeln!(code, "        encoder.u64({name}_object.as_ref().map_or(0, |object| object.number));"),
            Type::Want(_) => writeln!(code, "        encoder.u64(minted_{name});"),
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
            Type::InHandles(kind, _) | Type::List(kind, ..) if api.object(kind).is_some() => writeln!(
                code,
                "        encoder.u8(u8::from(!{name}_objects.is_empty()));\n        for object in &{name}_objects {{ encoder.u64(object.number); }}"
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
