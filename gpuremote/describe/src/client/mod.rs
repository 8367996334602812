//! The front end's side.

mod arguments;
mod objects;
mod signature;
mod stub;

use std::fmt::Write;

use crate::api::{Api, Way};
use objects::{count, releases};
use stub::{refusal, stub};

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
        code.push_str(&api.order_constant());
    }
    code.push_str("/// Stubs that functions written by hand call.\n#[allow(non_snake_case, dead_code)]\npub mod remote {\n    #[allow(unused_imports)]\n    use super::*;\n");
    for (number, function) in api.functions.iter().enumerate().filter(|(_, function)| function.wrapped) {
        stub(&mut code, function, number);
    }
    code.push_str("}\n");
    for (number, function) in api.functions.iter().enumerate().filter(|(_, function)| !function.wrapped) {
        match function.way {
            Way::Sync | Way::Async | Way::Cached => stub(&mut code, function, number),
            Way::Refused => refusal(&mut code, function),
            Way::Retain | Way::Release => count(&mut code, function),
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
