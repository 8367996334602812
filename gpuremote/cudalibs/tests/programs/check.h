/* What the programs share: GPU memory by the driver's API, comparisons with the processor's results, and a list of checks.
 *
 * A program runs all its checks, or those that its arguments name. It prints a line for each, and ends with 1 when one has failed. */
#ifndef CHECK_H
#define CHECK_H

#include <cuda.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int failures;

/* Ends the program when a call has not returned 0. */
#define OK(call)                                                                              \
    do {                                                                                      \
        int status_ = (int)(call);                                                            \
        if (status_ != 0) {                                                                   \
            fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, status_);   \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

static void report(const char *what, int right, double deviation) {
    printf("%s %s (largest deviation %.3g)\n", right ? "pass" : "FAIL", what, deviation);
    failures += !right;
}

static void expect(const char *what, int right) {
    printf("%s %s\n", right ? "pass" : "FAIL", what);
    failures += !right;
}

static void *device(const void *from, size_t bytes) {
    CUdeviceptr address;
    OK(cuMemAlloc(&address, bytes));
    if (from)
        OK(cuMemcpyHtoD(address, from, bytes));
    return (void *)address;
}

static void fetch(void *to, const void *from, size_t bytes) {
    OK(cuMemcpyDtoH(to, (CUdeviceptr)from, bytes));
}

static void release(void *address) {
    OK(cuMemFree((CUdeviceptr)address));
}

/* Numbers from -1 to 1 that are the same in each run. */
static inline double next_number(void) {
    static unsigned long long state = 88172645463325252ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 4503599627370496.0 - 1.0;
}

#define NUMBERS(name, type, count)                 \
    type *name = malloc(sizeof(type) * (count));   \
    for (size_t i_ = 0; i_ < (size_t)(count); i_++) \
    name[i_] = (type)next_number()

/* Compares numbers of float or double with those of double. */
#define COMPARE(what, got, want, count, tolerance)                \
    do {                                                          \
        double largest_ = 0;                                      \
        for (size_t i_ = 0; i_ < (size_t)(count); i_++) {         \
            double off_ = fabs((double)(got)[i_] - (want)[i_]);   \
            if (!(off_ <= largest_))                              \
                largest_ = off_;                                  \
        }                                                         \
        report(what, largest_ <= (tolerance), largest_);          \
    } while (0)

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct check {
    const char *name;
    void (*run)(void);
};

static int run_checks(const struct check *checks, size_t count, int argc, char **argv) {
    CUcontext context;
    CUdevice gpu;
    OK(cuInit(0));
    OK(cuDeviceGet(&gpu, 0));
    OK(cuDevicePrimaryCtxRetain(&context, gpu));
    OK(cuCtxSetCurrent(context));
    for (size_t i = 0; i < count; i++) {
        int wanted = argc == 1;
        for (int j = 1; j < argc; j++)
            wanted |= strcmp(argv[j], checks[i].name) == 0;
        if (wanted)
            checks[i].run();
    }
    OK(cuCtxSynchronize());
    printf("%d failed\n", failures);
    return failures != 0;
}

#define RUN_CHECKS(checks) run_checks(checks, sizeof(checks) / sizeof((checks)[0]), argc, argv)

#endif
