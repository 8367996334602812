// Kernels that the fake driver of this workspace also knows, so that this program runs without a GPU.
#include "check.h"

#include <vector>

__constant__ float coefficient = 2.5f;
__device__ int counter = 7;
__managed__ unsigned shared_values[8];

__global__ void vector_add(float *out, const float *a, const float *b, unsigned n) {
    unsigned i = thread_number();
    if (i < n) out[i] = a[i] + b[i];
}

__global__ void scale_by_coefficient(float *x, unsigned n) {
    unsigned i = thread_number();
    if (i < n) x[i] *= coefficient;
}

__global__ void increment(unsigned *x, unsigned n) {
    unsigned i = thread_number();
    if (i < n) x[i] += 1;
}

__global__ void spin(unsigned microseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < microseconds * 1000ull);
}

int main() {
    const unsigned n = 1000;
    std::vector<float> a(n, 1.5f), b(n, 2.0f), c(n);
    float *da, *db, *dc;
    OK(cudaMalloc(&da, n * sizeof(float)));
    OK(cudaMalloc(&db, n * sizeof(float)));
    OK(cudaMalloc(&dc, n * sizeof(float)));
    OK(cudaMemcpy(da, a.data(), n * sizeof(float), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(db, b.data(), n * sizeof(float), cudaMemcpyDefault));
    vector_add<<<4, 256>>>(dc, da, db, n);
    LAUNCHED();
    scale_by_coefficient<<<4, 256>>>(dc, n);
    LAUNCHED();
    OK(cudaMemcpy(c.data(), dc, n * sizeof(float), cudaMemcpyDeviceToHost));
    for (float value : c) CHECK(value == 3.5f * 2.5f);

    const float other = -1.0f;
    OK(cudaMemcpyToSymbol(coefficient, &other, sizeof other));
    scale_by_coefficient<<<4, 256>>>(dc, n);
    LAUNCHED();
    OK(cudaMemcpy(c.data(), dc, n * sizeof(float), cudaMemcpyDeviceToHost));
    for (float value : c) CHECK(value == -3.5f * 2.5f);

    int count = 0;
    OK(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    CHECK(count == 7);

    if (has_managed_memory()) {
        for (unsigned i = 0; i < 8; i++) shared_values[i] = i;
        increment<<<1, 8>>>(shared_values, 8);
        LAUNCHED();
        OK(cudaDeviceSynchronize());
        for (unsigned i = 0; i < 8; i++) CHECK(shared_values[i] == i + 1);
    }

    cudaStream_t stream;
    cudaEvent_t start, end;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaEventCreate(&start));
    OK(cudaEventCreate(&end));
    OK(cudaEventRecord(start, stream));
    spin<<<1, 1, 0, stream>>>(20000);
    LAUNCHED();
    OK(cudaEventRecord(end, stream));
    NOT_READY(cudaEventQuery(end));
    OK(cudaStreamSynchronize(stream));
    float milliseconds = 0;
    OK(cudaEventElapsedTime(&milliseconds, start, end));
    CHECK(milliseconds >= 19.9f && milliseconds < 2000.0f);
    OK(cudaEventDestroy(start));
    OK(cudaEventDestroy(end));
    OK(cudaStreamDestroy(stream));

    vector_add<<<1, 2000>>>(dc, da, db, n);
    REFUSED();
    OK(cudaFree(da));
    OK(cudaFree(db));
    OK(cudaFree(dc));
    std::puts("ok known_kernels");
}
