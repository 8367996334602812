// Device code of two files, linked by nvcc: build with -rdc=true together with linked_device.cu.
#include "check.h"

extern __device__ int offset;
__device__ int shifted(int x);

__global__ void shift(int *x) { x[threadIdx.x] = shifted(x[threadIdx.x]); }

int main() {
    int values[4] = {1, 2, 3, 4}, *x;
    OK(cudaMalloc(&x, sizeof values));
    OK(cudaMemcpy(x, values, sizeof values, cudaMemcpyHostToDevice));
    shift<<<1, 4>>>(x);
    LAUNCHED();
    int other = 1000;
    OK(cudaMemcpyToSymbol(offset, &other, sizeof other));
    shift<<<1, 4>>>(x);
    LAUNCHED();
    OK(cudaMemcpy(values, x, sizeof values, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 4; i++) CHECK(values[i] == i + 1 + 100 + 1000);
    OK(cudaFree(x));
    std::puts("ok linked");
}
