//! Types of the runtime API and of the driver API, as the references of CUDA 13.0 name them.

#![allow(missing_docs)] // Fields have the names and meanings of the references.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A handle of the driver: context, module, function, stream, event, pool, graph.
pub type Handle = *mut c_void;
/// An address in device memory.
pub type Address = u64;

/// The legacy default stream as an argument.
pub const DEFAULT_STREAM: Handle = std::ptr::null_mut();

/// `CU_STREAM_PER_THREAD`.
pub const PER_THREAD_STREAM: Handle = std::ptr::without_provenance_mut(2);

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dim3 {
    pub x: c_uint,
    pub y: c_uint,
    pub z: c_uint,
}

/// `cudaLaunchConfig_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    pub grid: Dim3,
    pub block: Dim3,
    pub dynamic_shared_bytes: usize,
    pub stream: Handle,
    pub attributes: *mut c_void,
    pub attribute_count: c_uint,
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DriverLaunchConfig {
    pub grid: Dim3,
    pub block: Dim3,
    pub shared_bytes: c_uint,
    pub stream: Handle,
    pub attributes: *mut c_void,
    pub attribute_count: c_uint,
}

/// `CUDA_MEMCPY3D`, of which `CUDA_MEMCPY2D` is a part with other offsets.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy3d {
    pub source: Copy3dSide,
    pub target: Copy3dSide,
    pub width_bytes: usize,
    pub height: usize,
    pub depth: usize,
}

/// One side of [`Copy3d`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy3dSide {
    pub x_bytes: usize,
    pub y: usize,
    pub z: usize,
    pub level: usize,
    pub kind: c_uint,
    pub host: *mut c_void,
    pub device: Address,
    pub array: Handle,
    pub reserved: *mut c_void,
    pub pitch_bytes: usize,
    pub height: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy2d {
    pub source: Copy2dSide,
    pub target: Copy2dSide,
    pub width_bytes: usize,
    pub height: usize,
}

/// One side of [`Copy2d`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy2dSide {
    pub x_bytes: usize,
    pub y: usize,
    pub kind: c_uint,
    pub host: *mut c_void,
    pub device: Address,
    pub array: Handle,
    pub pitch_bytes: usize,
}

/// `CUmemorytype` values.
pub mod memory_type {
    pub const HOST: u32 = 1;
    pub const DEVICE: u32 = 2;
    pub const ARRAY: u32 = 3;
    pub const UNIFIED: u32 = 4;
}

/// `cudaMemcpyKind` values.
pub mod copy_kind {
    pub const HOST_TO_HOST: i32 = 0;
    pub const HOST_TO_DEVICE: i32 = 1;
    pub const DEVICE_TO_HOST: i32 = 2;
    pub const DEVICE_TO_DEVICE: i32 = 3;
    pub const DEFAULT: i32 = 4;
}

/// `cudaPitchedPtr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PitchedPointer {
    pub pointer: *mut c_void,
    pub pitch_bytes: usize,
    pub width: usize,
    pub height: usize,
}

/// `cudaExtent`, whose width counts bytes for memory without arrays.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extent {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

/// `cudaPos`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Position {
    pub x: usize,
    pub y: usize,
    pub z: usize,
}

/// `cudaMemcpy3DParms`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy3dParameters {
    pub source_array: Handle,
    pub source_position: Position,
    pub source: PitchedPointer,
    pub target_array: Handle,
    pub target_position: Position,
    pub target: PitchedPointer,
    pub extent: Extent,
    pub kind: c_int,
}

/// `cudaPointerAttributes`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PointerAttributes {
    pub kind: c_int,
    pub device: c_int,
    pub device_pointer: *mut c_void,
    pub host_pointer: *mut c_void,
    pub reserved: [i64; 8],
}

/// `cudaFuncAttributes`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FunctionAttributes {
    pub sharedSizeBytes: usize,
    pub constSizeBytes: usize,
    pub localSizeBytes: usize,
    pub maxThreadsPerBlock: c_int,
    pub numRegs: c_int,
    pub ptxVersion: c_int,
    pub binaryVersion: c_int,
    pub cacheModeCA: c_int,
    pub maxDynamicSharedSizeBytes: c_int,
    pub preferredShmemCarveout: c_int,
    pub clusterDimMustBeSet: c_int,
    pub requiredClusterWidth: c_int,
    pub requiredClusterHeight: c_int,
    pub requiredClusterDepth: c_int,
    pub clusterSchedulingPolicyPreference: c_int,
    pub nonPortableClusterSizeAllowed: c_int,
    pub reserved: [c_int; 16],
}

/// `cudaIpcMemHandle_t` and `cudaIpcEventHandle_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle {
    pub bytes: [c_char; 64],
}

/// `cudaKernelNodeParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelNode {
    pub function: *const c_void,
    pub grid: Dim3,
    pub block: Dim3,
    pub shared_bytes: c_uint,
    pub parameters: *mut *mut c_void,
    pub extra: *mut *mut c_void,
}

/// `CUDA_KERNEL_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DriverKernelNode {
    pub function: Handle,
    pub grid: Dim3,
    pub block: Dim3,
    pub shared_bytes: c_uint,
    pub parameters: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    pub kernel: Handle,
    pub context: Handle,
}

/// `cudaChannelFormatDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ChannelFormat {
    pub x: c_int,
    pub y: c_int,
    pub z: c_int,
    pub w: c_int,
    pub kind: c_int,
}

/// Function of `cudaLaunchHostFunc`.
pub type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;
/// Function of `cudaStreamAddCallback`.
pub type StreamCallback = Option<unsafe extern "C" fn(Handle, c_int, *mut c_void)>;
/// A NUL-terminated string.
pub type Text = *const c_char;
