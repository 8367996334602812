// Copies and fills of rectangles and boxes, copies of every kind, and pinned memory.
#include "check.h"

#include <vector>

__global__ void transpose(const int *in, size_t in_pitch, int *out, size_t out_pitch, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const int *from = reinterpret_cast<const int *>(reinterpret_cast<const char *>(in) + y * in_pitch) + x;
    int *to = reinterpret_cast<int *>(reinterpret_cast<char *>(out) + x * out_pitch) + y;
    *to = *from;
}

__global__ void negate(int *x, unsigned n) {
    unsigned i = thread_number();
    if (i < n) x[i] = -x[i];
}

static void rectangles() {
    const int width = 100, height = 37;
    std::vector<int> in(width * height), out(width * height, -1);
    for (int i = 0; i < width * height; i++) in[i] = i;
    int *wide, *tall;
    size_t wide_pitch, tall_pitch;
    OK(cudaMallocPitch(&wide, &wide_pitch, width * sizeof(int), height));
    OK(cudaMallocPitch(&tall, &tall_pitch, height * sizeof(int), width));
    OK(cudaMemcpy2D(wide, wide_pitch, in.data(), width * sizeof(int), width * sizeof(int), height, cudaMemcpyHostToDevice));
    dim3 block(16, 16), grid((width + 15) / 16, (height + 15) / 16);
    transpose<<<grid, block>>>(wide, wide_pitch, tall, tall_pitch, width, height);
    LAUNCHED();
    OK(cudaMemcpy2DAsync(out.data(), height * sizeof(int), tall, tall_pitch, height * sizeof(int), width,
                         cudaMemcpyDeviceToHost, 0));
    OK(cudaStreamSynchronize(0));
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) CHECK(out[x * height + y] == in[y * width + x]);
    OK(cudaMemset2D(wide, wide_pitch, 0x11, width * sizeof(int) / 2, height));
    OK(cudaMemcpy2D(out.data(), width * sizeof(int), wide, wide_pitch, width * sizeof(int), height, cudaMemcpyDefault));
    CHECK(out[0] == 0x11111111 && out[width / 2 - 1] == 0x11111111 && out[width / 2] == width / 2);
    FAILS(cudaMemcpy2D(out.data(), 4, wide, wide_pitch, 8, 1, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    OK(cudaFree(wide));
    OK(cudaFree(tall));
}

static void boxes() {
    const size_t width = 20, height = 6, depth = 5;
    std::vector<unsigned char> in(width * height * depth), out(in.size());
    for (size_t i = 0; i < in.size(); i++) in[i] = static_cast<unsigned char>(i);
    cudaPitchedPtr memory;
    cudaExtent whole = make_cudaExtent(width, height, depth);
    OK(cudaMalloc3D(&memory, whole));
    CHECK(memory.pitch >= width && memory.ysize == height);
    OK(cudaMemset3D(memory, 0xEE, whole));
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(in.data(), width, width, height);
    copy.srcPos = make_cudaPos(2, 1, 1);
    copy.dstPtr = memory;
    copy.dstPos = make_cudaPos(4, 2, 1);
    copy.extent = make_cudaExtent(10, 3, 2);
    copy.kind = cudaMemcpyHostToDevice;
    OK(cudaMemcpy3D(&copy));
    cudaMemcpy3DParms back = {};
    back.srcPtr = memory;
    back.dstPtr = make_cudaPitchedPtr(out.data(), width, width, height);
    back.extent = whole;
    back.kind = cudaMemcpyDeviceToHost;
    OK(cudaMemcpy3DAsync(&back, 0));
    OK(cudaStreamSynchronize(0));
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < height; y++)
            for (size_t x = 0; x < width; x++) {
                bool copied = x >= 4 && x < 14 && y >= 2 && y < 5 && z >= 1 && z < 3;
                unsigned char wanted = copied ? in[(z * height + y - 1) * width + x - 2] : 0xEE;
                CHECK(out[(z * height + y) * width + x] == wanted);
            }
    OK(cudaFree(memory.ptr));
}

static void kinds() {
    const unsigned n = 1 << 20;
    std::vector<int> pageable(n), back(n);
    for (unsigned i = 0; i < n; i++) pageable[i] = i;
    int *pinned, *first, *second;
    OK(cudaHostAlloc(&pinned, n * sizeof(int), cudaHostAllocPortable));
    OK(cudaMalloc(&first, n * sizeof(int)));
    OK(cudaMalloc(&second, n * sizeof(int)));
    OK(cudaMemcpy(pinned, pageable.data(), n * sizeof(int), cudaMemcpyHostToHost));
    OK(cudaMemcpyAsync(first, pinned, n * sizeof(int), cudaMemcpyDefault, 0));
    negate<<<(n + 255) / 256, 256>>>(first, n);
    LAUNCHED();
    OK(cudaMemcpy(second, first, n * sizeof(int), cudaMemcpyDeviceToDevice));
    OK(cudaMemcpyPeer(first, 0, second, 0, n * sizeof(int)));
    OK(cudaMemcpy(back.data(), first, n * sizeof(int), cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < n; i++) CHECK(back[i] == -static_cast<int>(i));
    // An unaligned part.
    OK(cudaMemcpy(reinterpret_cast<char *>(first) + 3, reinterpret_cast<char *>(pinned) + 1, 1001, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(reinterpret_cast<char *>(back.data()) + 5, reinterpret_cast<char *>(first) + 3, 1001, cudaMemcpyDeviceToHost));
    CHECK(std::memcmp(reinterpret_cast<char *>(back.data()) + 5, reinterpret_cast<char *>(pinned) + 1, 1001) == 0);
    OK(cudaMemsetAsync(second, 0x7F, n * sizeof(int), 0));
    OK(cudaMemcpy(back.data(), second, n * sizeof(int), cudaMemcpyDeviceToHost));
    CHECK(back[0] == 0x7F7F7F7F && back[n - 1] == 0x7F7F7F7F);
    OK(cudaMemcpy(back.data(), second, 0, cudaMemcpyDeviceToHost));
    OK(cudaFreeHost(pinned));

    // Pinned memory of the program itself.
    OK(cudaHostRegister(pageable.data(), n * sizeof(int), cudaHostRegisterDefault));
    OK(cudaMemcpyAsync(first, pageable.data(), n * sizeof(int), cudaMemcpyHostToDevice, 0));
    OK(cudaStreamSynchronize(0));
    FAILS(cudaHostRegister(pageable.data(), n * sizeof(int), cudaHostRegisterDefault), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostUnregister(pageable.data()));
    FAILS(cudaHostUnregister(pageable.data()), cudaErrorHostMemoryNotRegistered);
    OK(cudaFree(first));
    OK(cudaFree(second));
}

int main() {
    rectangles();
    boxes();
    kinds();
    std::puts("ok copies");
}
