//! The server's side.

mod arm;
mod signature;

use std::fmt::Write;

use crate::api::{Api, Function, Way};
use arm::arm;
use signature::signature;

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
    code.push_str("}\nimpl Functions {\n    /// Finds the functions.\n    ///\n    /// # Safety\n    /// The library must be of this API.\n    pub unsafe fn load(library: &libloading::Library) -> Self {\n        Self::find(|name| library.get::<*const ()>(name.to_bytes_with_nul()).ok().map(|symbol| *symbol))\n    }\n    /// The functions at these addresses.\n    ///\n    /// # Safety\n    /// The addresses must be those of functions with these names and of this API.\n    pub unsafe fn find(mut find: impl FnMut(&std::ffi::CStr) -> Option<*const ()>) -> Self {\n        Functions {\n");
    for function in api.functions.iter().filter(callable) {
        let _ = writeln!(code, "            {0}: find(c\"{0}\").map(|address| std::mem::transmute(address)),", function.name);
    }
    code.push_str("        }\n    }\n}\n");
    code.push_str(&api.order_constant());
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

#[cfg(test)]
mod tests {
    #[test]
    fn methods_have_rusts_names() {
        assert_eq!(super::snake("cuMemcpyHtoD_v2"), "cu_memcpy_hto_d_v2");
        assert_eq!(super::snake("cuLaunchKernel"), "cu_launch_kernel");
    }
}
