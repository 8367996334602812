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
            Way::Local | Way::Refused => {}
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
    }
}

fn signature(function: &Function) -> String {
    let types: Vec<_> = function.arguments.iter().map(|a| c_type(&a.r#type)).collect();
    format!("unsafe extern \"C\" fn({}) -> i32", types.join(", "))
}

fn count(of: &Length) -> String {
    match of {
        Length::Fixed(count) => format!("{count}usize"),
        Length::Argument(times, name) => format!("usize::try_from({name}).unwrap_or(0).saturating_mul({times})"),
    }
}

fn arm(code: &mut String, api: &Api, function: &Function, number: usize) {
    let _ = writeln!(code, "        {number} => {{");
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::Scalar(scalar) => writeln!(code, "            let {name} = decoder.{scalar}()?;"),
            Type::Handle(_) | Type::Free(_) | Type::New(_) | Type::Foreign(_) => {
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
            Type::InHandles(kind, of) => writeln!(
                code,
                "            let Some({name}_values) = super::handle_array(decoder, {}, &server.handles, kinds::{kind})? else {{ return Ok(Outcome::Status({})) }};\n            let {name} = {name}_values.as_ref().map_or(std::ptr::null(), |v| v.as_ptr());",
                count(of),
                api.statuses.handle
            ),
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
            Type::Handle(kind) => writeln!(
                code,
                "            let Some({name}) = server.handles.get(kinds::{kind}, {name}_number) else {{ return Ok(Outcome::Status({})) }};",
                api.statuses.handle
            ),
            Type::Foreign(handle) => writeln!(
                code,
                "            let Some({name}) = server.{}.handles().get(crate::{}::kinds::{}, {name}_number) else {{ return Ok(Outcome::Status({})) }};",
                handle.api, handle.api, handle.name, api.statuses.handle
            ),
            Type::Free(kind) => writeln!(
                code,
                "            let Some({name}) = server.handles.take(kinds::{kind}, {name}_number) else {{ return Ok(Outcome::Status({})) }};",
                api.statuses.handle
            ),
            Type::New(_) => writeln!(code, "            let mut new_{name} = std::ptr::null_mut();\n            let {name} = &raw mut new_{name};"),
            _ => Ok(()),
        };
    }
    let names: Vec<_> = function.arguments.iter().map(|a| a.name.as_str()).collect();
    let _ = writeln!(
        code,
        "            let Some(run) = server.functions.{} else {{ return Ok(Outcome::Status({})) }};\n            let status = run({});",
        function.name,
        api.statuses.unsupported,
        names.join(", ")
    );
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::New(kind) => writeln!(
                code,
                "            if status == {} {{ server.handles.put(kinds::{kind}, {name}_number, new_{name})?; }}",
                api.statuses.ok
            ),
            Type::Scalars(Scalars { written: true, .. }) => writeln!(code, "            {name}_scalars.put(encoder);"),
            Type::Out(scalar, _) => writeln!(code, "            for value in {name}_values {{ encoder.{scalar}(value); }}"),
            _ => Ok(()),
        };
    }
    code.push_str("            status\n        }\n");
}

#[cfg(test)]
mod tests {
    #[test]
    fn methods_have_rusts_names() {
        assert_eq!(super::snake("cuMemcpyHtoD_v2"), "cu_memcpy_hto_d_v2");
        assert_eq!(super::snake("cuLaunchKernel"), "cu_launch_kernel");
    }
}
