// Threads share the device, and with --default-stream per-thread each has a default stream.
#include "check.h"

#include <thread>
#include <vector>

__global__ void step(unsigned *x, unsigned n, unsigned factor) {
    unsigned i = thread_number();
    if (i < n) x[i] = x[i] * factor + 1;
}

static void work(unsigned number) {
    const unsigned n = 5000, rounds = 100;
    std::vector<unsigned> values(n, number), found(n);
    unsigned *x, wanted = number;
    OK(cudaMalloc(&x, n * sizeof *x));
    OK(cudaMemcpy(x, values.data(), n * sizeof *x, cudaMemcpyHostToDevice));
    for (unsigned round = 0; round < rounds; round++) {
        step<<<(n + 127) / 128, 128>>>(x, n, number + 2);
        LAUNCHED();
        wanted = wanted * (number + 2) + 1;
    }
    OK(cudaMemcpyAsync(found.data(), x, n * sizeof *x, cudaMemcpyDeviceToHost));
    OK(cudaStreamSynchronize(0));
    for (unsigned value : found) CHECK(value == wanted);
    OK(cudaFree(x));
}

int main() {
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < 8; number++) threads.emplace_back(work, number);
    for (std::thread &thread : threads) thread.join();
    std::puts("ok threads");
}
