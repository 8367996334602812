//! Programs: their sources and binaries, and how they are built.

use std::collections::HashMap;
use std::ffi::{c_char, c_void, CStr};
use std::sync::{Arc, Mutex};

use gpuremote_client::wire::Encoder;

use crate::contexts::{at_the_end, Notify};
use crate::front;
use crate::info::Query;
use crate::kernels::Parameters;
use crate::objects::{handed, object, objects, Data, Object};
use crate::platforms::listed;
use crate::remote::{ok, status};
use crate::stubs::{kinds, numbers, remote, STATUSES};

const CL_INVALID_DEVICE: i32 = -33;
const CL_INVALID_CONTEXT: i32 = -34;
const CL_INVALID_BINARY: i32 = -42;
const CL_INVALID_PROGRAM: i32 = -44;

const CL_PROGRAM_REFERENCE_COUNT: u32 = 0x1160;
const CL_PROGRAM_CONTEXT: u32 = 0x1161;
const CL_PROGRAM_NUM_DEVICES: u32 = 0x1162;
const CL_PROGRAM_DEVICES: u32 = 0x1163;
const CL_PROGRAM_SOURCE: u32 = 0x1164;
const CL_PROGRAM_BINARY_SIZES: u32 = 0x1165;
const CL_PROGRAM_BINARIES: u32 = 0x1166;
const CL_PROGRAM_BUILD_OPTIONS: u32 = 0x1182;

/// A program.
#[derive(Default)]
pub(crate) struct Program {
    /// Its devices; empty: those of its context.
    devices: Vec<Arc<Object>>,
    source: Vec<u8>,
    /// The options of the last build, by the device's number.
    options: Mutex<HashMap<u64, Vec<u8>>>,
    /// What kernels take, by name.
    pub kernels: Mutex<HashMap<Vec<u8>, Arc<Parameters>>>,
}

fn devices(program: &Arc<Object>) -> &[Arc<Object>] {
    match program.as_program().devices.as_slice() {
        [] => &program.context().as_context().devices,
        devices => devices,
    }
}

unsafe fn with_source(context: *mut Object, count: u32, texts: *const *const u8, lengths: *const usize) -> Result<Arc<Object>, i32> {
    let context = object(kinds::cl_context, context).ok_or(CL_INVALID_CONTEXT)?;
    if count == 0 || texts.is_null() {
        return Err(STATUSES.invalid);
    }
    let mut source = Vec::new();
    for i in 0..count as usize {
        let text = *texts.add(i);
        if text.is_null() {
            return Err(STATUSES.invalid);
        }
        // A length of 0 means that a zero byte ends the text.
        match if lengths.is_null() { 0 } else { *lengths.add(i) } {
            0 => source.extend_from_slice(CStr::from_ptr(text.cast()).to_bytes()),
            length => source.extend_from_slice(std::slice::from_raw_parts(text, length)),
        }
    }
    let number = front().mint(kinds::cl_program);
    let arguments = |encoder: &mut Encoder| {
        encoder.u64(number);
        encoder.u64(context.number);
        encoder.usize(source.len());
    };
    // Any text is a source, so nobody waits here; building it tells what is wrong.
    let posted = front().post_data(numbers::clCreateProgramWithSource, arguments, &source);
    if posted != STATUSES.ok {
        front().unmint(kinds::cl_program, number);
        return Err(posted);
    }
    let data = Data::Program(Program { source, ..Program::default() });
    Ok(Object::new(kinds::cl_program, number, Some(context), numbers::clCreateProgramWithSource, data))
}

#[no_mangle]
pub unsafe extern "C" fn clCreateProgramWithSource(
    context: *mut Object,
    count: u32,
    texts: *const *const u8,
    lengths: *const usize,
    errcode: *mut i32,
) -> *mut Object {
    handed(with_source(context, count, texts, lengths), errcode)
}

unsafe fn with_binary(
    context: *mut Object,
    count: u32,
    list: *const *mut Object,
    lengths: *const usize,
    binaries: *const *const u8,
    statuses: *mut i32,
) -> Result<Arc<Object>, i32> {
    let context = object(kinds::cl_context, context).ok_or(CL_INVALID_CONTEXT)?;
    let devices = listed(count, list)?;
    if lengths.is_null() || binaries.is_null() {
        return Err(STATUSES.invalid);
    }
    let mut data = Vec::new();
    for i in 0..devices.len() {
        if (*binaries.add(i)).is_null() || *lengths.add(i) == 0 {
            if !statuses.is_null() {
                *statuses.add(i) = STATUSES.invalid;
            }
            return Err(STATUSES.invalid);
        }
        data.extend_from_slice(std::slice::from_raw_parts(*binaries.add(i), *lengths.add(i)));
    }
    let mut each = Vec::new();
    let mut told = STATUSES.ok;
    let created = front().create(
        (kinds::cl_program, numbers::clCreateProgramWithBinary),
        |encoder| {
            encoder.u64(context.number);
            encoder.u32(count);
            for (i, device) in devices.iter().enumerate() {
                encoder.u64(device.number);
                encoder.usize(*lengths.add(i));
            }
        },
        Some(&data),
        |decoder| {
            told = decoder.i32()?;
            for _ in 0..count {
                each.push(decoder.i32()?);
            }
            Ok(())
        },
        || (Arc::clone(&context), Data::Program(Program { devices: devices.clone(), ..Program::default() })),
    );
    if !statuses.is_null() {
        for (i, &status) in each.iter().enumerate() {
            *statuses.add(i) = status;
        }
    }
    let program = created?;
    ok(told)?;
    Ok(program)
}

