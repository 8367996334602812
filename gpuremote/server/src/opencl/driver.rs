//! A driver without OpenCL's loader: its functions are found as the loader finds them, in the table that its platforms begin with.

use std::ffi::{c_char, CStr};

use super::calls::{Functions, ORDER};
use super::Object;

type FindFunction = unsafe extern "C" fn(*const c_char) -> *const ();
type FindPlatforms = unsafe extern "C" fn(u32, *mut Object, *mut u32) -> i32;

/// The library's functions.
///
/// # Safety
/// The library must be OpenCL's loader or a driver of OpenCL.
pub unsafe fn functions(library: &libloading::Library) -> Functions {
    if library.get::<*const ()>(b"clCreateContext\0").is_ok() {
        return Functions::load(library);
    }
    let Some(find) = table(library) else { return Functions::load(library) };
    // All platforms of a driver have the same functions; how to find those is the driver's own matter.
    let Some(platforms) = platforms(library) else { return Functions::load(library) };
    Functions::find(|name| if name == c"clGetPlatformIDs" { Some(platforms as *const ()) } else { find(name) })
}

unsafe fn platforms(library: &libloading::Library) -> Option<FindPlatforms> {
    let find = library.get::<FindFunction>(b"clGetExtensionFunctionAddress\0").ok()?;
    let platforms = find(c"clIcdGetPlatformIDsKHR".as_ptr());
    (!platforms.is_null()).then(|| std::mem::transmute::<*const (), FindPlatforms>(platforms))
}

/// Functions by name, from the first platform's table.
unsafe fn table(library: &libloading::Library) -> Option<impl Fn(&CStr) -> Option<*const ()>> {
    let (mut platform, mut count): (Object, u32) = (std::ptr::null_mut(), 0);
    if platforms(library)?(1, &mut platform, &mut count) != 0 || platform.is_null() {
        return None;
    }
    let table = *platform.cast::<*const *const ()>();
    Some(move |name: &CStr| {
        let place = ORDER.iter().position(|known| Ok(*known) == name.to_str())?;
        // SAFETY: the table of cl_khr_icd has so many entries.
        let address = unsafe { *table.add(place) };
        (!address.is_null()).then_some(address)
    })
}
