//! Contexts and queues. What was said when they were made answers all queries.

use std::ffi::c_void;
use std::sync::Arc;

use crate::front;
use crate::info::{properties, Query};
use crate::objects::{handed, object, Data, Destructor, Object};
use crate::platforms::{devices_of_types, listed, platforms};
use crate::stubs::{kinds, numbers, remote, STATUSES};
use crate::transfers;

const CL_INVALID_PLATFORM: i32 = -32;
const CL_INVALID_DEVICE: i32 = -33;
const CL_INVALID_CONTEXT: i32 = -34;
const CL_INVALID_QUEUE_PROPERTIES: i32 = -35;
const CL_INVALID_COMMAND_QUEUE: i32 = -36;
const CL_INVALID_PROPERTY: i32 = -64;

const CL_CONTEXT_REFERENCE_COUNT: u32 = 0x1080;
const CL_CONTEXT_DEVICES: u32 = 0x1081;
const CL_CONTEXT_PROPERTIES: u32 = 0x1082;
const CL_CONTEXT_NUM_DEVICES: u32 = 0x1083;
const CL_CONTEXT_PLATFORM: u64 = 0x1084;
const CL_CONTEXT_INTEROP_USER_SYNC: u64 = 0x1085;

const CL_QUEUE_CONTEXT: u32 = 0x1090;
const CL_QUEUE_DEVICE: u32 = 0x1091;
const CL_QUEUE_REFERENCE_COUNT: u32 = 0x1092;
const CL_QUEUE_PROPERTIES: u32 = 0x1093;
const CL_QUEUE_DEVICE_DEFAULT: u32 = 0x1095;
const CL_QUEUE_PROPERTIES_ARRAY: u32 = 0x1098;
/// CL_QUEUE_ON_DEVICE and _ON_DEVICE_DEFAULT: queues that kernels fill, which no device here has.
const ON_DEVICE: u64 = 4 | 8;

/// A context.
pub(crate) struct Context {
    pub devices: Vec<Arc<Object>>,
    properties: Vec<u64>,
}

/// A queue.
pub(crate) struct Queue {
    pub device: Arc<Object>,
    properties: u64,
    list: Vec<u64>,
}

/// The platform that a context's properties name.
unsafe fn named_platform(pairs: &[(u64, u64)]) -> Result<Option<Arc<Object>>, i32> {
    let mut platform = None;
    for &(name, value) in pairs {
        match name {
            CL_CONTEXT_PLATFORM => {
                platform = Some(object(kinds::cl_platform_id, value as *mut Object).ok_or(CL_INVALID_PLATFORM)?);
            }
            CL_CONTEXT_INTEROP_USER_SYNC => {}
            _ => return Err(CL_INVALID_PROPERTY),
        }
    }
    Ok(platform)
}

fn create(devices: Vec<Arc<Object>>, properties: Vec<u64>) -> Result<Arc<Object>, i32> {
    let first = devices.first().ok_or(STATUSES.invalid)?;
    let parent = Arc::clone(first);
    front().create(
        (kinds::cl_context, numbers::clCreateContext),
        |encoder| {
            encoder.u32(devices.len() as u32);
            devices.iter().for_each(|device| encoder.u64(device.number));
        },
        None,
        |_| Ok(()),
        || (parent, Data::Context(Context { devices: devices.clone(), properties })),
    )
}