#[no_mangle]
pub unsafe extern "C" fn clCreateProgramWithBinary(
    context: *mut Object,
    count: u32,
    devices: *const *mut Object,
    lengths: *const usize,
    binaries: *const *const u8,
    statuses: *mut i32,
    errcode: *mut i32,
) -> *mut Object {
    handed(with_binary(context, count, devices, lengths, binaries, statuses), errcode)
}

/// What building, compiling and linking have in common.
struct Build {
    /// None: all of the program's devices.
    devices: Option<Vec<Arc<Object>>>,
    options: Vec<u8>,
    notify: Option<Notify>,
    data: *mut c_void,
}

impl Build {
    unsafe fn new(
        (count, devices): (u32, *const *mut Object),
        options: *const c_char,
        notify: Option<Notify>,
        data: *mut c_void,
    ) -> Result<Self, i32> {
        if devices.is_null() != (count == 0) || (notify.is_none() && !data.is_null()) {
            return Err(STATUSES.invalid);
        }
        let devices = match count {
            0 => None,
            _ => Some(objects(kinds::cl_device_id, devices, count as usize).ok_or(CL_INVALID_DEVICE)?),
        };
        let options = if options.is_null() { Vec::new() } else { CStr::from_ptr(options).to_bytes().to_vec() };
        Ok(Build { devices, options, notify, data })
    }

    fn encode(&self, encoder: &mut Encoder) {
        let devices = self.devices.as_deref().unwrap_or_default();
        encoder.u32(devices.len() as u32);
        devices.iter().for_each(|device| encoder.u64(device.number));
        encoder.bytes_counted(&self.options);
    }

