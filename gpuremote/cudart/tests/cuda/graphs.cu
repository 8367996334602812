// Memory pools, and captured work that is launched again.
#include "check.h"

#include <vector>

__global__ void add(int *x, int term, unsigned n) {
    unsigned i = thread_number();
    if (i < n) x[i] += term;
}

static void CUDART_CB count_call(void *data) { ++*static_cast<int *>(data); }

// A graph of nodes: fill, launch, copy to the host, host function.
static void nodes_run_in_the_order_of_their_edges() {
    const unsigned n = 256;
    int *x, *pinned, term = 5, calls = 0;
    unsigned count = n;
    OK(cudaMalloc(&x, n * sizeof *x));
    OK(cudaMallocHost(&pinned, n * sizeof *pinned));
    cudaGraph_t graph;
    cudaGraphNode_t fill, launch, copy, call;
    OK(cudaGraphCreate(&graph, 0));
    cudaMemsetParams fill_of = {};
    fill_of.dst = x;
    fill_of.value = 7;
    fill_of.elementSize = 4;
    fill_of.width = n;
    fill_of.height = 1;
    OK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &fill_of));
    void *arguments[] = {&x, &term, &count};
    cudaKernelNodeParams launch_of = {};
    launch_of.func = reinterpret_cast<void *>(add);
    launch_of.gridDim = dim3(1);
    launch_of.blockDim = dim3(n);
    launch_of.kernelParams = arguments;
    OK(cudaGraphAddKernelNode(&launch, graph, &fill, 1, &launch_of));
    // The graph can't copy to the host where the device is another host's.
    cudaError_t added = cudaGraphAddMemcpyNode1D(&copy, graph, &launch, 1, pinned, x, n * sizeof *x, cudaMemcpyDeviceToHost);
    bool copies = added == cudaSuccess;
    CHECK(copies || added == cudaErrorNotSupported);
    cudaHostNodeParams call_of = {count_call, &calls};
    OK(cudaGraphAddHostNode(&call, graph, copies ? &copy : &launch, 1, &call_of));
    cudaGraphNodeType type;
    OK(cudaGraphNodeGetType(launch, &type));
    CHECK(type == cudaGraphNodeTypeKernel);
    cudaGraphExec_t executable;
    OK(cudaGraphInstantiate(&executable, graph, 0));
    OK(cudaGraphLaunch(executable, 0));
    OK(cudaDeviceSynchronize());
    if (!copies) OK(cudaMemcpy(pinned, x, n * sizeof *x, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < n; i++) CHECK(pinned[i] == 12);
    term = -7;
    OK(cudaGraphExecKernelNodeSetParams(executable, launch, &launch_of));
    OK(cudaGraphLaunch(executable, 0));
    OK(cudaDeviceSynchronize());
    if (!copies) OK(cudaMemcpy(pinned, x, n * sizeof *x, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < n; i++) CHECK(pinned[i] == 0);
    CHECK(calls == 2);
    OK(cudaGraphExecDestroy(executable));
    OK(cudaGraphDestroy(graph));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(x));
}

static void captured_work_is_launched_again() {
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
}

int main() {
    captured_work_is_launched_again();
    nodes_run_in_the_order_of_their_edges();
    std::puts("ok graphs");
}
