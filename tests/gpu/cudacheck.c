// Uses the first GPU by CUDA's driver library, which it loads when it runs. It exits with 0 if all is well.
//
//   cudacheck        fills some memory of the GPU, and checks what comes back
//   cudacheck fill   fills nearly all memory of the GPU, and leaves it so
//   cudacheck look   looks for what fill left, in memory that it did not write to
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The types of CUDA's driver interface, as its reference manual gives them.
typedef int result;
typedef int device;
typedef void *context;
typedef unsigned long long address;

static void *library;

static void *symbol(const char *name) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return found;
}

static void check(const char *what, result r) {
    if (r != 0) {
        fprintf(stderr, "%s: error %d\n", what, r);
        exit(1);
    }
}

enum { mark = 0xfeedbeef };

// Functions of the library, by what they do.
static result (*init)(unsigned);
static result (*count)(int *);
static result (*get)(device *, int);
static result (*nameOf)(char *, int, device);
static result (*retain)(context *, device);
static result (*current)(context);
static result (*allocate)(address *, size_t);
static result (*fill)(address, unsigned, size_t);
static result (*copy)(void *, address, size_t);
static result (*wait)(void);

static void load(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    init = symbol("cuInit");
    count = symbol("cuDeviceGetCount");
    get = symbol("cuDeviceGet");
    nameOf = symbol("cuDeviceGetName");
    retain = symbol("cuDevicePrimaryCtxRetain");
    current = symbol("cuCtxSetCurrent");
    allocate = symbol("cuMemAlloc_v2");
    fill = symbol("cuMemsetD32_v2");
    copy = symbol("cuMemcpyDtoH_v2");
    wait = symbol("cuCtxSynchronize");
}

// compute fills a little memory and reads it back.
static void compute(const char *name, int gpus) {
    enum { words = 1 << 20 };
    unsigned *back = calloc(words, sizeof *back);
    address memory;
    check("cuMemAlloc", allocate(&memory, words * sizeof *back));
    check("cuMemsetD32", fill(memory, (unsigned)mark, words));
    check("cuMemcpyDtoH", copy(back, memory, words * sizeof *back));
    for (int i = 0; i < words; i++) {
        if (back[i] != (unsigned)mark) {
            fprintf(stderr, "word %d is %x\n", i, back[i]);
            exit(1);
        }
    }
    printf("%d GPU(s); %s filled and read %zu bytes\n", gpus, name, words * sizeof *back);
}

// all takes the GPU's memory in pieces of 1 GiB until none is left. It fills each, or looks at samples of it.
static void all(int looking) {
    enum { samples = 16, words = 1 << 14 };
    const size_t piece = (size_t)1 << 30;
    static unsigned back[words];
    long pieces = 0, found = 0;
    for (address memory; allocate(&memory, piece) == 0; pieces++) {
        if (!looking) {
            check("cuMemsetD32", fill(memory, (unsigned)mark, piece / sizeof *back));
            continue;
        }
        for (int s = 0; s < samples; s++) {
            check("cuMemcpyDtoH", copy(back, memory + s * (piece / samples), sizeof back));
            for (int i = 0; i < words; i++) {
                found += back[i] == (unsigned)mark;
            }
        }
    }
    check("cuCtxSynchronize", wait());
    printf("%s %ld GiB, and found %ld words of a former process\n", looking ? "looked into" : "filled", pieces, found);
    exit(pieces == 0 || found > 0);
}

int main(int argc, char **argv) {
    int gpus = 0;
    device gpu;
    char name[256] = "";
    context of;
    load();
    check("cuInit", init(0));
    check("cuDeviceGetCount", count(&gpus));
    check("cuDeviceGet", get(&gpu, 0));
    check("cuDeviceGetName", nameOf(name, sizeof name - 1, gpu));
    check("cuDevicePrimaryCtxRetain", retain(&of, gpu));
    check("cuCtxSetCurrent", current(of));
    if (argc > 1) {
        all(strcmp(argv[1], "look") == 0);
    }
    compute(name, gpus);
    return 0;
}
