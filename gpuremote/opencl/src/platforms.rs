//! Platforms and devices: those of the server, with what does not reach across hosts left out.

use std::sync::{Arc, OnceLock};

use crate::front;
use crate::info::Query;
use crate::objects::{object, objects, Data, Object};
use crate::remote::ok;
use crate::stubs::{kinds, numbers, remote, STATUSES};

const CL_PLATFORM_NOT_FOUND_KHR: i32 = -1001;
const CL_DEVICE_NOT_FOUND: i32 = -1;
const CL_INVALID_DEVICE_TYPE: i32 = -31;
const CL_INVALID_PLATFORM: i32 = -32;
const CL_INVALID_DEVICE: i32 = -33;
const CL_INVALID_DEVICE_PARTITION_COUNT: i32 = -68;

const CL_PLATFORM_VERSION: u32 = 0x0901;
const CL_PLATFORM_EXTENSIONS: u32 = 0x0904;
const CL_PLATFORM_NUMERIC_VERSION: u32 = 0x0906;
const CL_PLATFORM_EXTENSIONS_WITH_VERSION: u32 = 0x0907;

const CL_DEVICE_TYPE_ALL: u64 = 0xffff_ffff;
const CL_DEVICE_TYPES: u64 = 0x1f;

const CL_DEVICE_EXECUTION_CAPABILITIES: u32 = 0x1029;
const CL_DEVICE_VERSION: u32 = 0x102f;
const CL_DEVICE_EXTENSIONS: u32 = 0x1030;
const CL_DEVICE_PLATFORM: u32 = 0x1031;
const CL_DEVICE_PARENT_DEVICE: u32 = 0x1042;
const CL_DEVICE_REFERENCE_COUNT: u32 = 0x1047;
const CL_DEVICE_IL_VERSION: u32 = 0x105b;
const CL_DEVICE_NUMERIC_VERSION: u32 = 0x105e;
const CL_DEVICE_EXTENSIONS_WITH_VERSION: u32 = 0x1060;
const CL_DEVICE_ILS_WITH_VERSION: u32 = 0x1061;

/// Abilities that end at the host's border: CL_DEVICE_HOST_UNIFIED_MEMORY, _QUEUE_ON_DEVICE_PROPERTIES, _PREFERRED_SIZE and _MAX_SIZE,
/// _MAX_ON_DEVICE_QUEUES, _MAX_ON_DEVICE_EVENTS, _SVM_CAPABILITIES, _MAX_PIPE_ARGS, _PIPE_MAX_ACTIVE_RESERVATIONS, _PIPE_MAX_PACKET_SIZE,
/// _DEVICE_ENQUEUE_CAPABILITIES and _PIPE_SUPPORT. Each is a number, and 0 says that there is no such thing.
const WITHOUT: [u32; 12] = [0x1035, 0x104e, 0x104f, 0x1050, 0x1051, 0x1052, 0x1053, 0x1055, 0x1056, 0x1057, 0x1070, 0x1071];
/// CL_EXEC_NATIVE_KERNEL: a function of the program's own runs as a command.
const NATIVE_KERNELS: u64 = 2;

/// The newest version that this library has.
const NEWEST: (u32, u32) = (3, 0);

/// Extensions of OpenCL C, and such of queries only. Others have functions that this library lacks.
const EXTENSIONS: [&str; 37] = [
    "cl_ext_float_atomics",
    "cl_khr_3d_image_writes",
    "cl_khr_byte_addressable_store",
    "cl_khr_depth_images",
    "cl_khr_device_uuid",
    "cl_khr_expect_assume",
    "cl_khr_extended_bit_ops",
    "cl_khr_extended_versioning",
    "cl_khr_fp16",
    "cl_khr_fp64",
    "cl_khr_global_int32_base_atomics",
    "cl_khr_global_int32_extended_atomics",
    "cl_khr_icd",
    "cl_khr_image2d_from_buffer",
    "cl_khr_int64_base_atomics",
    "cl_khr_int64_extended_atomics",
    "cl_khr_integer_dot_product",
    "cl_khr_kernel_clock",
    "cl_khr_local_int32_base_atomics",
    "cl_khr_local_int32_extended_atomics",
    "cl_khr_pci_bus_info",
    "cl_khr_select_fprounding_mode",
    "cl_khr_spir",
    "cl_khr_subgroup_ballot",
    "cl_khr_subgroup_clustered_reduce",
    "cl_khr_subgroup_extended_types",
    "cl_khr_subgroup_non_uniform_arithmetic",
    "cl_khr_subgroup_non_uniform_vote",
    "cl_khr_subgroup_rotate",
    "cl_khr_subgroup_shuffle",
    "cl_khr_subgroup_shuffle_relative",
    "cl_khr_subgroups",
    "cl_khr_work_group_uniform_arithmetic",
    "cl_nv_compiler_options",
    "cl_nv_device_attribute_query",
    "cl_nv_kernel_attribute",
    "cl_nv_pragma_unroll",
];

