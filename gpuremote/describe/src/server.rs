//! The server's side.

use std::fmt::Write;

use crate::parse::{Api, Function, Length, Scalars, Type, Way};

/// The server's Rust code: `Functions`, the library's functions by name, and `dispatch`, which runs one call.
///
/// The code is for a module whose parent has a `Server` with the fields `functions: Functions` and `handles: Handles`, and a method for each
/// function whose server part is by hand.
pub fn server(api: &Api) -> String {
    let mut code =
        String::from("use std::ffi::c_void;\nuse gpuremote_wire::{Decoder, Encoder, Malformed};\nuse super::{Outcome, Server};\n");
    let handle_kinds = api.handles.len();
    let _ = writeln!(code, "/// The API's number on the wire.\npub const API: u8 = {};", api.number);
    let s = &api.statuses;
    let _ = writeln!(code, "/// The status where the API's library is missing.\npub const MISSING: i32 = {};", s.missing);
    let _ = writeln!(code, "/// The status after a failed call of another API.\npub const FAILED: i32 = {};", s.failed);
    let _ = writeln!(code, "/// The first value of each kind that is a handle.\npub const FIRST_HANDLES: [u64; {handle_kinds}] = [");
    for (_, first) in &api.handles {
        let _ = write!(code, "{first}, ");
    }
    code.push_str("];\n/// Kinds of handles.\n#[allow(missing_docs, dead_code, non_upper_case_globals)]\npub mod kinds {\n");
    for (kind, (name, _)) in api.handles.iter().enumerate() {
        let _ = writeln!(code, "    pub const {name}: usize = {kind};");
    }
    code.push_str("}\n/// The library's functions; none where the library lacks it.\n#[allow(non_snake_case)]\npub struct Functions {\n");
    let callable = |f: &&Function| f.way != Way::Refused && !f.name.starts_with("nearmetal");
    for function in api.functions.iter().filter(callable) {
        let _ = writeln!(code, "    pub {}: Option<{}>,", function.name, signature(function));
    }
    code.push_str("}\nimpl Functions {\n    /// Finds the functions.\n    ///\n    /// # Safety\n    /// The library must be of this API.\n    pub unsafe fn load(library: &libloading::Library) -> Self {\n        Functions {\n");
    for function in api.functions.iter().filter(callable) {
        let _ = writeln!(code, "            {0}: library.get(b\"{0}\\0\").ok().map(|symbol| *symbol),", function.name);
    }
    code.push_str("        }\n    }\n}\n");
    code.push_str(
        "/// Numbers of the functions on the wire.\n#[allow(missing_docs, dead_code, non_upper_case_globals)]\npub mod numbers {\n",
    );
    for (number, function) in api.functions.iter().enumerate().filter(|(_, function)| function.way != Way::Refused) {
        let _ = writeln!(code, "    pub const {}: u16 = {number};", function.name);
    }
    code.push_str("}\n");
    code.push_str("/// Whether others may begin while this function runs.\npub fn blocks(function: u16) -> bool {\n    #[allow(clippy::match_like_matches_macro)]\n    match function {\n        u16::MAX");
    for (number, function) in api.functions.iter().enumerate() {
        if function.blocks {
            let _ = write!(code, " | {number}");
        }
    }
    code.push_str(" => true,\n        _ => false,\n    }\n}\n/// Runs a call.\n///\n/// # Safety\n/// The functions must be those of the API's library.\n");
    code.push_str("#[allow(unused_variables, clippy::redundant_closure_call)]\npub unsafe fn dispatch(server: &mut Server, link: &mut crate::worker::Link<'_>, function: u16, decoder: &mut Decoder<'_>, encoder: &mut Encoder) -> std::io::Result<Outcome> {\n    let status = match function {\n");
    for (number, function) in api.functions.iter().enumerate() {
        match function.way {
            Way::Local | Way::Refused | Way::Retain => {}
            _ if function.by_hand_on_server => {
                let _ = writeln!(code, "        {number} => return server.{}(link, decoder, encoder),", snake(&function.name));
            }
            _ => arm(&mut code, api, function, number),
        }
    }
    code.push_str(
        "        _ => return Err(Malformed(\"there is no such function\").into()),\n    };\n    Ok(Outcome::Status(status))\n}\n",
    );
    code
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    let mut before_lower = false;
    for c in name.chars() {
        if c.is_uppercase() && before_lower {
            snake.push('_');
        }
        before_lower = c.is_lowercase() || c.is_ascii_digit();
        snake.extend(c.to_lowercase());
    }
    snake
}

