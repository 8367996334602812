// Managed memory and managed variables are read and written on both sides.
#include "check.h"

__managed__ int steps = 3;
__managed__ double series[64];

__global__ void advance() {
    int i = threadIdx.x;
    series[i] += i * steps;
    __syncthreads();
    if (i == 0) steps++;
}

__global__ void link(int **list, int *item, unsigned n) {
    unsigned i = threadIdx.x;
    if (i < n) list[i] = item + (n - 1 - i);
}

int main() {
    if (!has_managed_memory()) {
        int *memory = nullptr;
        FAILS(cudaMallocManaged(&memory, sizeof *memory), cudaErrorNotSupported);
        std::puts("ok managed, which the device lacks");
        return 0;
    }
    CHECK(steps == 3);
    for (int i = 0; i < 64; i++) series[i] = 1000;
    advance<<<1, 64>>>();
    LAUNCHED();
    OK(cudaDeviceSynchronize());
    CHECK(steps == 4);
    for (int i = 0; i < 64; i++) CHECK(series[i] == 1000 + 3 * i);
    steps = -1;
    advance<<<1, 64>>>();
    LAUNCHED();
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 64; i++) CHECK(series[i] == 1000 + 2 * i);

    // Pointers into managed memory have one value on both sides.
    int **list, *item;
    OK(cudaMallocManaged(&list, 32 * sizeof *list));
    OK(cudaMallocManaged(&item, 32 * sizeof *item));
    for (int i = 0; i < 32; i++) item[i] = i;
    link<<<1, 32>>>(list, item, 32);
    LAUNCHED();
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 32; i++) CHECK(*list[i] == 31 - i);

    int device = 0, concurrent = 0;
    OK(cudaGetDevice(&device));
    OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, device));
    if (concurrent) {
        cudaMemLocation here = {cudaMemLocationTypeDevice, device};
        OK(cudaMemAdvise(item, 32 * sizeof *item, cudaMemAdviseSetPreferredLocation, here));
        OK(cudaMemPrefetchAsync(item, 32 * sizeof *item, here, 0, 0));
        OK(cudaDeviceSynchronize());
    }
    CHECK(item[31] == 31);
    cudaPointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, item));
    CHECK(attributes.type == cudaMemoryTypeManaged && attributes.devicePointer == item);
    OK(cudaFree(list));
    OK(cudaFree(item));
    std::puts("ok managed");
}
