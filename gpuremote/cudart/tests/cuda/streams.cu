// Streams run in order, events order streams, and host functions run between the work of a stream.
#include "check.h"

#include <atomic>
#include <vector>

__global__ void wait_and_fill(unsigned *x, unsigned value, unsigned n, unsigned microseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < microseconds * 1000ull);
    unsigned i = thread_number();
    if (i < n) x[i] = value;
}

__global__ void multiply_add(unsigned *x, unsigned factor, unsigned term, unsigned n) {
    unsigned i = thread_number();
    if (i < n) x[i] = x[i] * factor + term;
}

static std::atomic<unsigned> host_calls{0};

static void CUDART_CB remember(void *data) {
    *static_cast<unsigned *>(data) = ++host_calls;
}

static void CUDART_CB finished(cudaStream_t, cudaError_t status, void *data) {
    *static_cast<int *>(data) = status;
}

static void many_operations_keep_their_order() {
    const unsigned n = 256;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    unsigned *x, wanted = 1;
    OK(cudaMallocAsync(&x, n * sizeof *x, stream));
    wait_and_fill<<<1, n, 0, stream>>>(x, 1, n, 0);
    for (unsigned i = 0; i < 500; i++) {
        multiply_add<<<1, n, 0, stream>>>(x, 3, i, n);
        wanted = wanted * 3 + i;
    }
    LAUNCHED();
    std::vector<unsigned> found(n);
    OK(cudaMemcpyAsync(found.data(), x, n * sizeof *x, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (unsigned value : found) CHECK(value == wanted);
    OK(cudaFreeAsync(x, stream));
    OK(cudaStreamDestroy(stream));
}

static void an_event_orders_two_streams() {
    const unsigned n = 1024;
    cudaStream_t first, second;
    int least, greatest;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    OK(cudaStreamCreateWithPriority(&first, cudaStreamNonBlocking, least));
    OK(cudaStreamCreateWithPriority(&second, cudaStreamNonBlocking, greatest));
    cudaEvent_t filled;
    OK(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));
    unsigned *x, *pinned;
    OK(cudaMalloc(&x, n * sizeof *x));
    OK(cudaMallocHost(&pinned, n * sizeof *x));
    std::memset(pinned, 0, n * sizeof *x);
    wait_and_fill<<<4, 256, 0, first>>>(x, 42, n, 30000);
    LAUNCHED();
    OK(cudaEventRecord(filled, first));
    NOT_READY(cudaEventQuery(filled));
    OK(cudaStreamWaitEvent(second, filled, 0));
    OK(cudaMemcpyAsync(pinned, x, n * sizeof *x, cudaMemcpyDeviceToHost, second));
    OK(cudaStreamSynchronize(second));
    for (unsigned i = 0; i < n; i++) CHECK(pinned[i] == 42);
    OK(cudaEventQuery(filled));
    float milliseconds;
    FAILS(cudaEventElapsedTime(&milliseconds, filled, filled), cudaErrorInvalidResourceHandle);
    OK(cudaEventDestroy(filled));
    OK(cudaFree(x));
    OK(cudaFreeHost(pinned));
    OK(cudaStreamDestroy(first));
    OK(cudaStreamDestroy(second));
}

static void host_functions_run_in_the_order_of_their_stream() {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    unsigned *x, order[3] = {0, 0, 0};
    int status = -1;
    OK(cudaMalloc(&x, sizeof *x));
    wait_and_fill<<<1, 1, 0, stream>>>(x, 1, 1, 5000);
    LAUNCHED();
    for (unsigned &place : order) OK(cudaLaunchHostFunc(stream, remember, &place));
    OK(cudaStreamAddCallback(stream, finished, &status, 0));
    OK(cudaStreamSynchronize(stream));
    CHECK(order[0] == 1 && order[1] == 2 && order[2] == 3 && status == cudaSuccess);
    OK(cudaFree(x));
    OK(cudaStreamDestroy(stream));
}

static void the_default_stream_waits_for_blocking_streams() {
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    unsigned *x, value = 0;
    OK(cudaMalloc(&x, sizeof *x));
    wait_and_fill<<<1, 1, 0, stream>>>(x, 9, 1, 20000);
    LAUNCHED();
    OK(cudaMemcpy(&value, x, sizeof value, cudaMemcpyDeviceToHost));
    CHECK(value == 9);
    unsigned flags = 7;
    OK(cudaStreamGetFlags(stream, &flags));
    CHECK(flags == cudaStreamDefault);
    OK(cudaFree(x));
    OK(cudaStreamDestroy(stream));
}

int main() {
    many_operations_keep_their_order();
    an_event_orders_two_streams();
    host_functions_run_in_the_order_of_their_stream();
    the_default_stream_waits_for_blocking_streams();
    std::puts("ok streams");
}
