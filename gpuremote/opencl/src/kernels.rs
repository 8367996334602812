//! Kernels and their launches. Nobody waits for a launch: what is wrong with it is found here as far as it can be.

use std::cell::RefCell;
use std::ffi::{c_char, CStr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use gpuremote_client::wire::Encoder;

use crate::front;
use crate::info::Query;
use crate::objects::{handed, lives, object, Data, Object};
use crate::remote::ok;
use crate::stubs::{kinds, numbers, remote, STATUSES};

const CL_INVALID_MEM_OBJECT: i32 = -38;
const CL_INVALID_SAMPLER: i32 = -41;
const CL_INVALID_PROGRAM: i32 = -44;
const CL_INVALID_KERNEL: i32 = -48;
const CL_INVALID_ARG_INDEX: i32 = -49;
const CL_INVALID_ARG_VALUE: i32 = -50;
const CL_INVALID_ARG_SIZE: i32 = -51;
const CL_INVALID_KERNEL_ARGS: i32 = -52;
const CL_INVALID_WORK_DIMENSION: i32 = -53;
const CL_INVALID_WORK_GROUP_SIZE: i32 = -54;
const CL_INVALID_WORK_ITEM_SIZE: i32 = -55;
const CL_INVALID_GLOBAL_WORK_SIZE: i32 = -63;

const CL_KERNEL_NUM_ARGS: u32 = 0x1191;
const CL_KERNEL_REFERENCE_COUNT: u32 = 0x1192;
const CL_KERNEL_CONTEXT: u32 = 0x1193;
const CL_KERNEL_PROGRAM: u32 = 0x1194;
const CL_KERNEL_WORK_GROUP_SIZE: u32 = 0x11b0;
const CL_KERNEL_COMPILE_WORK_GROUP_SIZE: u32 = 0x11b1;
const CL_DEVICE_MAX_WORK_ITEM_SIZES: u32 = 0x1005;
const CL_DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT: u32 = 0x1065;
const CL_PROGRAM_KERNEL_NAMES: u32 = 0x1168;

/// What an argument is, as the server tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Value,
    Memory,
    Sampler,
    Local,
    /// The program's binary does not tell.
    Unknown,
}

/// What a kernel takes.
pub(crate) struct Parameters {
    kinds: Vec<Kind>,
    /// For each argument the size that the driver has accepted, in bytes; `usize::MAX`: none yet.
    accepted: Vec<AtomicUsize>,
}

/// A kernel.
pub(crate) struct Kernel {
    parameters: Arc<Parameters>,
    /// Which arguments are set.
    set: Vec<AtomicBool>,
    /// What bounds a launch, by the device's number.
    limits: Mutex<Vec<(u64, Limits)>>,
}

/// What bounds the size of work groups.
#[derive(Clone, Copy)]
struct Limits {
    group: usize,
    /// The size that the kernel was made for; zeros: any.
    fixed: [usize; 3],
    sides: [usize; 3],
    uneven: bool,
}

impl Kernel {
    fn new(parameters: Arc<Parameters>) -> Self {
        let set = parameters.kinds.iter().map(|_| AtomicBool::new(false)).collect();
        Kernel { parameters, set, limits: Mutex::default() }
    }
}

unsafe fn create(program: *mut Object, name: *const c_char) -> Result<Arc<Object>, i32> {
    let program = object(kinds::cl_program, program).ok_or(CL_INVALID_PROGRAM)?;
    if name.is_null() {
        return Err(STATUSES.invalid);
    }
    let name = CStr::from_ptr(name).to_bytes();
    let known = &program.as_program().kernels;
    let kinds_of_arguments = RefCell::new(Vec::new());
    let kernel = front().create(
        (kinds::cl_kernel, numbers::clCreateKernel),
        |encoder| {
            encoder.u64(program.number);
            encoder.bytes_counted(name);
        },
        None,
        |decoder| {
            for _ in 0..decoder.u32()? {
                kinds_of_arguments.borrow_mut().push(match decoder.u8()? {
                    0 => Kind::Value,
                    1 => Kind::Memory,
                    2 => Kind::Sampler,
                    3 => Kind::Local,
                    _ => Kind::Unknown,
                });
            }
            Ok(())
        },
        || {
            let mut known = known.lock().expect("no one panics with this lock");
            let parameters = known.entry(name.to_vec()).or_insert_with(|| {
                let kinds_of_arguments = kinds_of_arguments.take();
                let accepted = kinds_of_arguments.iter().map(|_| AtomicUsize::new(usize::MAX)).collect();
                Arc::new(Parameters { kinds: kinds_of_arguments, accepted })
            });
            (Arc::clone(&program), Data::Kernel(Kernel::new(Arc::clone(parameters))))
        },
    )?;
    Ok(kernel)
}