/// The most platforms of a server, and devices of a platform.
const MOST_PLATFORMS: usize = 16;
const MOST_DEVICES: usize = 64;

/// A platform's devices, once they are known.
#[derive(Default)]
pub(crate) struct Platform {
    devices: OnceLock<Vec<Arc<Object>>>,
}

/// A device.
pub(crate) struct Device {
    /// Bits of `cl_device_type`.
    types: u64,
}

impl Object {
    /// Whether this is a device that is no part of another.
    pub fn is_root_device(&self) -> bool {
        self.kind == kinds::cl_device_id && self.parent.as_ref().is_some_and(|parent| parent.kind == kinds::cl_platform_id)
    }

    /// The platform of a device.
    pub fn platform(self: &Arc<Self>) -> &Arc<Object> {
        let mut object = self;
        while let Some(parent) = &object.parent {
            object = parent;
        }
        object
    }
}

/// The server's platforms. They are the same for the life of this process.
pub(crate) fn platforms() -> &'static [Arc<Object>] {
    static PLATFORMS: OnceLock<Vec<Arc<Object>>> = OnceLock::new();
    PLATFORMS.get_or_init(|| {
        // Without a server's address this library is installed, but not in use.
        if !gpuremote_client::knows_server() {
            return Vec::new();
        }
        let minted: Vec<u64> = (0..MOST_PLATFORMS).map(|_| front().mint(kinds::cl_platform_id)).collect();
        let mut count = 0;
        front().call(
            numbers::clGetPlatformIDs,
            |encoder| minted.iter().for_each(|&number| encoder.u64(number)),
            |decoder| {
                count = decoder.u32()? as usize;
                Ok(())
            },
        );
        minted.iter().skip(count).for_each(|&number| front().unmint(kinds::cl_platform_id, number));
        let platform = |&number: &u64| {
            Object::new(kinds::cl_platform_id, number, None, numbers::clGetPlatformIDs, Data::Platform(Platform::default()))
        };
        minted.iter().take(count).map(platform).collect()
    })
}

/// The platform's devices.
pub(crate) fn devices(platform: &Arc<Object>) -> &[Arc<Object>] {
    let Data::Platform(of_platform) = &platform.data else { return &[] };
    of_platform.devices.get_or_init(|| {
        let minted: Vec<u64> = (0..MOST_DEVICES).map(|_| front().mint(kinds::cl_device_id)).collect();
        let mut types = Vec::new();
        front().call(
            numbers::clGetDeviceIDs,
            |encoder| {
                encoder.u64(platform.number);
                minted.iter().for_each(|&number| encoder.u64(number));
            },
            |decoder| {
                for _ in 0..decoder.u32()? {
                    types.push(decoder.u64()?);
                }
                Ok(())
            },
        );
        minted.iter().skip(types.len()).for_each(|&number| front().unmint(kinds::cl_device_id, number));
        let device = |(types, number)| {
            let data = Data::Device(Device { types });
            Object::new(kinds::cl_device_id, number, Some(Arc::clone(platform)), numbers::clGetDeviceIDs, data)
        };
        types.into_iter().zip(minted).map(device).collect()
    })
}

/// The platform's devices of these types.
pub(crate) fn devices_of_types(platform: &Arc<Object>, types: u64) -> Result<Vec<Arc<Object>>, i32> {
    if types != CL_DEVICE_TYPE_ALL && (types == 0 || types & !CL_DEVICE_TYPES != 0) {
        return Err(CL_INVALID_DEVICE_TYPE);
    }
    let of_types = |device: &&Arc<Object>| match &device.data {
        // The server has set the bit of the default for one device only.
        Data::Device(device) => device.types & types != 0,
        _ => false,
    };
    let found: Vec<_> = devices(platform).iter().filter(of_types).cloned().collect();
    if found.is_empty() {
        return Err(CL_DEVICE_NOT_FOUND);
    }
    Ok(found)
}

