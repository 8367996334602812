// Checks of the programs in this folder. A failed check ends the program with status 1.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

inline void check_code(cudaError_t found, cudaError_t wanted, const char *text, const char *file, int line) {
    if (found != wanted) {
        std::printf("%s:%d: %s: got %s, want %s\n", file, line, text, cudaGetErrorName(found), cudaGetErrorName(wanted));
        std::exit(1);
    }
}

inline void check_true(bool holds, const char *text, const char *file, int line) {
    if (!holds) {
        std::printf("%s:%d: not true: %s\n", file, line, text);
        std::exit(1);
    }
}

// The call succeeds.
#define OK(call) check_code((call), cudaSuccess, #call, __FILE__, __LINE__)
// The call gives this error, which also is the thread's last error, and clears it.
#define FAILS(call, error)                                                           \
    do {                                                                             \
        check_code((call), (error), #call, __FILE__, __LINE__);                      \
        check_code(cudaGetLastError(), (error), "cudaGetLastError()", __FILE__, __LINE__); \
    } while (0)
// The launch before it was refused for its extents: which code tells so differs between runtimes.
#define REFUSED()                                                                                             \
    do {                                                                                                      \
        cudaError_t refused = cudaGetLastError();                                                             \
        check_true(refused == cudaErrorInvalidConfiguration || refused == cudaErrorInvalidValue,              \
                   cudaGetErrorName(refused), __FILE__, __LINE__);                                            \
    } while (0)
// The query finds unfinished work, which isn't an error.
#define NOT_READY(call)                                                   \
    do {                                                                  \
        check_code((call), cudaErrorNotReady, #call, __FILE__, __LINE__); \
        (void)cudaGetLastError();                                         \
    } while (0)
#define CHECK(condition) check_true((condition), #condition, __FILE__, __LINE__)
// The launch before it was accepted.
#define LAUNCHED() OK(cudaGetLastError())

// Reports whether host and device can share variables and allocations.
inline bool has_managed_memory() {
    int device = 0, managed = 0;
    OK(cudaGetDevice(&device));
    OK(cudaDeviceGetAttribute(&managed, cudaDevAttrManagedMemory, device));
    return managed != 0;
}

// Number of the calling thread in a grid of one dimension.
__device__ inline unsigned thread_number() { return blockIdx.x * blockDim.x + threadIdx.x; }