/// Errors of the server's driver outside calls are not passed on, so `notify` is never called.
#[no_mangle]
pub unsafe extern "C" fn clCreateContext(
    list: *const u64,
    count: u32,
    devices: *const *mut Object,
    notify: *const c_void,
    data: *const c_void,
    errcode: *mut i32,
) -> *mut Object {
    let created = || {
        if notify.is_null() && !data.is_null() {
            return Err(STATUSES.invalid);
        }
        let (pairs, words) = properties(list);
        let platform = named_platform(&pairs)?;
        let devices = listed(count, devices)?;
        let platform = platform.unwrap_or_else(|| Arc::clone(devices[0].platform()));
        if devices.iter().any(|device| device.platform().number != platform.number) {
            return Err(CL_INVALID_DEVICE);
        }
        create(devices, words)
    };
    handed(created(), errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clCreateContextFromType(
    list: *const u64,
    types: u64,
    notify: *const c_void,
    data: *const c_void,
    errcode: *mut i32,
) -> *mut Object {
    let created = || {
        if notify.is_null() && !data.is_null() {
            return Err(STATUSES.invalid);
        }
        let (pairs, words) = properties(list);
        let platform = match named_platform(&pairs)? {
            Some(platform) => platform,
            None => platforms().first().cloned().ok_or(CL_INVALID_PLATFORM)?,
        };
        create(devices_of_types(&platform, types)?, words)
    };
    handed(created(), errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clGetContextInfo(context: *mut Object, name: u32, size: usize, into: *mut u8, size_ret: *mut usize) -> i32 {
    let Some(object) = object(kinds::cl_context, context) else { return CL_INVALID_CONTEXT };
    let (query, context) = (Query { size, into, size_ret }, object.as_context());
    match name {
        CL_CONTEXT_REFERENCE_COUNT => query.u32(object.references()),
        CL_CONTEXT_DEVICES => query.objects(&context.devices),
        CL_CONTEXT_NUM_DEVICES => query.u32(context.devices.len() as u32),
        CL_CONTEXT_PROPERTIES => query.words(context.properties.iter().copied()),
        _ => STATUSES.invalid,
    }
}

/// Keeps a function for the end of an object.
pub(crate) unsafe fn at_the_end(object: Option<Arc<Object>>, wrong: i32, notify: Option<Notify>, data: *mut c_void) -> i32 {
    let Some(object) = object else { return wrong };
    let Some(notify) = notify else { return STATUSES.invalid };
    let destructor: Destructor = (notify, data as usize);
    object.destructors.lock().expect("no one panics with this lock").push(destructor);
    STATUSES.ok
}

/// A function of the program that an object's end calls.
pub(crate) type Notify = unsafe extern "C" fn(*mut Object, *mut c_void);

#[no_mangle]
pub unsafe extern "C" fn clSetContextDestructorCallback(context: *mut Object, notify: Option<Notify>, data: *mut c_void) -> i32 {
    at_the_end(object(kinds::cl_context, context), CL_INVALID_CONTEXT, notify, data)
}

unsafe fn create_queue(context: *mut Object, device: *mut Object, properties: u64, list: Vec<u64>) -> Result<Arc<Object>, i32> {
    let context = object(kinds::cl_context, context).ok_or(CL_INVALID_CONTEXT)?;
    let device = object(kinds::cl_device_id, device).ok_or(CL_INVALID_DEVICE)?;
    front().create(
        (kinds::cl_command_queue, numbers::clCreateCommandQueue),
        |encoder| {
            encoder.u64(context.number);
            encoder.u64(device.number);
            encoder.u64(properties);
        },
        None,
        |_| Ok(()),
        || (Arc::clone(&context), Data::Queue(Queue { device: Arc::clone(&device), properties, list })),
    )
}

#[no_mangle]
pub unsafe extern "C" fn clCreateCommandQueue(
    context: *mut Object,
    device: *mut Object,
    properties: u64,
    errcode: *mut i32,
) -> *mut Object {
    handed(create_queue(context, device, properties, Vec::new()), errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clCreateCommandQueueWithProperties(
    context: *mut Object,
    device: *mut Object,
    list: *const u64,
    errcode: *mut i32,
) -> *mut Object {
    let (pairs, words) = properties(list);
    let mut flags = 0;
    for (name, value) in pairs {
        if name != u64::from(CL_QUEUE_PROPERTIES) {
            return handed(Err(STATUSES.invalid), errcode);
        }
        flags = value;
    }
    if flags & ON_DEVICE != 0 {
        return handed(Err(CL_INVALID_QUEUE_PROPERTIES), errcode);
    }
    handed(create_queue(context, device, flags, words), errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clGetCommandQueueInfo(queue: *mut Object, name: u32, size: usize, into: *mut u8, size_ret: *mut usize) -> i32 {
    let Some(object) = object(kinds::cl_command_queue, queue) else { return CL_INVALID_COMMAND_QUEUE };
    let (query, queue) = (Query { size, into, size_ret }, object.as_queue());
    match name {
        CL_QUEUE_CONTEXT => query.object(object.parent.as_ref()),
        CL_QUEUE_DEVICE => query.object(Some(&queue.device)),
        CL_QUEUE_REFERENCE_COUNT => query.u32(object.references()),
        CL_QUEUE_PROPERTIES => query.u64(queue.properties),
        CL_QUEUE_DEVICE_DEFAULT => query.object(None),
        CL_QUEUE_PROPERTIES_ARRAY => query.words(queue.list.iter().copied()),
        _ => STATUSES.invalid,
    }
}

#[no_mangle]
pub unsafe extern "C" fn clFinish(queue: *mut Object) -> i32 {
    transfers::reached(front().with_deferred(remote::clFinish(queue)))
}
