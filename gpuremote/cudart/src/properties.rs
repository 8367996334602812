//! Properties of devices, read from the attributes of the driver.

use crate::driver::Driver;
use crate::error::Outcome;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::Mutex;

macro_rules! device_properties {
    ($($field:ident: $type:ty = $attributes:tt;)*) => {
        /// `cudaDeviceProp` of CUDA 13.0.
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(missing_docs)] // Fields have the names and meanings of the reference.
        pub struct DeviceProperties {
            pub name: [c_char; 256],
            pub uuid: [u8; 16],
            pub luid: [u8; 8],
            pub luidDeviceNodeMask: c_uint,
            pub totalGlobalMem: usize,
            $(pub $field: $type,)*
            pub reserved: [c_int; 56],
        }

        fn read(driver: &Driver, device: c_int) -> Outcome<DeviceProperties> {
            let (mut name, mut uuid, mut totalGlobalMem) = ([0; 256], [0; 16], 0);
            unsafe {
                driver.cuDeviceGetName(name.as_mut_ptr(), 256, device)?;
                driver.cuDeviceGetUuid_v2(&mut uuid, device)?;
                driver.cuDeviceTotalMem_v2(&mut totalGlobalMem, device)?;
            }
            // Attributes newer than the driver are 0.
            let value = |attribute: c_int| {
                let mut value = 0;
                unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, device) }.map_or(0, |()| value)
            };
            Ok(DeviceProperties {
                name,
                uuid,
                luid: [0; 8],
                luidDeviceNodeMask: 0,
                totalGlobalMem,
                $($field: device_properties!(@value value $type, $attributes),)*
                reserved: [0; 56],
            })
        }
    };
    (@value $value:ident $type:ty, [$a:literal, $b:literal]) => { [$value($a), $value($b)] };
    (@value $value:ident $type:ty, [$a:literal, $b:literal, $c:literal]) => { [$value($a), $value($b), $value($c)] };
    (@value $value:ident $type:ty, $a:literal) => { $value($a) as $type };
}

