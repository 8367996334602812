//! Error codes of the runtime API, with their names and descriptions.
//!
//! Codes of the driver API have the same meaning and number here, so that results of the driver need no translation.

use std::ffi::{c_char, CStr};

/// A `cudaError_t` other than `cudaSuccess`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error(pub i32);

/// Result of a call.
pub type Outcome<T = ()> = Result<T, Error>;

/// `cudaSuccess`.
pub const SUCCESS: i32 = 0;

const UNRECOGNIZED: &CStr = c"unrecognized error code";

macro_rules! error_codes {
    ($($value:literal $name:ident $constant:ident $text:literal;)*) => {
        impl Error {
            $(#[doc = concat!("`", stringify!($name), "`: ", $text, ".")] pub const $constant: Error = Error($value);)*
        }

        const TABLE: &[(i32, &str, &str)] = &[
            (0, "cudaSuccess\0", "no error\0"),
            $(($value, concat!(stringify!($name), "\0"), concat!($text, "\0")),)*
        ];
    };
}

/// Returns the name of a code, as `cudaGetErrorName` does.
pub fn name_of(code: i32) -> *const c_char {
    let row = TABLE.iter().find(|row| row.0 == code);
    row.map_or(UNRECOGNIZED.as_ptr(), |row| row.1.as_ptr().cast())
}

/// Returns the description of a code, as `cudaGetErrorString` does.
pub fn text_of(code: i32) -> *const c_char {
    let row = TABLE.iter().find(|row| row.0 == code);
    row.map_or(UNRECOGNIZED.as_ptr(), |row| row.2.as_ptr().cast())
}

error_codes! {
    1 cudaErrorInvalidValue INVALID_VALUE "invalid argument";
    2 cudaErrorMemoryAllocation MEMORY_ALLOCATION "out of memory";
    3 cudaErrorInitializationError INITIALIZATION_ERROR "initialization error";
    4 cudaErrorCudartUnloading CUDART_UNLOADING "driver shutting down";
    5 cudaErrorProfilerDisabled PROFILER_DISABLED "profiler disabled while using external profiling tool";
    6 cudaErrorProfilerNotInitialized PROFILER_NOT_INITIALIZED "profiler not initialized: call cudaProfilerInitialize()";
    7 cudaErrorProfilerAlreadyStarted PROFILER_ALREADY_STARTED "profiler already started";
    8 cudaErrorProfilerAlreadyStopped PROFILER_ALREADY_STOPPED "profiler already stopped";
    9 cudaErrorInvalidConfiguration INVALID_CONFIGURATION "invalid configuration argument";
    12 cudaErrorInvalidPitchValue INVALID_PITCH_VALUE "invalid pitch argument";
    13 cudaErrorInvalidSymbol INVALID_SYMBOL "invalid device symbol";
    16 cudaErrorInvalidHostPointer INVALID_HOST_POINTER "invalid host pointer";
    17 cudaErrorInvalidDevicePointer INVALID_DEVICE_POINTER "invalid device pointer";
    18 cudaErrorInvalidTexture INVALID_TEXTURE "invalid texture reference";
    19 cudaErrorInvalidTextureBinding INVALID_TEXTURE_BINDING "texture is not bound to a pointer";
    20 cudaErrorInvalidChannelDescriptor INVALID_CHANNEL_DESCRIPTOR "invalid channel descriptor";
    21 cudaErrorInvalidMemcpyDirection INVALID_MEMCPY_DIRECTION "invalid copy direction for memcpy";
    22 cudaErrorAddressOfConstant ADDRESS_OF_CONSTANT "invalid address of constant";
    23 cudaErrorTextureFetchFailed TEXTURE_FETCH_FAILED "fetch from texture failed";
    24 cudaErrorTextureNotBound TEXTURE_NOT_BOUND "cannot fetch from a texture that is not bound";
    25 cudaErrorSynchronizationError SYNCHRONIZATION_ERROR "incorrect use of __syncthreads()";
    26 cudaErrorInvalidFilterSetting INVALID_FILTER_SETTING "linear filtering not supported for non-float type";
    27 cudaErrorInvalidNormSetting INVALID_NORM_SETTING "read as normalized float not supported for data type";
    28 cudaErrorMixedDeviceExecution MIXED_DEVICE_EXECUTION "device emulation mode and device execution mode cannot be mixed";
    31 cudaErrorNotYetImplemented NOT_YET_IMPLEMENTED "feature not yet implemented";
    32 cudaErrorMemoryValueTooLarge MEMORY_VALUE_TOO_LARGE "memory size or pointer value too large to fit in 32 bit";
    34 cudaErrorStubLibrary STUB_LIBRARY "CUDA driver is a stub library";
    35 cudaErrorInsufficientDriver INSUFFICIENT_DRIVER "CUDA driver version is insufficient for CUDA runtime version";
    36 cudaErrorCallRequiresNewerDriver CALL_REQUIRES_NEWER_DRIVER "API call is not supported in the installed CUDA driver";
    37 cudaErrorInvalidSurface INVALID_SURFACE "invalid surface reference";
    43 cudaErrorDuplicateVariableName DUPLICATE_VARIABLE_NAME "duplicate global variable looked up by string name";
    44 cudaErrorDuplicateTextureName DUPLICATE_TEXTURE_NAME "duplicate texture looked up by string name";
    45 cudaErrorDuplicateSurfaceName DUPLICATE_SURFACE_NAME "duplicate surface looked up by string name";
    46 cudaErrorDevicesUnavailable DEVICES_UNAVAILABLE "CUDA-capable device(s) is/are busy or unavailable";
    49 cudaErrorIncompatibleDriverContext INCOMPATIBLE_DRIVER_CONTEXT "incompatible driver context";
    52 cudaErrorMissingConfiguration MISSING_CONFIGURATION "__global__ function call is not configured";
    53 cudaErrorPriorLaunchFailure PRIOR_LAUNCH_FAILURE "unspecified launch failure in prior launch";
    65 cudaErrorLaunchMaxDepthExceeded LAUNCH_MAX_DEPTH_EXCEEDED "launch would exceed maximum depth of nested launches";
    66 cudaErrorLaunchFileScopedTex LAUNCH_FILE_SCOPED_TEX "launch failed because kernel uses unsupported, file-scoped textures (texture objects are supported)";
    67 cudaErrorLaunchFileScopedSurf LAUNCH_FILE_SCOPED_SURF "launch failed because kernel uses unsupported, file-scoped surfaces (surface objects are supported)";
    68 cudaErrorSyncDepthExceeded SYNC_DEPTH_EXCEEDED "cudaDeviceSynchronize failed because caller's grid depth exceeds cudaLimitDevRuntimeSyncDepth";
    69 cudaErrorLaunchPendingCountExceeded LAUNCH_PENDING_COUNT_EXCEEDED "launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount";
    98 cudaErrorInvalidDeviceFunction INVALID_DEVICE_FUNCTION "invalid device function";
    100 cudaErrorNoDevice NO_DEVICE "no CUDA-capable device is detected";
    101 cudaErrorInvalidDevice INVALID_DEVICE "invalid device ordinal";
    102 cudaErrorDeviceNotLicensed DEVICE_NOT_LICENSED "device doesn't have valid Grid license";
    103 cudaErrorSoftwareValidityNotEstablished SOFTWARE_VALIDITY_NOT_ESTABLISHED "integrity checks failed";
    127 cudaErrorStartupFailure STARTUP_FAILURE "startup failure in cuda runtime";
    200 cudaErrorInvalidKernelImage INVALID_KERNEL_IMAGE "device kernel image is invalid";
    201 cudaErrorDeviceUninitialized DEVICE_UNINITIALIZED "invalid device context";
    205 cudaErrorMapBufferObjectFailed MAP_BUFFER_OBJECT_FAILED "mapping of buffer object failed";
    206 cudaErrorUnmapBufferObjectFailed UNMAP_BUFFER_OBJECT_FAILED "unmapping of buffer object failed";
    207 cudaErrorArrayIsMapped ARRAY_IS_MAPPED "array is mapped";
    208 cudaErrorAlreadyMapped ALREADY_MAPPED "resource already mapped";
    209 cudaErrorNoKernelImageForDevice NO_KERNEL_IMAGE_FOR_DEVICE "no kernel image is available for execution on the device";
    210 cudaErrorAlreadyAcquired ALREADY_ACQUIRED "resource already acquired";
    211 cudaErrorNotMapped NOT_MAPPED "resource not mapped";
    212 cudaErrorNotMappedAsArray NOT_MAPPED_AS_ARRAY "resource not mapped as array";
    213 cudaErrorNotMappedAsPointer NOT_MAPPED_AS_POINTER "resource not mapped as pointer";
    214 cudaErrorECCUncorrectable ECC_UNCORRECTABLE "uncorrectable ECC error encountered";
    215 cudaErrorUnsupportedLimit UNSUPPORTED_LIMIT "limit is not supported on this architecture";
    216 cudaErrorDeviceAlreadyInUse DEVICE_ALREADY_IN_USE "exclusive-thread device already in use by a different thread";
    217 cudaErrorPeerAccessUnsupported PEER_ACCESS_UNSUPPORTED "peer access is not supported between these two devices";
    218 cudaErrorInvalidPtx INVALID_PTX "a PTX JIT compilation failed";
    219 cudaErrorInvalidGraphicsContext INVALID_GRAPHICS_CONTEXT "invalid OpenGL or DirectX context";
    220 cudaErrorNvlinkUncorrectable NVLINK_UNCORRECTABLE "uncorrectable NVLink error detected during the execution";
    221 cudaErrorJitCompilerNotFound JIT_COMPILER_NOT_FOUND "PTX JIT compiler library not found";
    222 cudaErrorUnsupportedPtxVersion UNSUPPORTED_PTX_VERSION "the provided PTX was compiled with an unsupported toolchain.";
    223 cudaErrorJitCompilationDisabled JIT_COMPILATION_DISABLED "PTX JIT compilation was disabled";
    224 cudaErrorUnsupportedExecAffinity UNSUPPORTED_EXEC_AFFINITY "the provided execution affinity is not supported";
    225 cudaErrorUnsupportedDevSideSync UNSUPPORTED_DEV_SIDE_SYNC "the provided PTX contains unsupported call to cudaDeviceSynchronize";
    226 cudaErrorContained CONTAINED "Invalid access of peer GPU memory over nvlink or a hardware error";
    300 cudaErrorInvalidSource INVALID_SOURCE "device kernel image is invalid";
    301 cudaErrorFileNotFound FILE_NOT_FOUND "file not found";
    302 cudaErrorSharedObjectSymbolNotFound SHARED_OBJECT_SYMBOL_NOT_FOUND "shared object symbol not found";
    303 cudaErrorSharedObjectInitFailed SHARED_OBJECT_INIT_FAILED "shared object initialization failed";
    304 cudaErrorOperatingSystem OPERATING_SYSTEM "OS call failed or operation not supported on this OS";
    400 cudaErrorInvalidResourceHandle INVALID_RESOURCE_HANDLE "invalid resource handle";
    401 cudaErrorIllegalState ILLEGAL_STATE "the operation cannot be performed in the present state";
    402 cudaErrorLossyQuery LOSSY_QUERY "attempted introspection would be semantically lossy";
    500 cudaErrorSymbolNotFound SYMBOL_NOT_FOUND "named symbol not found";
    600 cudaErrorNotReady NOT_READY "device not ready";
    700 cudaErrorIllegalAddress ILLEGAL_ADDRESS "an illegal memory access was encountered";
    701 cudaErrorLaunchOutOfResources LAUNCH_OUT_OF_RESOURCES "too many resources requested for launch";
    702 cudaErrorLaunchTimeout LAUNCH_TIMEOUT "the launch timed out and was terminated";
    703 cudaErrorLaunchIncompatibleTexturing LAUNCH_INCOMPATIBLE_TEXTURING "launch uses incompatible texturing mode";
    704 cudaErrorPeerAccessAlreadyEnabled PEER_ACCESS_ALREADY_ENABLED "peer access is already enabled";
    705 cudaErrorPeerAccessNotEnabled PEER_ACCESS_NOT_ENABLED "peer access has not been enabled";
    708 cudaErrorSetOnActiveProcess SET_ON_ACTIVE_PROCESS "cannot set while device is active in this process";
    709 cudaErrorContextIsDestroyed CONTEXT_IS_DESTROYED "context is destroyed";
    710 cudaErrorAssert ASSERT "device-side assert triggered";
    711 cudaErrorTooManyPeers TOO_MANY_PEERS "peer mapping resources exhausted";
    712 cudaErrorHostMemoryAlreadyRegistered HOST_MEMORY_ALREADY_REGISTERED "part or all of the requested memory range is already mapped";
    713 cudaErrorHostMemoryNotRegistered HOST_MEMORY_NOT_REGISTERED "pointer does not correspond to a registered memory region";
    714 cudaErrorHardwareStackError HARDWARE_STACK_ERROR "hardware stack error";
    715 cudaErrorIllegalInstruction ILLEGAL_INSTRUCTION "an illegal instruction was encountered";
    716 cudaErrorMisalignedAddress MISALIGNED_ADDRESS "misaligned address";
    717 cudaErrorInvalidAddressSpace INVALID_ADDRESS_SPACE "operation not supported on global/shared address space";
    718 cudaErrorInvalidPc INVALID_PC "invalid program counter";
    719 cudaErrorLaunchFailure LAUNCH_FAILURE "unspecified launch failure";
    720 cudaErrorCooperativeLaunchTooLarge COOPERATIVE_LAUNCH_TOO_LARGE "too many blocks in cooperative launch";
    721 cudaErrorTensorMemoryLeak TENSOR_MEMORY_LEAK "tensor memory not completely freed";
    800 cudaErrorNotPermitted NOT_PERMITTED "operation not permitted";
    801 cudaErrorNotSupported NOT_SUPPORTED "operation not supported";
    802 cudaErrorSystemNotReady SYSTEM_NOT_READY "system not yet initialized";
    803 cudaErrorSystemDriverMismatch SYSTEM_DRIVER_MISMATCH "system has unsupported display driver / cuda driver combination";
    804 cudaErrorCompatNotSupportedOnDevice COMPAT_NOT_SUPPORTED_ON_DEVICE "forward compatibility was attempted on non supported HW";
    805 cudaErrorMpsConnectionFailed MPS_CONNECTION_FAILED "MPS client failed to connect to the MPS control daemon or the MPS server";
    806 cudaErrorMpsRpcFailure MPS_RPC_FAILURE "the remote procedural call between the MPS server and the MPS client failed";
    807 cudaErrorMpsServerNotReady MPS_SERVER_NOT_READY "MPS server is not ready to accept new MPS client requests";
    808 cudaErrorMpsMaxClientsReached MPS_MAX_CLIENTS_REACHED "the hardware resources required to create MPS client have been exhausted";
    809 cudaErrorMpsMaxConnectionsReached MPS_MAX_CONNECTIONS_REACHED "the hardware resources required to support device connections have been exhausted";
    810 cudaErrorMpsClientTerminated MPS_CLIENT_TERMINATED "the MPS client has been terminated by the server";
    811 cudaErrorCdpNotSupported CDP_NOT_SUPPORTED "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it";
    812 cudaErrorCdpVersionMismatch CDP_VERSION_MISMATCH "unsupported interaction between different versions of CUDA Dynamic Parallelism";
    900 cudaErrorStreamCaptureUnsupported STREAM_CAPTURE_UNSUPPORTED "operation not permitted when stream is capturing";
    901 cudaErrorStreamCaptureInvalidated STREAM_CAPTURE_INVALIDATED "operation failed due to a previous error during capture";
    902 cudaErrorStreamCaptureMerge STREAM_CAPTURE_MERGE "operation would result in a merge of separate capture sequences";
    903 cudaErrorStreamCaptureUnmatched STREAM_CAPTURE_UNMATCHED "capture was not ended in the same stream as it began";
    904 cudaErrorStreamCaptureUnjoined STREAM_CAPTURE_UNJOINED "capturing stream has unjoined work";
    905 cudaErrorStreamCaptureIsolation STREAM_CAPTURE_ISOLATION "dependency created on uncaptured work in another stream";
    906 cudaErrorStreamCaptureImplicit STREAM_CAPTURE_IMPLICIT "operation would make the legacy stream depend on a capturing blocking stream";
    907 cudaErrorCapturedEvent CAPTURED_EVENT "operation not permitted on an event last recorded in a capturing stream";
    908 cudaErrorStreamCaptureWrongThread STREAM_CAPTURE_WRONG_THREAD "attempt to terminate a thread-local capture sequence from another thread";
    909 cudaErrorTimeout TIMEOUT "wait operation timed out";
    910 cudaErrorGraphExecUpdateFailure GRAPH_EXEC_UPDATE_FAILURE "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    911 cudaErrorExternalDevice EXTERNAL_DEVICE "an async error has occured in external entity outside of CUDA";
    912 cudaErrorInvalidClusterSize INVALID_CLUSTER_SIZE "a kernel launch error has occurred due to cluster misconfiguration";
    913 cudaErrorFunctionNotLoaded FUNCTION_NOT_LOADED "the function handle is not loaded when calling an API that requires a loaded function";
    914 cudaErrorInvalidResourceType INVALID_RESOURCE_TYPE "one or more resources passed in are not valid resource types for the operation";
    915 cudaErrorInvalidResourceConfiguration INVALID_RESOURCE_CONFIGURATION "one or more resources are insufficient or non-applicable for the operation";
    999 cudaErrorUnknown UNKNOWN "unknown error";
}