    /// Keeps what was asked for, whatever came of it, and tells the program that it is done.
    unsafe fn settle(&self, program: &Arc<Object>) {
        let of_program = program.as_program();
        let mut options = of_program.options.lock().expect("no one panics with this lock");
        for device in self.devices.as_deref().unwrap_or(devices(program)) {
            options.insert(device.number, self.options.clone());
        }
        drop(options);
        of_program.kernels.lock().expect("no one panics with this lock").clear();
        if let Some(notify) = self.notify {
            notify(program.address(), self.data);
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn clBuildProgram(
    program: *mut Object,
    count: u32,
    devices: *const *mut Object,
    options: *const c_char,
    notify: Option<Notify>,
    data: *mut c_void,
) -> i32 {
    let run = || {
        let program = object(kinds::cl_program, program).ok_or(CL_INVALID_PROGRAM)?;
        let build = Build::new((count, devices), options, notify, data)?;
        let arguments = |encoder: &mut Encoder| {
            encoder.u64(program.number);
            build.encode(encoder);
        };
        let status = front().call(numbers::clBuildProgram, arguments, |_| Ok(()));
        build.settle(&program);
        ok(status)
    };
    status(run())
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn clCompileProgram(
    program: *mut Object,
    count: u32,
    devices: *const *mut Object,
    options: *const c_char,
    header_count: u32,
    headers: *const *mut Object,
    names: *const *const c_char,
    notify: Option<Notify>,
    data: *mut c_void,
) -> i32 {
    let run = || {
        let program = object(kinds::cl_program, program).ok_or(CL_INVALID_PROGRAM)?;
        let build = Build::new((count, devices), options, notify, data)?;
        if headers.is_null() != (header_count == 0) || names.is_null() != (header_count == 0) {
            return Err(STATUSES.invalid);
        }
        let headers = objects(kinds::cl_program, headers, header_count as usize).ok_or(CL_INVALID_PROGRAM)?;
        let arguments = |encoder: &mut Encoder| {
            encoder.u64(program.number);
            build.encode(encoder);
            encoder.u32(header_count);
            for (i, header) in headers.iter().enumerate() {
                encoder.u64(header.number);
                encoder.bytes_counted(CStr::from_ptr(*names.add(i)).to_bytes());
            }
        };
        let status = front().call(numbers::clCompileProgram, arguments, |_| Ok(()));
        build.settle(&program);
        ok(status)
    };
    status(run())
}

#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn clLinkProgram(
    context: *mut Object,
    count: u32,
    devices: *const *mut Object,
    options: *const c_char,
    part_count: u32,
    parts: *const *mut Object,
    notify: Option<Notify>,
    data: *mut c_void,
    errcode: *mut i32,
) -> *mut Object {
    let mut linked = STATUSES.ok;
    let mut run = || {
        let context = object(kinds::cl_context, context).ok_or(CL_INVALID_CONTEXT)?;
        let build = Build::new((count, devices), options, notify, data)?;
        if parts.is_null() || part_count == 0 {
            return Err(STATUSES.invalid);
        }
        let parts = objects(kinds::cl_program, parts, part_count as usize).ok_or(CL_INVALID_PROGRAM)?;
        let program = front().create(
            (kinds::cl_program, numbers::clLinkProgram),
            |encoder| {
                encoder.u64(context.number);
                build.encode(encoder);
                encoder.u32(part_count);
                parts.iter().for_each(|part| encoder.u64(part.number));
            },
            None,
            |decoder| {
                // A program that can't be linked is one all the same: its log tells why.
                linked = decoder.i32()?;
                Ok(())
            },
            || {
                let devices = build.devices.clone().unwrap_or_default();
                (Arc::clone(&context), Data::Program(Program { devices, ..Program::default() }))
            },
        )?;
        build.settle(&program);
        Ok(program)
    };
    let program = handed(run(), errcode);
    if !program.is_null() && !errcode.is_null() {
        *errcode = linked;
    }
    program
}

#[no_mangle]
pub extern "C" fn clUnloadCompiler() -> i32 {
    STATUSES.ok
}

#[no_mangle]
pub unsafe extern "C" fn clSetProgramReleaseCallback(program: *mut Object, notify: Option<Notify>, data: *mut c_void) -> i32 {
    at_the_end(object(kinds::cl_program, program), CL_INVALID_PROGRAM, notify, data)
}

/// Lengths of the program's binaries, in bytes.
unsafe fn binary_lengths(program: *mut Object) -> Result<Vec<usize>, i32> {
    let of_program = object(kinds::cl_program, program).ok_or(CL_INVALID_PROGRAM)?;
    let mut lengths = vec![0usize; devices(&of_program).len()];
    let bytes = size_of_val(lengths.as_slice());
    let mut filled = 0;
    ok(remote::clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, bytes, lengths.as_mut_ptr().cast(), &mut filled))?;
    Ok(lengths)
}

/// Fills what the program's pointers name, one for each device; null ones are left out.
unsafe fn binaries(program: *mut Object, query: &Query) -> Result<(), i32> {
    let number = object(kinds::cl_program, program).ok_or(CL_INVALID_PROGRAM)?.number;
    let lengths = binary_lengths(program)?;
    let bytes = lengths.len() * size_of::<*mut u8>();
    if !query.size_ret.is_null() {
        *query.size_ret = bytes;
    }
    if query.into.is_null() {
        return Ok(());
    }
    if query.size < bytes {
        return Err(STATUSES.invalid);
    }
    for (i, &length) in lengths.iter().enumerate() {
        let into = *query.into.cast::<*mut u8>().add(i);
        if into.is_null() || length == 0 {
            continue;
        }
        let arguments = |encoder: &mut Encoder| {
            encoder.u64(number);
            encoder.u32(i as u32);
            encoder.usize(length);
        };
        let fetched = front().fetch(numbers::nearmetalProgramBinary, arguments, std::slice::from_raw_parts_mut(into, length));
        ok(fetched).map_err(|status| if status == STATUSES.invalid { CL_INVALID_BINARY } else { status })?;
    }
    Ok(())
}

#[no_mangle]
pub unsafe extern "C" fn clGetProgramInfo(program: *mut Object, name: u32, size: usize, into: *mut u8, size_ret: *mut usize) -> i32 {
    let Some(object) = object(kinds::cl_program, program) else { return CL_INVALID_PROGRAM };
    let query = Query { size, into, size_ret };
    match name {
        CL_PROGRAM_REFERENCE_COUNT => query.u32(object.references()),
        CL_PROGRAM_CONTEXT => query.object(Some(object.context())),
        CL_PROGRAM_NUM_DEVICES => query.u32(devices(&object).len() as u32),
        CL_PROGRAM_DEVICES => query.objects(devices(&object)),
        CL_PROGRAM_SOURCE => {
            let mut source = object.as_program().source.clone();
            source.push(0);
            query.bytes(&source)
        }
        CL_PROGRAM_BINARIES => status(binaries(program, &query)),
        _ => remote::clGetProgramInfo(program, name, size, into, size_ret),
    }
}

#[no_mangle]
pub unsafe extern "C" fn clGetProgramBuildInfo(
    program: *mut Object,
    device: *mut Object,
    name: u32,
    size: usize,
    into: *mut u8,
    size_ret: *mut usize,
) -> i32 {
    let (Some(object), Some(of_device)) = (object(kinds::cl_program, program), object(kinds::cl_device_id, device)) else {
        return remote::clGetProgramBuildInfo(program, device, name, size, into, size_ret);
    };
    if name == CL_PROGRAM_BUILD_OPTIONS {
        // The server builds with one option more.
        let mut options =
            object.as_program().options.lock().expect("no one panics with this lock").get(&of_device.number).cloned().unwrap_or_default();
        options.push(0);
        return Query { size, into, size_ret }.bytes(&options);
    }
    remote::clGetProgramBuildInfo(program, device, name, size, into, size_ret)
}