#[no_mangle]
pub unsafe extern "C" fn clCreateKernel(program: *mut Object, name: *const c_char, errcode: *mut i32) -> *mut Object {
    handed(create(program, name), errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clCreateKernelsInProgram(program: *mut Object, count: u32, into: *mut *mut Object, found: *mut u32) -> i32 {
    let mut length = 0;
    let status = remote::clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, 0, std::ptr::null_mut(), &mut length);
    if status != STATUSES.ok {
        return status;
    }
    let mut text = vec![0u8; length];
    let status = remote::clGetProgramInfo(program, CL_PROGRAM_KERNEL_NAMES, length, text.as_mut_ptr(), std::ptr::null_mut());
    if status != STATUSES.ok {
        return status;
    }
    // Names are apart by semicolons, and a zero byte ends the last.
    let names: Vec<Vec<u8>> = text
        .split(|&byte| byte == b';' || byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| name.iter().copied().chain([0]).collect())
        .collect();
    if !found.is_null() {
        *found = names.len() as u32;
    }
    if into.is_null() {
        return STATUSES.ok;
    }
    if (count as usize) < names.len() {
        return STATUSES.invalid;
    }
    let kernels: Result<Vec<_>, i32> = names.iter().map(|name| create(program, name.as_ptr().cast())).collect();
    match kernels {
        Err(status) => status,
        Ok(kernels) => {
            for (i, kernel) in kernels.iter().enumerate() {
                *into.add(i) = kernel.give();
            }
            STATUSES.ok
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn clCloneKernel(kernel: *mut Object, errcode: *mut i32) -> *mut Object {
    let run = || {
        let source = object(kinds::cl_kernel, kernel).ok_or(CL_INVALID_KERNEL)?;
        front().create(
            (kinds::cl_kernel, numbers::clCloneKernel),
            |encoder| encoder.u64(source.number),
            None,
            |_| Ok(()),
            || {
                let (parent, of_source) = (source.parent.clone().expect("a kernel comes from a program"), source.as_kernel());
                let clone = Kernel::new(Arc::clone(&of_source.parameters));
                for (set, of_source) in clone.set.iter().zip(&of_source.set) {
                    set.store(of_source.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                (parent, Data::Kernel(clone))
            },
        )
    };
    handed(run(), errcode)
}

#[no_mangle]
pub unsafe extern "C" fn clGetKernelInfo(kernel: *mut Object, name: u32, size: usize, into: *mut u8, size_ret: *mut usize) -> i32 {
    let Some(object) = object(kinds::cl_kernel, kernel) else { return CL_INVALID_KERNEL };
    let query = Query { size, into, size_ret };
    match name {
        CL_KERNEL_NUM_ARGS => query.u32(object.as_kernel().parameters.kinds.len() as u32),
        CL_KERNEL_REFERENCE_COUNT => query.u32(object.references()),
        CL_KERNEL_CONTEXT => query.object(Some(object.context())),
        CL_KERNEL_PROGRAM => query.object(object.parent.as_ref()),
        _ => remote::clGetKernelInfo(kernel, name, size, into, size_ret),
    }
}

/// An argument's value, as it travels.
enum Value<'a> {
    Bytes(&'a [u8]),
    /// A memory object or a sampler, by number; 0: null.
    Object(u64),
    Local,
}

/// The value of an argument of this kind.
unsafe fn value<'a>(kind: Kind, bytes: usize, value: *const u8) -> Result<Value<'a>, i32> {
    let of_object = || value.cast::<*mut Object>().read_unaligned();
    match kind {
        Kind::Local if !value.is_null() => Err(CL_INVALID_ARG_VALUE),
        Kind::Local if bytes == 0 => Err(CL_INVALID_ARG_SIZE),
        Kind::Local => Ok(Value::Local),
        Kind::Memory | Kind::Sampler if bytes != size_of::<*mut Object>() => Err(CL_INVALID_ARG_SIZE),
        Kind::Memory if value.is_null() || of_object().is_null() => Ok(Value::Object(0)),
        Kind::Memory => Ok(Value::Object(object(kinds::cl_mem, of_object()).ok_or(CL_INVALID_MEM_OBJECT)?.number)),
        Kind::Sampler if value.is_null() => Err(CL_INVALID_SAMPLER),
        Kind::Sampler => Ok(Value::Object(object(kinds::cl_sampler, of_object()).ok_or(CL_INVALID_SAMPLER)?.number)),
        Kind::Unknown if value.is_null() => Ok(Value::Local),
        // Nothing says what it is, so what looks like one of our objects is one.
        Kind::Unknown if bytes == size_of::<*mut Object>() && lives(of_object() as usize) => Ok(Value::Object((*of_object()).number)),
        Kind::Value if value.is_null() => Err(CL_INVALID_ARG_VALUE),
        Kind::Value | Kind::Unknown => Ok(Value::Bytes(std::slice::from_raw_parts(value, bytes))),
    }
}

#[no_mangle]
pub unsafe extern "C" fn clSetKernelArg(kernel: *mut Object, index: u32, bytes: usize, at: *const u8) -> i32 {
    let Some(object) = object(kinds::cl_kernel, kernel) else { return CL_INVALID_KERNEL };
    let of_kernel = object.as_kernel();
    let Some(&kind) = of_kernel.parameters.kinds.get(index as usize) else { return CL_INVALID_ARG_INDEX };
    let value = match value(kind, bytes, at) {
        Ok(value) => value,
        Err(status) => return status,
    };
    let arguments = |encoder: &mut Encoder| {
        encoder.u64(object.number);
        encoder.u32(index);
        encoder.usize(bytes);
        match value {
            Value::Bytes(bytes) => {
                encoder.u8(0);
                encoder.raw(bytes);
            }
            Value::Object(number) => {
                encoder.u8(if kind == Kind::Sampler { 2 } else { 1 });
                encoder.u64(number);
            }
            Value::Local => encoder.u8(3),
        }
    };
    // The driver's word on the size of an argument is waited for once, also where the argument's kind is a guess.
    let accepted = &of_kernel.parameters.accepted[index as usize];
    let status = if accepted.load(Ordering::Relaxed) == bytes {
        front().post(numbers::clSetKernelArg, arguments)
    } else {
        front().call(numbers::clSetKernelArg, arguments, |_| Ok(()))
    };
    if status == STATUSES.ok {
        accepted.store(bytes, Ordering::Relaxed);
        of_kernel.set[index as usize].store(true, Ordering::Relaxed);
    }
    status
}

/// What bounds a launch on the queue's device.
fn limits(kernel: &Arc<Object>, device: &Arc<Object>) -> Result<Limits, i32> {
    let mut kept = kernel.as_kernel().limits.lock().expect("no one panics with this lock");
    if let Some((_, limits)) = kept.iter().find(|(number, _)| *number == device.number) {
        return Ok(*limits);
    }
    let sizes = |value: &[u8]| -> Vec<usize> {
        value.chunks_exact(8).map(|word| usize::from_le_bytes(word.try_into().expect("8 bytes"))).collect()
    };
    let group_info = |name: u32| {
        let mut value = Vec::new();
        let arguments = |encoder: &mut Encoder| {
            encoder.u64(kernel.number);
            encoder.u64(device.number);
            encoder.u32(name);
        };
        let status = front().ask_of(kernel, numbers::clGetKernelWorkGroupInfo, arguments, |decoder| {
            value = decoder.bytes_counted()?.to_vec();
            Ok(())
        });
        ok(status).map(|()| sizes(&value))
    };
    let three = |values: Vec<usize>| <[usize; 3]>::try_from(values).map_err(|_| STATUSES.lost);
    let device_info = |name| front().info(device, numbers::clGetDeviceInfo, name);
    let sides = sizes(&device_info(CL_DEVICE_MAX_WORK_ITEM_SIZES)?);
    let limits = Limits {
        group: group_info(CL_KERNEL_WORK_GROUP_SIZE)?.first().copied().unwrap_or(usize::MAX),
        fixed: three(group_info(CL_KERNEL_COMPILE_WORK_GROUP_SIZE)?)?,
        sides: [0, 1, 2].map(|i| sides.get(i).copied().unwrap_or(1)),
        uneven: device_info(CL_DEVICE_NON_UNIFORM_WORK_GROUP_SUPPORT).is_ok_and(|value| value.first() == Some(&1)),
    };
    kept.push((device.number, limits));
    Ok(limits)
}

impl Limits {
    /// Whether a launch is within them.
    fn check(&self, global: &[usize], local: Option<&[usize]>) -> Result<(), i32> {
        let Some(local) = local else {
            return Ok(());
        };
        let items = local.iter().try_fold(1usize, |product, &side| product.checked_mul(side));
        // Some drivers report a smaller group than the one that the kernel is made for, and run it.
        let made_for = self.fixed != [0; 3];
        if local.contains(&0) || items.is_none_or(|items| items > self.group && !made_for) {
            return Err(CL_INVALID_WORK_GROUP_SIZE);
        }
        if local.iter().zip(self.sides).any(|(&side, most)| side > most) {
            return Err(CL_INVALID_WORK_ITEM_SIZE);
        }
        let differs = made_for && self.fixed.iter().enumerate().any(|(i, &side)| local.get(i).copied().unwrap_or(1) != side);
        let uneven = global.iter().zip(local).any(|(&global, &local)| global % local != 0);
        if differs || (uneven && !self.uneven) {
            return Err(CL_INVALID_WORK_GROUP_SIZE);
        }
        Ok(())
    }
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn clEnqueueNDRangeKernel(
    queue: *mut Object,
    kernel: *mut Object,
    dimensions: u32,
    offset: *const usize,
    global: *const usize,
    local: *const usize,
    count: u32,
    events: *const *mut Object,
    event: *mut *mut Object,
) -> i32 {
    let Some(of_queue) = object(kinds::cl_command_queue, queue) else { return -36 };
    let Some(of_kernel) = object(kinds::cl_kernel, kernel) else { return CL_INVALID_KERNEL };
    if !(1..=3).contains(&dimensions) {
        return CL_INVALID_WORK_DIMENSION;
    }
    if global.is_null() {
        return CL_INVALID_GLOBAL_WORK_SIZE;
    }
    if of_kernel.as_kernel().set.iter().any(|set| !set.load(Ordering::Relaxed)) {
        return CL_INVALID_KERNEL_ARGS;
    }
    let slice = |sizes: *const usize| std::slice::from_raw_parts(sizes, dimensions as usize);
    let local_sizes = (!local.is_null()).then(|| slice(local));
    let checked = limits(&of_kernel, &of_queue.as_queue().device).and_then(|limits| limits.check(slice(global), local_sizes));
    if let Err(status) = checked {
        return status;
    }
    remote::clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, local, count, events, event)
}

#[no_mangle]
pub unsafe extern "C" fn clEnqueueTask(
    queue: *mut Object,
    kernel: *mut Object,
    count: u32,
    events: *const *mut Object,
    event: *mut *mut Object,
) -> i32 {
    clEnqueueNDRangeKernel(queue, kernel, 1, std::ptr::null(), &1, &1, count, events, event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_outside_the_limits_are_refused() {
        let limits = Limits { group: 64, fixed: [0; 3], sides: [64, 64, 2], uneven: false };
        assert_eq!(limits.check(&[100], None), Ok(()));
        assert_eq!(limits.check(&[128, 2], Some(&[32, 2])), Ok(()));
        assert_eq!(limits.check(&[128], Some(&[128])), Err(CL_INVALID_WORK_GROUP_SIZE));
        assert_eq!(limits.check(&[4, 4, 4], Some(&[1, 1, 4])), Err(CL_INVALID_WORK_ITEM_SIZE));
        assert_eq!(limits.check(&[100], Some(&[32])), Err(CL_INVALID_WORK_GROUP_SIZE));
        assert_eq!(Limits { uneven: true, ..limits }.check(&[100], Some(&[32])), Ok(()));
        let made_for = Limits { fixed: [8, 8, 1], ..limits };
        assert_eq!(made_for.check(&[16, 16], Some(&[8, 8])), Ok(()));
        assert_eq!(made_for.check(&[16, 16], Some(&[16, 4])), Err(CL_INVALID_WORK_GROUP_SIZE));
        let reported_too_small = Limits { group: 32, ..made_for };
        assert_eq!(reported_too_small.check(&[16, 16], Some(&[8, 8])), Ok(()));
    }
}
