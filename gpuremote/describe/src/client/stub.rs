//! A stub: it checks, mints, calls, and hands over.

use std::fmt::Write;

use super::arguments::{checks, decode, encode};
use super::signature::{failure, parameters, result};
use crate::api::{Function, Scalars, Type, Way};

pub(super) fn refusal(code: &mut String, function: &Function) {
    let name = &function.name;
    let refusal = failure(function, &format!("crate::front().refuse(\"{name}\")"));
    let _ = match function.returns {
        Some(_) => writeln!(
            code,
            "/// Not supported.\n#[no_mangle]\n#[allow(unused_variables)]\npub unsafe extern \"C\" fn {name}({}) -> {} {{\n    {refusal}\n}}",
            parameters(function),
            result(function)
        ),
        None => writeln!(code, "/// Not supported.\n#[no_mangle]\npub extern \"C\" fn {name}() -> i32 {{\n    {refusal}\n}}"),
    };
}

pub(super) fn stub(code: &mut String, function: &Function, number: usize) {
    let exported = if function.wrapped { "" } else { "#[no_mangle]\n" };
    let _ = writeln!(
        code,
        "/// Remote.\n{exported}pub unsafe extern \"C\" fn {}({}) -> {} {{",
        function.name,
        parameters(function),
        result(function)
    );
    code.push_str("    let front = crate::front();\n");
    checks(code, function);
    mint(code, function);
    call(code, function, number);
    settle(code, function);
    match &function.returns {
        Some(kind) => {
            let made = made(function, kind, "minted");
            let _ = writeln!(
                code,
                "    if status != STATUSES.ok {{ front.unmint(kinds::{kind}, minted); return crate::failed(status, errcode_ret); }}\n    if !errcode_ret.is_null() {{ *errcode_ret = status; }}\n    {made}"
            );
        }
        None => code.push_str("    status\n"),
    }
    code.push_str("}\n");
}

/// What the call needs before: numbers for new objects, and places for what the reply tells.
fn mint(code: &mut String, function: &Function) {
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::New(kind) => writeln!(code, "    let minted_{name} = front.mint(kinds::{kind});"),
            Type::Want(kind) => writeln!(code, "    let minted_{name} = if {name}.is_null() {{ 0 }} else {{ front.mint(kinds::{kind}) }};"),
            Type::Info => writeln!(code, "    let mut answered_{name} = STATUSES.ok;"),
            _ => Ok(()),
        };
    }
    if let Some(kind) = &function.returns {
        let _ = writeln!(code, "    let minted = front.mint(kinds::{kind});");
    }
}

fn call(code: &mut String, function: &Function, number: usize) {
    code.push_str("    let encode = |encoder: &mut gpuremote_client::wire::Encoder| {\n        let _ = &encoder;\n");
    encode(code, function);
    code.push_str("    };\n");
    let post = format!("front.post({number}, encode)");
    if function.way == Way::Async {
        let _ = writeln!(code, "    let status = {post};");
        return;
    }
    code.push_str("    let decode = |decoder: &mut gpuremote_client::wire::Decoder<'_>| {\n        let _ = &decoder;\n");
    decode(code, function);
    code.push_str("        Ok::<(), Malformed>(())\n    };\n");
    let call = match (function.way, function.first_object()) {
        // Numbers of objects come again, so what never changes about an object is kept with it.
        (Way::Cached, Some(first)) => format!("front.ask_of(&{first}_object, {number}, encode, decode)"),
        (Way::Cached, None) => format!("front.ask({number}, encode, decode)"),
        _ => format!("front.call({number}, encode, decode)"),
    };
    let _ = match moded_results(function) {
        Some(handle) => {
            writeln!(code, "    let status = if crate::by_hand::in_device_mode({handle}) {{ {post} }} else {{ {call} }};")
        }
        None => writeln!(code, "    let status = {call};"),
    };
}

/// The handle whose mode says whether results come back. None where others do in any case.
fn moded_results(function: &Function) -> Option<&str> {
    let others =
        function.arguments.iter().any(|a| matches!(a.r#type, Type::Out(..) | Type::Info | Type::Found(_) | Type::New(_) | Type::Want(_)));
    let handle = function.arguments.iter().find_map(|a| match &a.r#type {
        Type::Scalars(Scalars { written: true, handle, .. }) => handle.as_deref(),
        _ => None,
    });
    handle.filter(|_| !others && function.returns.is_none())
}

/// What the call's status means for objects that it makes or ends.
fn settle(code: &mut String, function: &Function) {
    for argument in &function.arguments {
        let name = &argument.name;
        let _ = match &argument.r#type {
            Type::New(kind) => writeln!(
                code,
                "    if status == STATUSES.ok {{ *{name} = minted_{name}; }} else {{ front.unmint(kinds::{kind}, minted_{name}); }}"
            ),
            Type::Free(kind) => writeln!(code, "    front.unmint(kinds::{kind}, {name});"),
            Type::Want(kind) => {
                let made = made(function, kind, &format!("minted_{name}"));
                writeln!(
                    code,
                    "    if !{name}.is_null() {{ if status == STATUSES.ok {{ *{name} = {made}; }} else {{ front.unmint(kinds::{kind}, minted_{name}); }} }}"
                )
            }
            Type::Info => writeln!(code, "    let status = if status == STATUSES.ok {{ answered_{name} }} else {{ status }};"),
            _ => Ok(()),
        };
    }
}

/// A new object, which holds the function's first one.
fn made(function: &Function, kind: &str, number: &str) -> String {
    let parent = function.first_object().map_or("None".to_owned(), |first| format!("Some(&{first}_object)"));
    format!("crate::made(kinds::{kind}, {number}, {parent}, numbers::{})", function.name)
}
