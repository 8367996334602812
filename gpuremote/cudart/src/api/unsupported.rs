//! Functions that this runtime lacks. Each exists, so that applications that reference it start.

use crate::error::Error;
use crate::thread;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

fn refuse(function: &str, named: &AtomicBool) -> c_int {
    if !named.swap(true, Ordering::Relaxed) {
        eprintln!("libcudart: {function} is not supported");
    }
    thread::set_last_error(Error::NOT_SUPPORTED);
    Error::NOT_SUPPORTED.0
}

macro_rules! unsupported {
    ($($name:ident)*) => {$(
        /// Returns `cudaErrorNotSupported`, and names itself once on standard error. Its parameters aren't read.
        #[no_mangle]
        pub extern "C" fn $name() -> c_int {
            static NAMED: AtomicBool = AtomicBool::new(false);
            refuse(stringify!($name), &NAMED)
        }
    )*};
}

unsupported! {
    __cudaGetProcAddress
    __cudaRegisterUnifiedTable
    cudaArrayGetInfo
    cudaArrayGetMemoryRequirements
    cudaArrayGetPlane
    cudaArrayGetSparseProperties
    cudaCreateSurfaceObject
    cudaCreateTextureObject
    cudaDestroyExternalMemory
    cudaDestroyExternalSemaphore
    cudaDestroySurfaceObject
    cudaDestroyTextureObject
    cudaDeviceFlushGPUDirectRDMAWrites
    cudaDeviceGetHostAtomicCapabilities
    cudaDeviceGetNvSciSyncAttributes
    cudaDeviceGetP2PAtomicCapabilities
    cudaDeviceGetSharedMemConfig
    cudaDeviceGetTexture1DLinearMaxWidth
    cudaDeviceRegisterAsyncNotification
    cudaDeviceSetSharedMemConfig
    cudaDeviceUnregisterAsyncNotification
    cudaEGLStreamConsumerAcquireFrame
    cudaEGLStreamConsumerConnect
    cudaEGLStreamConsumerConnectWithFlags
    cudaEGLStreamConsumerDisconnect
    cudaEGLStreamConsumerReleaseFrame
    cudaEGLStreamProducerConnect
    cudaEGLStreamProducerDisconnect
    cudaEGLStreamProducerPresentFrame
    cudaEGLStreamProducerReturnFrame
    cudaEventCreateFromEGLSync
    cudaExternalMemoryGetMappedBuffer
    cudaExternalMemoryGetMappedMipmappedArray
    cudaFreeArray
    cudaFreeMipmappedArray
    cudaFuncSetSharedMemConfig
    cudaGLGetDevices
    cudaGLMapBufferObject
    cudaGLMapBufferObjectAsync
    cudaGLRegisterBufferObject
    cudaGLSetBufferObjectMapFlags
    cudaGLSetGLDevice
    cudaGLUnmapBufferObject
    cudaGLUnmapBufferObjectAsync
    cudaGLUnregisterBufferObject
    cudaGetChannelDesc
    cudaGetMipmappedArrayLevel
    cudaGetSurfaceObjectResourceDesc
    cudaGetTextureObjectResourceDesc
    cudaGetTextureObjectResourceViewDesc
    cudaGetTextureObjectTextureDesc
    cudaGraphAddExternalSemaphoresSignalNode
    cudaGraphAddExternalSemaphoresWaitNode
    cudaGraphAddMemAllocNode
    cudaGraphAddMemcpyNodeFromSymbol
    cudaGraphAddMemcpyNodeToSymbol
    cudaGraphAddNode
    cudaGraphChildGraphNodeGetGraph
    cudaGraphConditionalHandleCreate
    cudaGraphEventRecordNodeGetEvent
    cudaGraphEventRecordNodeSetEvent
    cudaGraphEventWaitNodeGetEvent
    cudaGraphEventWaitNodeSetEvent
    cudaGraphExecChildGraphNodeSetParams
    cudaGraphExecEventRecordNodeSetEvent
    cudaGraphExecEventWaitNodeSetEvent
    cudaGraphExecExternalSemaphoresSignalNodeSetParams
    cudaGraphExecExternalSemaphoresWaitNodeSetParams
    cudaGraphExecHostNodeSetParams
    cudaGraphExecMemcpyNodeSetParams
    cudaGraphExecMemcpyNodeSetParamsFromSymbol
    cudaGraphExecMemcpyNodeSetParamsToSymbol
    cudaGraphExecNodeSetParams
    cudaGraphExternalSemaphoresSignalNodeGetParams
    cudaGraphExternalSemaphoresSignalNodeSetParams
    cudaGraphExternalSemaphoresWaitNodeGetParams
    cudaGraphExternalSemaphoresWaitNodeSetParams
    cudaGraphHostNodeGetParams
    cudaGraphHostNodeSetParams
    cudaGraphInstantiateWithParams_ptsz
    cudaGraphKernelNodeCopyAttributes
    cudaGraphKernelNodeGetAttribute
    cudaGraphKernelNodeGetParams
    cudaGraphKernelNodeSetAttribute
    cudaGraphMemAllocNodeGetParams
    cudaGraphMemFreeNodeGetParams
    cudaGraphMemcpyNodeGetParams
    cudaGraphMemcpyNodeSetParams
    cudaGraphMemcpyNodeSetParams1D
    cudaGraphMemcpyNodeSetParamsFromSymbol
    cudaGraphMemcpyNodeSetParamsToSymbol
    cudaGraphMemsetNodeGetParams
    cudaGraphMemsetNodeSetParams
    cudaGraphNodeSetParams
    cudaGraphicsEGLRegisterImage
    cudaGraphicsGLRegisterBuffer
    cudaGraphicsGLRegisterImage
    cudaGraphicsMapResources
    cudaGraphicsResourceGetMappedEglFrame
    cudaGraphicsResourceGetMappedMipmappedArray
    cudaGraphicsResourceGetMappedPointer
    cudaGraphicsResourceSetMapFlags
    cudaGraphicsSubResourceGetMappedArray
    cudaGraphicsUnmapResources
    cudaGraphicsUnregisterResource
    cudaGraphicsVDPAURegisterOutputSurface
    cudaGraphicsVDPAURegisterVideoSurface
    cudaImportExternalMemory
    cudaImportExternalSemaphore
    cudaKernelSetAttributeForDevice
    cudaLibraryGetUnifiedFunction
    cudaLogsCurrent
    cudaLogsDumpToFile
    cudaLogsDumpToMemory
    cudaLogsRegisterCallback
    cudaLogsUnregisterCallback
    cudaMalloc3DArray
    cudaMallocArray
    cudaMallocMipmappedArray
    cudaMemDiscardAndPrefetchBatchAsync
    cudaMemDiscardAndPrefetchBatchAsync_ptsz
    cudaMemDiscardBatchAsync
    cudaMemDiscardBatchAsync_ptsz
    cudaMemGetDefaultMemPool
    cudaMemGetMemPool
    cudaMemPoolExportPointer
    cudaMemPoolExportToShareableHandle
    cudaMemPoolImportFromShareableHandle
    cudaMemPoolImportPointer
    cudaMemPrefetchBatchAsync
    cudaMemPrefetchBatchAsync_ptsz
    cudaMemRangeGetAttributes
    cudaMemSetMemPool
    cudaMemcpy2DArrayToArray
    cudaMemcpy2DArrayToArray_ptds
    cudaMemcpy2DFromArray
    cudaMemcpy2DFromArrayAsync
    cudaMemcpy2DFromArrayAsync_ptsz
    cudaMemcpy2DFromArray_ptds
    cudaMemcpy2DToArray
    cudaMemcpy2DToArrayAsync
    cudaMemcpy2DToArrayAsync_ptsz
    cudaMemcpy2DToArray_ptds
    cudaMemcpy3DBatchAsync
    cudaMemcpy3DBatchAsync_ptsz
    cudaMemcpy3DPeer
    cudaMemcpy3DPeerAsync
    cudaMemcpy3DPeerAsync_ptsz
    cudaMemcpy3DPeer_ptds
    cudaMemcpyArrayToArray
    cudaMemcpyArrayToArray_ptds
    cudaMemcpyBatchAsync
    cudaMemcpyBatchAsync_ptsz
    cudaMemcpyFromArray
    cudaMemcpyFromArrayAsync
    cudaMemcpyFromArrayAsync_ptsz
    cudaMemcpyFromArray_ptds
    cudaMemcpyToArray
    cudaMemcpyToArrayAsync
    cudaMemcpyToArrayAsync_ptsz
    cudaMemcpyToArray_ptds
    cudaMipmappedArrayGetMemoryRequirements
    cudaMipmappedArrayGetSparseProperties
    cudaSignalExternalSemaphoresAsync
    cudaSignalExternalSemaphoresAsync_ptsz
    cudaVDPAUGetDevice
    cudaVDPAUSetVDPAUDevice
    cudaWaitExternalSemaphoresAsync
    cudaWaitExternalSemaphoresAsync_ptsz
}
