// What is known about the device, the driver and memory.
#include "check.h"

#include <cuda.h>

int main() {
    int count = 0, driver = 0, runtime = 0;
    OK(cudaGetDeviceCount(&count));
    OK(cudaDriverGetVersion(&driver));
    OK(cudaRuntimeGetVersion(&runtime));
    CHECK(count >= 1 && driver >= runtime && runtime == CUDART_VERSION);
    for (int device = 0; device < count; device++) {
        OK(cudaSetDevice(device));
        int current = -1;
        OK(cudaGetDevice(&current));
        CHECK(current == device);
        cudaDeviceProp found;
        OK(cudaGetDeviceProperties(&found, device));
        std::printf("%s, compute capability %d.%d, %d multiprocessors, %zu bytes\n", found.name, found.major, found.minor,
                    found.multiProcessorCount, found.totalGlobalMem);
        int value = 0;
        OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, device));
        CHECK(value == found.major);
        OK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxThreadsPerBlock, device));
        CHECK(value == found.maxThreadsPerBlock && value >= 1024);
        OK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
        CHECK(static_cast<size_t>(value) == found.sharedMemPerBlockOptin);
        OK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxGridDimX, device));
        CHECK(value == found.maxGridSize[0]);
        CHECK(found.warpSize == 32 && found.unifiedAddressing == 1 && found.memoryBusWidth > 0);
        char address[32] = "";
        OK(cudaDeviceGetPCIBusId(address, sizeof address, device));
        int by_address = -1;
        OK(cudaDeviceGetByPCIBusId(&by_address, address));
        CHECK(by_address == device);
        size_t free_bytes, total_bytes, stack_bytes;
        OK(cudaMemGetInfo(&free_bytes, &total_bytes));
        CHECK(free_bytes <= total_bytes && total_bytes <= found.totalGlobalMem);
        OK(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
        OK(cudaDeviceGetLimit(&stack_bytes, cudaLimitStackSize));
        CHECK(stack_bytes >= 4096);
        void *memory, *again;
        OK(cudaMalloc(&memory, 64 << 20));
        cudaPointerAttributes attributes;
        OK(cudaPointerGetAttributes(&attributes, static_cast<char *>(memory) + 100));
        CHECK(attributes.type == cudaMemoryTypeDevice && attributes.device == device);
        OK(cudaFree(memory));
        OK(cudaMalloc(&again, 1));
        CHECK(reinterpret_cast<size_t>(again) % 256 == 0);
        OK(cudaFree(again));
    }
    OK(cudaSetDevice(0));
    int local = 0;
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, &local));
    CHECK(attributes.type == cudaMemoryTypeUnregistered);

    void *entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    OK(cudaGetDriverEntryPointByVersion("cuDeviceGetCount", &entry, 12000, cudaEnableDefault, &result));
    CHECK(result == cudaDriverEntryPointSuccess && entry != nullptr);
    int by_driver = 0;
    CHECK(reinterpret_cast<CUresult (*)(int *)>(entry)(&by_driver) == CUDA_SUCCESS && by_driver == count);
    OK(cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &entry, 12000, cudaEnableDefault, &result));
    CHECK(result == cudaDriverEntryPointSymbolNotFound);

    unsigned flags = 99;
    OK(cudaGetDeviceFlags(&flags));
    OK(cudaDeviceSynchronize());
    std::puts("ok device");
}
