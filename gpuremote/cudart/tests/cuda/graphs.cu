// Memory pools, and captured work that is launched again.
#include "check.h"

#include <vector>

__global__ void add(int *x, int term, unsigned n) {
    unsigned i = thread_number();
    if (i < n) x[i] += term;
}

int main() {
    int device, pools;
    OK(cudaGetDevice(&device));
    OK(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device));
    CHECK(pools == 1);
    cudaMemPool_t pool;
    OK(cudaDeviceGetDefaultMemPool(&pool, device));
    unsigned long long threshold = 1 << 20, read = 0;
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &read));
    CHECK(read == threshold);

    const unsigned n = 1000;
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    int *x;
    OK(cudaMallocAsync(&x, n * sizeof *x, stream));
    OK(cudaMemsetAsync(x, 0, n * sizeof *x, stream));
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 1; i <= 10; i++) add<<<(n + 255) / 256, 256, 0, stream>>>(x, i, n);
    LAUNCHED();
    cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(stream, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 10);
    OK(cudaGraphInstantiate(&executable, graph, 0));
    for (int round = 0; round < 20; round++) OK(cudaGraphLaunch(executable, stream));
    std::vector<int> found(n);
    OK(cudaMemcpyAsync(found.data(), x, n * sizeof *x, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (int value : found) CHECK(value == 20 * 55);
    OK(cudaGraphExecDestroy(executable));
    OK(cudaGraphDestroy(graph));
    OK(cudaFreeAsync(x, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemPoolTrimTo(pool, 0));
    OK(cudaStreamDestroy(stream));
    std::puts("ok graphs");
}