// Field, type, and number of its `CUdevice_attribute`.
device_properties! {
    sharedMemPerBlock: usize = 8;
    regsPerBlock: c_int = 12;
    warpSize: c_int = 10;
    memPitch: usize = 11;
    maxThreadsPerBlock: c_int = 1;
    maxThreadsDim: [c_int; 3] = [2, 3, 4];
    maxGridSize: [c_int; 3] = [5, 6, 7];
    totalConstMem: usize = 9;
    major: c_int = 75;
    minor: c_int = 76;
    textureAlignment: usize = 14;
    texturePitchAlignment: usize = 51;
    multiProcessorCount: c_int = 16;
    integrated: c_int = 18;
    canMapHostMemory: c_int = 19;
    maxTexture1D: c_int = 21;
    maxTexture1DMipmap: c_int = 77;
    maxTexture2D: [c_int; 2] = [22, 23];
    maxTexture2DMipmap: [c_int; 2] = [73, 74];
    maxTexture2DLinear: [c_int; 3] = [70, 71, 72];
    maxTexture2DGather: [c_int; 2] = [45, 46];
    maxTexture3D: [c_int; 3] = [24, 25, 26];
    maxTexture3DAlt: [c_int; 3] = [47, 48, 49];
    maxTextureCubemap: c_int = 52;
    maxTexture1DLayered: [c_int; 2] = [42, 43];
    maxTexture2DLayered: [c_int; 3] = [27, 28, 29];
    maxTextureCubemapLayered: [c_int; 2] = [53, 54];
    maxSurface1D: c_int = 55;
    maxSurface2D: [c_int; 2] = [56, 57];
    maxSurface3D: [c_int; 3] = [58, 59, 60];
    maxSurface1DLayered: [c_int; 2] = [61, 62];
    maxSurface2DLayered: [c_int; 3] = [63, 64, 65];
    maxSurfaceCubemap: c_int = 66;
    maxSurfaceCubemapLayered: [c_int; 2] = [67, 68];
    surfaceAlignment: usize = 30;
    concurrentKernels: c_int = 31;
    ECCEnabled: c_int = 32;
    pciBusID: c_int = 33;
    pciDeviceID: c_int = 34;
    pciDomainID: c_int = 50;
    tccDriver: c_int = 35;
    asyncEngineCount: c_int = 40;
    unifiedAddressing: c_int = 41;
    memoryBusWidth: c_int = 37;
    l2CacheSize: c_int = 38;
    persistingL2CacheMaxSize: c_int = 108;
    maxThreadsPerMultiProcessor: c_int = 39;
    streamPrioritiesSupported: c_int = 78;
    globalL1CacheSupported: c_int = 79;
    localL1CacheSupported: c_int = 80;
    sharedMemPerMultiprocessor: usize = 81;
    regsPerMultiprocessor: c_int = 82;
    managedMemory: c_int = 83;
    isMultiGpuBoard: c_int = 84;
    multiGpuBoardGroupID: c_int = 85;
    hostNativeAtomicSupported: c_int = 86;
    pageableMemoryAccess: c_int = 88;
    concurrentManagedAccess: c_int = 89;
    computePreemptionSupported: c_int = 90;
    canUseHostPointerForRegisteredMem: c_int = 91;
    cooperativeLaunch: c_int = 95;
    sharedMemPerBlockOptin: usize = 97;
    pageableMemoryAccessUsesHostPageTables: c_int = 100;
    directManagedMemAccessFromHost: c_int = 101;
    maxBlocksPerMultiProcessor: c_int = 106;
    accessPolicyMaxWindowSize: c_int = 109;
    reservedSharedMemPerBlock: usize = 111;
    hostRegisterSupported: c_int = 99;
    sparseCudaArraySupported: c_int = 112;
    hostRegisterReadOnlySupported: c_int = 113;
    timelineSemaphoreInteropSupported: c_int = 114;
    memoryPoolsSupported: c_int = 115;
    gpuDirectRDMASupported: c_int = 116;
    gpuDirectRDMAFlushWritesOptions: c_uint = 117;
    gpuDirectRDMAWritesOrdering: c_int = 118;
    memoryPoolSupportedHandleTypes: c_uint = 119;
    deferredMappingCudaArraySupported: c_int = 121;
    ipcEventSupported: c_int = 125;
    clusterLaunch: c_int = 120;
    unifiedFunctionPointers: c_int = 129;
    deviceNumaConfig: c_int = 130;
    deviceNumaId: c_int = 131;
    mpsEnabled: c_int = 133;
    hostNumaId: c_int = 134;
    gpuPciDeviceID: c_uint = 139;
    gpuPciSubsystemID: c_uint = 140;
    hostNumaMultinodeIpcSupported: c_int = 143;
}

/// Properties of a device, read once per process.
///
/// # Errors
///
/// Those of the driver.
pub fn of_device(driver: &Driver, device: c_int) -> Outcome<DeviceProperties> {
    static KNOWN: Mutex<Option<HashMap<c_int, DeviceProperties>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let known = known.get_or_insert_with(HashMap::new);
    if let Some(properties) = known.get(&device) {
        return Ok(*properties);
    }
    let properties = read(driver, device)?;
    known.insert(device, properties);
    Ok(properties)
}

/// What a launch may have at most.
#[derive(Clone, Copy)]
pub struct LaunchLimits {
    /// Blocks in each dimension.
    pub grid: [c_uint; 3],
    /// Threads of a block in each dimension.
    pub block: [c_uint; 3],
    /// Threads of a block.
    pub block_threads: c_uint,
}

/// Limits of launches on the device of the current context.
///
/// # Errors
///
/// Those of the driver.
pub fn launch_limits(driver: &Driver) -> Outcome<LaunchLimits> {
    static KNOWN: Mutex<Option<HashMap<c_int, LaunchLimits>>> = Mutex::new(None);
    let mut device = 0;
    unsafe { driver.cuCtxGetDevice(&mut device) }?;
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let known = known.get_or_insert_with(HashMap::new);
    if let Some(limits) = known.get(&device) {
        return Ok(*limits);
    }
    let value = |attribute: c_int| {
        let mut value = 0;
        unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, device) }.map(|()| value as c_uint)
    };
    let limits =
        LaunchLimits { grid: [value(5)?, value(6)?, value(7)?], block: [value(2)?, value(3)?, value(4)?], block_threads: value(1)? };
    known.insert(device, limits);
    Ok(limits)
}