/// Lists objects, as clGetPlatformIDs and its like do.
unsafe fn list(objects: &[Arc<Object>], count: u32, into: *mut *mut Object, found: *mut u32) -> i32 {
    if into.is_null() && found.is_null() || !into.is_null() && count == 0 {
        return STATUSES.invalid;
    }
    if !into.is_null() {
        for (i, object) in objects.iter().take(count as usize).enumerate() {
            *into.add(i) = object.address();
        }
    }
    if !found.is_null() {
        *found = objects.len() as u32;
    }
    STATUSES.ok
}

#[no_mangle]
pub unsafe extern "C" fn clGetPlatformIDs(count: u32, into: *mut *mut Object, found: *mut u32) -> i32 {
    let platforms = platforms();
    if platforms.is_empty() {
        if !found.is_null() {
            *found = 0;
        }
        return CL_PLATFORM_NOT_FOUND_KHR;
    }
    list(platforms, count, into, found)
}

#[no_mangle]
pub unsafe extern "C" fn clGetDeviceIDs(platform: *mut Object, types: u64, count: u32, into: *mut *mut Object, found: *mut u32) -> i32 {
    let Some(platform) = object(kinds::cl_platform_id, platform) else { return CL_INVALID_PLATFORM };
    match devices_of_types(&platform, types) {
        Ok(devices) => list(&devices, count, into, found),
        Err(status) => {
            if !found.is_null() {
                *found = 0;
            }
            status
        }
    }
}

/// Extensions in a text, without those that this library lacks.
fn extensions(mut text: Vec<u8>) -> Vec<u8> {
    text.retain(|&byte| byte != 0);
    let text = String::from_utf8_lossy(&text);
    let kept: Vec<&str> = text.split_whitespace().filter(|name| EXTENSIONS.contains(name)).collect();
    let mut kept = kept.join(" ").into_bytes();
    kept.push(0);
    kept
}

/// Extensions in an array of `cl_name_version`: a version of 4 bytes, and a name of 64.
fn extensions_with_version(array: Vec<u8>) -> Vec<u8> {
    const BYTES: usize = 4 + 64;
    let kept = |entry: &&[u8]| {
        let name = entry[4..].split(|&byte| byte == 0).next().unwrap_or_default();
        EXTENSIONS.iter().any(|known| known.as_bytes() == name)
    };
    array.chunks_exact(BYTES).filter(kept).flatten().copied().collect()
}

/// A version text ("OpenCL 3.0 ..."), no newer than what this library has.
fn version(text: Vec<u8>) -> Vec<u8> {
    let newer = || {
        let text = std::str::from_utf8(&text).ok()?.strip_prefix("OpenCL ")?;
        let (number, rest) = text.split_once(' ')?;
        let (major, minor) = number.split_once('.')?;
        let newer = (major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?) > NEWEST;
        newer.then(|| format!("OpenCL {}.{} {rest}", NEWEST.0, NEWEST.1).into_bytes())
    };
    newer().unwrap_or(text)
}

/// A `cl_version`: 10 bits, 10 bits and 12 bits.
fn numeric_version(value: Vec<u8>) -> Vec<u8> {
    let newest = (NEWEST.0 << 22) | (NEWEST.1 << 12);
    match <[u8; 4]>::try_from(value.as_slice()) {
        Ok(bytes) => u32::from_le_bytes(bytes).min(newest).to_le_bytes().to_vec(),
        Err(_) => value,
    }
}

#[no_mangle]
pub unsafe extern "C" fn clGetPlatformInfo(platform: *mut Object, name: u32, size: usize, into: *mut u8, size_ret: *mut usize) -> i32 {
    let Some(of) = object(kinds::cl_platform_id, platform) else { return CL_INVALID_PLATFORM };
    let query = Query { size, into, size_ret };
    let value = || front().info(&of, numbers::clGetPlatformInfo, name);
    match name {
        CL_PLATFORM_VERSION => query.result(value().map(version)),
        CL_PLATFORM_NUMERIC_VERSION => query.result(value().map(numeric_version)),
        CL_PLATFORM_EXTENSIONS => query.result(value().map(extensions)),
        CL_PLATFORM_EXTENSIONS_WITH_VERSION => query.result(value().map(extensions_with_version)),
        _ => remote::clGetPlatformInfo(platform, name, size, into, size_ret),
    }
}

