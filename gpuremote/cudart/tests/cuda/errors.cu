// Errors come at the call that the runtime API reference says, and stay as long as it says.
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

__global__ void touch(int *x) { *x = 1; }
__global__ void __launch_bounds__(128) small_blocks(int *x) { *x = 2; }
__global__ void stop() { __trap(); }

// Runs a part in a process of its own, because the part ruins its context.
static void apart(void (*part)()) {
    std::fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        part();
        std::fflush(stdout);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void an_illegal_address_stays() {
    touch<<<1, 1>>>(reinterpret_cast<int *>(16));
    LAUNCHED();
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
    void *memory;
    CHECK(cudaMalloc(&memory, 4) == cudaErrorIllegalAddress);
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
}

static void a_trap_ends_the_context() {
    stop<<<1, 1>>>();
    LAUNCHED();
    cudaError_t found = cudaDeviceSynchronize();
    CHECK(found == cudaErrorLaunchFailure || found == cudaErrorIllegalInstruction);
}

static void faults_of_arguments() {
    int *x;
    OK(cudaMalloc(&x, sizeof *x));
    touch<<<1, 1025>>>(x);
    REFUSED();
    touch<<<0, 1>>>(x);
    REFUSED();
    touch<<<dim3(1, 70000), 1>>>(x);
    REFUSED();
    touch<<<1, dim3(1, 1, 65)>>>(x);
    REFUSED();
    small_blocks<<<1, 256>>>(x);
    CHECK(cudaGetLastError() != cudaSuccess);
    touch<<<1, 1, 1 << 20>>>(x);
    FAILS(cudaPeekAtLastError(), cudaErrorInvalidValue);
    touch<<<1, 1>>>(x);
    LAUNCHED();
    OK(cudaDeviceSynchronize());

    size_t free_bytes, total_bytes;
    OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    CHECK(free_bytes > 0 && free_bytes <= total_bytes);
    void *memory;
    FAILS(cudaMalloc(&memory, total_bytes + (1ull << 40)), cudaErrorMemoryAllocation);
    FAILS(cudaMalloc(nullptr, 4), cudaErrorInvalidValue);
    FAILS(cudaMemcpy(x, x, 4, static_cast<cudaMemcpyKind>(17)), cudaErrorInvalidMemcpyDirection);
    FAILS(cudaMemset(x, 0, total_bytes), cudaErrorInvalidValue);
    int count;
    OK(cudaGetDeviceCount(&count));
    FAILS(cudaSetDevice(count), cudaErrorInvalidDevice);
    FAILS(cudaSetDevice(-1), cudaErrorInvalidDevice);
    FAILS(cudaFuncSetAttribute(touch, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 30), cudaErrorInvalidValue);

    // Errors are those of a thread.
    touch<<<0, 1>>>(x);
    std::thread([] { CHECK(cudaGetLastError() == cudaSuccess); }).join();
    REFUSED();
    OK(cudaFree(x));
    FAILS(cudaFree(x), cudaErrorInvalidValue);
    CHECK(std::strcmp(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue") == 0);
    CHECK(std::strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
}

// Prints the code of each launch that is refused: runtimes differ in them.
static int print_faults() {
    int *x;
    OK(cudaMalloc(&x, sizeof *x));
    touch<<<1, 1025>>>(x);
    std::printf("1025 threads: %s\n", cudaGetErrorName(cudaGetLastError()));
    touch<<<0, 1>>>(x);
    std::printf("no blocks: %s\n", cudaGetErrorName(cudaGetLastError()));
    touch<<<1, 0>>>(x);
    std::printf("no threads: %s\n", cudaGetErrorName(cudaGetLastError()));
    touch<<<dim3(1, 70000), 1>>>(x);
    std::printf("70000 rows of blocks: %s\n", cudaGetErrorName(cudaGetLastError()));
    touch<<<1, dim3(1, 1, 65)>>>(x);
    std::printf("65 layers of threads: %s\n", cudaGetErrorName(cudaGetLastError()));
    small_blocks<<<1, 256>>>(x);
    std::printf("more threads than the bound of the kernel: %s\n", cudaGetErrorName(cudaGetLastError()));
    touch<<<1, 1, 1 << 20>>>(x);
    std::printf("1 MiB of shared memory: %s\n", cudaGetErrorName(cudaGetLastError()));
    cudaError_t filled = cudaMemset(x, 0, size_t(1) << 40);
    std::printf("fill beyond the allocation: %s\n", cudaGetErrorName(filled));
    return 0;
}

int main(int argc, char **) {
    if (argc > 1) return print_faults();
    // Before this process uses the device: a child can't use what its parent initialized.
    apart(an_illegal_address_stays);
    apart(a_trap_ends_the_context);
    faults_of_arguments();
    OK(cudaDeviceReset());
    int *x;
    OK(cudaMalloc(&x, sizeof *x));
    touch<<<1, 1>>>(x);
    LAUNCHED();
    int value = 0;
    OK(cudaMemcpy(&value, x, sizeof value, cudaMemcpyDeviceToHost));
    CHECK(value == 1);
    std::puts("ok errors");
}
