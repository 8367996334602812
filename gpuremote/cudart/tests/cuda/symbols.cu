// Variables in device and constant memory, and kernels of all kinds of names.
#include "check.h"

#include <vector>

struct Pair {
    int first;
    double second;
};

__constant__ Pair pairs[3] = {{1, 0.5}, {2, 1.5}, {3, 2.5}};
__device__ int total;
static __device__ unsigned table[16] = {1, 2, 3};

namespace inner {
__device__ float weight = 0.25f;
__global__ void read_weight(float *out) { *out = weight; }
}  // namespace inner

__global__ void sum_pairs(double *out) {
    double sum = 0;
    for (const Pair &pair : pairs) sum += pair.first * pair.second;
    *out = sum;
}

__global__ void count_threads() { atomicAdd(&total, 1); }

__global__ void read_table(unsigned *out) { out[threadIdx.x] = table[threadIdx.x]; }

template <typename T, int Factor>
__global__ void scaled(T *x, unsigned n) {
    unsigned i = thread_number();
    if (i < n) x[i] *= Factor;
}

template <typename T>
T fetch(const T *address) {
    T value;
    OK(cudaMemcpy(&value, address, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}

int main() {
    double *sum;
    OK(cudaMalloc(&sum, sizeof *sum));
    sum_pairs<<<1, 1>>>(sum);
    LAUNCHED();
    CHECK(fetch(sum) == 11.0);

    const Pair replaced[2] = {{10, 1.0}, {20, 2.0}};
    OK(cudaMemcpyToSymbol(pairs, replaced, sizeof replaced, sizeof(Pair)));
    sum_pairs<<<1, 1>>>(sum);
    LAUNCHED();
    CHECK(fetch(sum) == 50.5);
    FAILS(cudaMemcpyToSymbol(pairs, replaced, sizeof replaced, 2 * sizeof(Pair)), cudaErrorInvalidValue);

    int count = 5;
    OK(cudaMemcpyToSymbol(total, &count, sizeof count));
    count_threads<<<10, 100>>>();
    LAUNCHED();
    OK(cudaMemcpyFromSymbol(&count, total, sizeof count));
    CHECK(count == 1005);

    size_t size = 0;
    void *address = nullptr;
    OK(cudaGetSymbolSize(&size, table));
    CHECK(size == sizeof table);
    OK(cudaGetSymbolAddress(&address, table));
    OK(cudaMemset(static_cast<char *>(address) + 4, 0xFF, 4));
    unsigned *read;
    OK(cudaMalloc(&read, sizeof table));
    read_table<<<1, 16>>>(read);
    LAUNCHED();
    std::vector<unsigned> found(16);
    OK(cudaMemcpy(found.data(), read, sizeof table, cudaMemcpyDeviceToHost));
    CHECK(found[0] == 1 && found[1] == 0xFFFFFFFFu && found[2] == 3 && found[3] == 0);
    OK(cudaMemcpyFromSymbolAsync(found.data(), table, 8, 4, cudaMemcpyDeviceToHost, 0));
    OK(cudaStreamSynchronize(0));
    CHECK(found[0] == 0xFFFFFFFFu && found[1] == 3);

    float *weight;
    OK(cudaMalloc(&weight, sizeof *weight));
    inner::read_weight<<<1, 1>>>(weight);
    LAUNCHED();
    CHECK(fetch(weight) == 0.25f);
    scaled<float, 8><<<1, 1>>>(weight, 1);
    LAUNCHED();
    CHECK(fetch(weight) == 2.0f);
    scaled<double, -1><<<1, 1>>>(sum, 1);
    LAUNCHED();
    CHECK(fetch(sum) == -50.5);

    int unregistered = 0;
    FAILS(cudaGetSymbolAddress(&address, unregistered), cudaErrorInvalidSymbol);
    OK(cudaFree(sum));
    OK(cudaFree(read));
    OK(cudaFree(weight));
    std::puts("ok symbols");
}