#[no_mangle]
pub unsafe extern "C" fn clGetDeviceInfo(device: *mut Object, name: u32, size: usize, into: *mut u8, size_ret: *mut usize) -> i32 {
    let Some(of) = object(kinds::cl_device_id, device) else { return CL_INVALID_DEVICE };
    let query = Query { size, into, size_ret };
    let value = || front().info(&of, numbers::clGetDeviceInfo, name);
    match name {
        CL_DEVICE_PLATFORM => query.object(Some(of.platform())),
        CL_DEVICE_PARENT_DEVICE => query.object(of.parent.as_ref().filter(|_| !of.is_root_device())),
        CL_DEVICE_REFERENCE_COUNT => query.u32(of.references().max(1)),
        CL_DEVICE_VERSION => query.result(value().map(version)),
        CL_DEVICE_NUMERIC_VERSION => query.result(value().map(numeric_version)),
        CL_DEVICE_EXTENSIONS => query.result(value().map(extensions)),
        CL_DEVICE_EXTENSIONS_WITH_VERSION => query.result(value().map(extensions_with_version)),
        CL_DEVICE_IL_VERSION => query.result(value().map(|_| vec![0])),
        CL_DEVICE_ILS_WITH_VERSION => query.result(value().map(|_| Vec::new())),
        CL_DEVICE_EXECUTION_CAPABILITIES => match value().map(|bytes| bytes.try_into().map(u64::from_le_bytes)) {
            Ok(Ok(abilities)) => query.u64(abilities & !NATIVE_KERNELS),
            Ok(Err(_)) => STATUSES.lost,
            Err(status) => status,
        },
        _ if WITHOUT.contains(&name) => query.result(value().map(|bytes| vec![0; bytes.len()])),
        _ => remote::clGetDeviceInfo(device, name, size, into, size_ret),
    }
}

#[no_mangle]
pub unsafe extern "C" fn clCreateSubDevices(
    device: *mut Object,
    properties: *const i64,
    count: u32,
    into: *mut *mut Object,
    found: *mut u32,
) -> i32 {
    let Some(device) = object(kinds::cl_device_id, device) else { return CL_INVALID_DEVICE };
    if properties.is_null() || into.is_null() && found.is_null() {
        return STATUSES.invalid;
    }
    let Data::Device(Device { types }) = &device.data else { return CL_INVALID_DEVICE };
    /// CL_DEVICE_PARTITION_BY_COUNTS has a list of its own, which a zero ends.
    const BY_COUNTS: i64 = 0x1087;
    let mut words = vec![*properties];
    if *properties != 0 {
        let mut i = 1;
        loop {
            words.push(*properties.add(i));
            i += 1;
            let ends = words.last() == Some(&0) || words[0] != BY_COUNTS;
            if ends {
                break;
            }
        }
        words.push(0);
    }
    let wanted = if into.is_null() { 0 } else { (count as usize).min(MOST_DEVICES) };
    let minted: Vec<u64> = (0..wanted).map(|_| front().mint(kinds::cl_device_id)).collect();
    let mut parts = 0;
    let status = front().call(
        numbers::clCreateSubDevices,
        |encoder| {
            encoder.u64(device.number);
            encoder.u32(words.len() as u32);
            words.iter().for_each(|&word| encoder.i64(word));
            encoder.u32(wanted as u32);
            minted.iter().for_each(|&number| encoder.u64(number));
        },
        |decoder| {
            parts = decoder.u32()? as usize;
            Ok(())
        },
    );
    let made = if ok(status).is_ok() { parts.min(wanted) } else { 0 };
    minted.iter().skip(made).for_each(|&number| front().unmint(kinds::cl_device_id, number));
    if status != STATUSES.ok {
        return status;
    }
    if !into.is_null() && wanted < parts {
        return CL_INVALID_DEVICE_PARTITION_COUNT;
    }
    for (i, &number) in minted.iter().take(made).enumerate() {
        let data = Data::Device(Device { types: *types });
        let parent = Some(Arc::clone(&device));
        *into.add(i) = Object::new(kinds::cl_device_id, number, parent, numbers::clCreateSubDevices, data).give();
    }
    if !found.is_null() {
        *found = parts as u32;
    }
    STATUSES.ok
}

/// The devices of this list.
///
/// # Safety
/// As [`objects`].
pub(crate) unsafe fn listed(count: u32, devices: *const *mut Object) -> Result<Vec<Arc<Object>>, i32> {
    if devices.is_null() || count == 0 {
        return Err(STATUSES.invalid);
    }
    objects(kinds::cl_device_id, devices, count as usize).ok_or(CL_INVALID_DEVICE)
}