fn c_type(r#type: &Type) -> String {
    match r#type {
        Type::Scalar(name) => name.clone(),
        Type::Handle(_) | Type::Free(_) | Type::Foreign(_) | Type::Scalars(_) => "*mut c_void".into(),
        Type::New(_) => "*mut *mut c_void".into(),
        Type::In(name, _) => format!("*const {name}"),
        Type::InHandles(..) => "*const *mut c_void".into(),
        Type::Out(name, _) => format!("*mut {name}"),
        Type::Text => "*const std::ffi::c_char".into(),
        Type::Null => "*const c_void".into(),
        Type::Maybe(_) => "*mut c_void".into(),
        Type::Want(_) => "*mut *mut c_void".into(),
        Type::List(..) => "*const *mut c_void".into(),
        Type::Info => "usize, *mut u8, *mut usize".into(),
    }
}

fn signature(function: &Function) -> String {
    let types: Vec<_> = function.arguments.iter().map(|a| c_type(&a.r#type)).collect();
    match function.returns {
        Some(_) => format!("unsafe extern \"C\" fn({}, *mut i32) -> *mut c_void", types.join(", ")),
        None => format!("unsafe extern \"C\" fn({}) -> i32", types.join(", ")),
    }
}

fn count(of: &Length) -> String {
    match of {
        Length::Fixed(count) => format!("{count}usize"),
        Length::Argument(times, name) => format!("usize::try_from({name}).unwrap_or(0).saturating_mul({times})"),
    }
}

fn arm(code: &mut String, api: &Api, function: &Function, number: usize) {
    let _ = writeln!(code, "        {number} => {{");
    if function.returns.is_some() {
        code.push_str("            let new_number = decoder.u64()?;\n");
    }
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::Scalar(scalar) => writeln!(code, "            let {name} = decoder.{scalar}()?;"),
            Type::Handle(_) | Type::Free(_) | Type::New(_) | Type::Foreign(_) | Type::Maybe(_) | Type::Want(_) => {
                writeln!(code, "            let {name}_number = decoder.u64()?;")
            }
            Type::Out(..) => writeln!(code, "            let wants_{name} = decoder.u8()? != 0;"),
            _ => Ok(()),
        };
    }
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::In(scalar, of) => writeln!(
                code,
                "            let {name}_values = super::array(decoder, {}, size_of::<{scalar}>(), |d| d.{scalar}())?;\n            let {name} = {name}_values.as_ref().map_or(std::ptr::null(), |v| v.as_ptr());",
                count(of)
            ),
            Type::InHandles(kind, of) | Type::List(kind, of, _) => {
                let status = if let Type::List(.., status) = argument.r#type { status } else { wrong(api, kind) };
                writeln!(
                    code,
                    "            let Some({name}_values) = super::handle_array(decoder, {}, &server.handles, kinds::{kind})? else {{ return Ok(Outcome::Status({status})) }};\n            let {name} = {name}_values.as_ref().map_or(std::ptr::null(), |v| v.as_ptr());",
                    count(of)
                )
            }
            Type::Scalars(Scalars { read, .. }) => writeln!(
                code,
                "            let mut {name}_scalars = crate::library::Scalars::take(decoder, {read})?;\n            let {name} = {name}_scalars.pointer();"
            ),
            Type::Text => writeln!(
                code,
                "            let {name}_text = super::text(decoder)?;\n            let {name} = {name}_text.as_ptr();"
            ),
            Type::Null => writeln!(code, "            let {name} = std::ptr::null();"),
            Type::Out(scalar, of) => writeln!(
                code,
                "            let mut {name}_values = vec![{scalar}::default(); super::bounded(if wants_{name} {{ {} }} else {{ 0 }}, size_of::<{scalar}>())?];\n            let {name} = if wants_{name} {{ {name}_values.as_mut_ptr() }} else {{ std::ptr::null_mut() }};",
                count(of)
            ),
            _ => Ok(()),
        };
    }
    code.push_str("            decoder.finish()?;\n");
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::Handle(kind) if function.way != Way::Release => writeln!(
                code,
                "            let Some({name}) = server.handles.get(kinds::{kind}, {name}_number) else {{ return Ok(Outcome::Status({})) }};",
                wrong(api, kind)
            ),
            Type::Foreign(handle) => writeln!(
                code,
                "            let Some({name}) = server.{}.handles().get(crate::{}::kinds::{}, {name}_number) else {{ return Ok(Outcome::Status({})) }};",
                handle.api, handle.api, handle.name, api.statuses.handle
            ),
            Type::Maybe(kind) => writeln!(
                code,
                "            let {name} = if {name}_number == 0 {{ Some(std::ptr::null_mut()) }} else {{ server.handles.get(kinds::{kind}, {name}_number) }};\n            let Some({name}) = {name} else {{ return Ok(Outcome::Status({})) }};",
                wrong(api, kind)
            ),
            Type::Want(_) => writeln!(
                code,
                "            let mut new_{name} = std::ptr::null_mut();\n            let {name} = if {name}_number == 0 {{ std::ptr::null_mut() }} else {{ &raw mut new_{name} }};"
            ),
            Type::Handle(kind) | Type::Free(kind) => writeln!(
                code,
                "            let Some({name}) = server.handles.take(kinds::{kind}, {name}_number) else {{ return Ok(Outcome::Status({})) }};",
                wrong(api, kind)
            ),
            Type::New(_) => writeln!(code, "            let mut new_{name} = std::ptr::null_mut();\n            let {name} = &raw mut new_{name};"),
            _ => Ok(()),
        };
    }
    let _ = writeln!(
        code,
        "            let Some(run) = server.functions.{} else {{ return Ok(Outcome::Status({})) }};",
        function.name, api.statuses.unsupported,
    );
    run(code, api, function);
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::New(kind) => writeln!(
                code,
                "            if status == {} {{ server.handles.put(kinds::{kind}, {name}_number, new_{name})?; }}",
                api.statuses.ok
            ),
            Type::Scalars(Scalars { written: true, .. }) => writeln!(code, "            {name}_scalars.put(encoder);"),
            Type::Want(kind) => {
                wanted(code, api, function, name, kind);
                Ok(())
            }
            Type::Out(scalar, _) => writeln!(code, "            for value in {name}_values {{ encoder.{scalar}(value); }}"),
            _ => Ok(()),
        };
    }
    code.push_str("            status\n        }\n");
}

/// The status for a number that stands for no object of this kind.
fn wrong(api: &Api, kind: &str) -> i32 {
    api.object(kind).unwrap_or(api.statuses.handle)
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

/// A new object that the client may want. Without a reply it believes that it has one, so it gets one that tells of the failure.
fn wanted(code: &mut String, api: &Api, function: &Function, name: &str, kind: &str) {
    let _ = writeln!(
        code,
        "            if status == {} && {name}_number != 0 {{ server.handles.put(kinds::{kind}, {name}_number, new_{name})?; }}",
        api.statuses.ok
    );
    let first = function.arguments.iter().find(|a| matches!(&a.r#type, Type::Handle(kind) if api.object(kind).is_some()));
    if let (Way::Async, Some(first)) = (function.way, first) {
        let _ = writeln!(
            code,
            "            if status != {} && {name}_number != 0 {{ server.failed({}, {name}_number, status)?; }}",
            api.statuses.ok, first.name
        );
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn methods_have_rusts_names() {
        assert_eq!(super::snake("cuMemcpyHtoD_v2"), "cu_memcpy_hto_d_v2");
        assert_eq!(super::snake("cuLaunchKernel"), "cu_launch_kernel");
    }
}
