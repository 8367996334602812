//! Objects of the front end, whose references are counted there.

use std::fmt::Write;

use crate::api::{Api, Argument, Function, Type, Way};

/// Which function releases an object, by kind.
pub(super) fn releases(code: &mut String, api: &Api) {
    let _ = writeln!(
        code,
        "/// The number of the function that releases objects, by kind.\npub const RELEASES: [Option<u16>; {}] = [",
        api.handles.len()
    );
    for (kind, _) in &api.handles {
        let is_of_kind = |argument: &Argument| matches!(&argument.r#type, Type::Object(object) if object.kind == *kind);
        let releases = |function: &Function| function.way == Way::Release && function.arguments.iter().any(is_of_kind);
        let _ = write!(code, "{:?}, ", api.functions.iter().position(releases));
    }
    code.push_str("];\n");
}

/// A reference counted here. The last one's release is sent by the object's end.
pub(super) fn count(code: &mut String, function: &Function) {
    let [Argument { name, r#type: Type::Object(object) }] = function.arguments.as_slice() else { return };
    let _ = writeln!(
        code,
        "/// Counted here.\n#[no_mangle]\npub unsafe extern \"C\" fn {}({name}: *mut crate::Object) -> i32 {{\n    if crate::{}(kinds::{}, {name}) {{ STATUSES.ok }} else {{ {} }}\n}}",
        function.name,
        if function.way == Way::Retain { "retain" } else { "release" },
        object.kind,
        object.wrong,
    );
}
