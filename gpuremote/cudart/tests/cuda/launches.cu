// Launches of every form, what is known about kernels, shared memory, and output of kernels.
#include "check.h"

#include <cooperative_groups.h>

#include <vector>

namespace cg = cooperative_groups;

struct Matrix {
    float row[4][4];
    char tag;
    double scale;
};

__global__ void structure(Matrix m, char c, short s, long long l, double *out, bool negative) {
    double sum = c + s + l + m.tag;
    for (int i = 0; i < 4; i++) sum += m.row[i][i] * m.scale;
    *out = negative ? -sum : sum;
}

__global__ void block_sums(const int *in, int *out, unsigned n) {
    extern __shared__ int part[];
    unsigned i = thread_number();
    part[threadIdx.x] = i < n ? in[i] : 0;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}

__global__ void large_shared(int *out, unsigned words) {
    extern __shared__ int part[];
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) part[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) *out = part[words - 1];
}

__global__ void all_blocks(int *values, int *sum) {
    cg::grid_group grid = cg::this_grid();
    values[grid.thread_rank()] = static_cast<int>(grid.thread_rank());
    grid.sync();
    if (grid.thread_rank() == 0) {
        int total = 0;
        for (unsigned i = 0; i < grid.size(); i++) total += values[i];
        *sum = total;
    }
}

__global__ void where(unsigned *out) {
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

__global__ void greet() {
    if (threadIdx.x < 2) printf("hello from thread %u of block %u\n", threadIdx.x, blockIdx.x);
}

template <typename T>
T fetch(const T *address) {
    T value;
    OK(cudaMemcpy(&value, address, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}

int main() {
    double *number;
    OK(cudaMalloc(&number, sizeof *number));
    Matrix m = {};
    for (int i = 0; i < 4; i++) m.row[i][i] = i + 1.0f;
    m.tag = 5;
    m.scale = 2.0;
    structure<<<1, 1>>>(m, 1, -2, 1ll << 40, number, true);
    LAUNCHED();
    CHECK(fetch(number) == -(1.0 - 2.0 + static_cast<double>(1ll << 40) + 5.0 + 20.0));

    const unsigned n = 10000, threads = 256, blocks = (n + threads - 1) / threads;
    std::vector<int> in(n), sums(blocks);
    for (unsigned i = 0; i < n; i++) in[i] = i;
    int *values, *parts;
    OK(cudaMalloc(&values, n * sizeof(int)));
    OK(cudaMalloc(&parts, n * sizeof(int)));
    OK(cudaMemcpy(values, in.data(), n * sizeof(int), cudaMemcpyHostToDevice));
    block_sums<<<blocks, threads, threads * sizeof(int)>>>(values, parts, n);
    LAUNCHED();
    OK(cudaMemcpy(sums.data(), parts, blocks * sizeof(int), cudaMemcpyDeviceToHost));
    long long total = 0;
    for (int sum : sums) total += sum;
    CHECK(total == static_cast<long long>(n) * (n - 1) / 2);

    void *arguments[] = {&values, &parts, const_cast<unsigned *>(&n)};
    OK(cudaMemset(parts, 0, blocks * sizeof(int)));
    OK(cudaLaunchKernel(reinterpret_cast<const void *>(block_sums), dim3(blocks), dim3(threads), arguments,
                        threads * sizeof(int), 0));
    CHECK(fetch(parts) == 255 * 256 / 2);

    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = threads * sizeof(int);
    OK(cudaMemset(parts, 0, blocks * sizeof(int)));
    OK(cudaLaunchKernelEx(&config, block_sums, static_cast<const int *>(values), parts, n));
    CHECK(fetch(parts) == 255 * 256 / 2);

    unsigned *places;
    const dim3 grid(2, 3, 4), block(4, 2, 3);
    std::vector<unsigned> found(24 * 24);
    OK(cudaMalloc(&places, found.size() * sizeof(unsigned)));
    where<<<grid, block>>>(places);
    LAUNCHED();
    OK(cudaMemcpy(found.data(), places, found.size() * sizeof(unsigned), cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < found.size(); i++) CHECK(found[i] == i / 24 * 1000 + i % 24);

    int device, optin, sms, cooperative;
    OK(cudaGetDevice(&device));
    OK(cudaDeviceGetAttribute(&optin, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    OK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    OK(cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, device));
    if (optin > 48 * 1024) {
        large_shared<<<1, 64, optin>>>(parts, optin / 4);
        FAILS(cudaPeekAtLastError(), cudaErrorInvalidValue);
        OK(cudaFuncSetAttribute(large_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, optin));
        large_shared<<<1, 64, optin>>>(parts, optin / 4);
        LAUNCHED();
        CHECK(fetch(parts) == optin / 4 - 1);
    }

    cudaFuncAttributes attributes;
    OK(cudaFuncGetAttributes(&attributes, block_sums));
    CHECK(attributes.maxThreadsPerBlock >= 256 && attributes.numRegs > 0 && attributes.binaryVersion >= 75);
    int fitting = 0, smallest_grid = 0, best_block = 0;
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fitting, block_sums, threads, threads * sizeof(int)));
    CHECK(fitting > 0);
    OK(cudaOccupancyMaxPotentialBlockSize(&smallest_grid, &best_block, structure, 0, 0));
    CHECK(smallest_grid >= sms && best_block > 0 && best_block % 32 == 0);

    if (cooperative) {
        int each = 0;
        OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, all_blocks, 64, 0));
        unsigned all = static_cast<unsigned>(sms * each) < 100 ? sms * each : 100;
        void *both[] = {&values, &parts};
        OK(cudaLaunchCooperativeKernel(all_blocks, dim3(all), dim3(64), both, 0, 0));
        int count = static_cast<int>(all * 64);
        CHECK(fetch(parts) == count * (count - 1) / 2);
    }
    greet<<<2, 32>>>();
    LAUNCHED();
    OK(cudaDeviceSynchronize());
    OK(cudaFree(number));
    OK(cudaFree(values));
    OK(cudaFree(parts));
    OK(cudaFree(places));
    std::puts("ok launches");
}
