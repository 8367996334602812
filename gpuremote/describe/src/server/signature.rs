//! The functions of the API's library in C.

use crate::api::{Function, Type};

pub(super) fn signature(function: &Function) -> String {
    let types: Vec<_> = function.arguments.iter().map(|a| c_type(&a.r#type)).collect();
    match function.returns {
        Some(_) => format!("unsafe extern \"C\" fn({}, *mut i32) -> *mut c_void", types.join(", ")),
        None => format!("unsafe extern \"C\" fn({}) -> i32", types.join(", ")),
    }
}

fn c_type(r#type: &Type) -> String {
    match r#type {
        Type::Scalar(name) => name.clone(),
        Type::In(name, _) => format!("*const {name}"),
        Type::Out(name, _) => format!("*mut {name}"),
        Type::Text => "*const std::ffi::c_char".into(),
        Type::Null => "*const c_void".into(),
        Type::Info => "usize, *mut u8, *mut usize".into(),
        Type::Handle(_) | Type::Free(_) | Type::Foreign(_) | Type::Object(_) | Type::Maybe(_) | Type::Scalars(_) => "*mut c_void".into(),
        Type::New(_) | Type::Found(_) | Type::Want(_) => "*mut *mut c_void".into(),
        Type::InHandles(..) | Type::Objects(_) => "*const *mut c_void".into(),
    }
}
