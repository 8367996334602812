//! What stubs look like in C.

use crate::api::{Function, Scalars, Type};

pub(super) fn parameters(function: &Function) -> String {
    let parameter = |name: &str, r#type: &Type| match r#type {
        Type::Info => format!("{name}_size: usize, {name}: *mut u8, {name}_size_ret: *mut usize"),
        r#type => format!("{name}: {}", c_type(r#type)),
    };
    let mut list: Vec<_> = function.arguments.iter().map(|argument| parameter(&argument.name, &argument.r#type)).collect();
    if function.returns.is_some() {
        list.push("errcode_ret: *mut i32".into());
    }
    list.join(", ")
}

pub(super) fn result(function: &Function) -> &'static str {
    match function.returns {
        Some(_) => "*mut crate::Object",
        None => "i32",
    }
}

/// What a stub returns for this status.
pub(super) fn failure(function: &Function, status: &str) -> String {
    match function.returns {
        Some(_) => format!("crate::failed({status}, errcode_ret)"),
        None => status.to_owned(),
    }
}

fn c_type(r#type: &Type) -> String {
    match r#type {
        Type::Scalar(name) => name.clone(),
        Type::In(name, _) => format!("*const {name}"),
        Type::Out(name, _) => format!("*mut {name}"),
        Type::Text => "*const std::ffi::c_char".into(),
        Type::Null => "*const std::ffi::c_void".into(),
        Type::Info | Type::Scalars(Scalars { written: true, .. }) => "*mut u8".into(),
        Type::Scalars(_) => "*const u8".into(),
        Type::Handle(_) | Type::Free(_) | Type::Foreign(_) => "u64".into(),
        Type::New(_) | Type::Found(_) => "*mut u64".into(),
        Type::InHandles(..) => "*const u64".into(),
        Type::Object(_) | Type::Maybe(_) => "*mut crate::Object".into(),
        Type::Want(_) => "*mut *mut crate::Object".into(),
        Type::Objects(_) => "*const *mut crate::Object".into(),
    }
}
