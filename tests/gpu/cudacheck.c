// Uses the first GPU by CUDA's driver library, which it loads when it runs, and checks what comes back. It exits with 0 if all is well.
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

int main(void) {
    enum { words = 1 << 20, sizeBytes = 4 * words };
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    result (*init)(unsigned) = symbol("cuInit");
    result (*count)(int *) = symbol("cuDeviceGetCount");
    result (*get)(device *, int) = symbol("cuDeviceGet");
    result (*nameOf)(char *, int, device) = symbol("cuDeviceGetName");
    result (*retain)(context *, device) = symbol("cuDevicePrimaryCtxRetain");
    result (*current)(context) = symbol("cuCtxSetCurrent");
    result (*allocate)(address *, size_t) = symbol("cuMemAlloc_v2");
    result (*fill)(address, unsigned, size_t) = symbol("cuMemsetD32_v2");
    result (*copy)(void *, address, size_t) = symbol("cuMemcpyDtoH_v2");

    int gpus = 0;
    device gpu;
    char name[256] = "";
    context of;
    address memory;
    unsigned *back = calloc(words, sizeof *back);
    check("cuInit", init(0));
    check("cuDeviceGetCount", count(&gpus));
    check("cuDeviceGet", get(&gpu, 0));
    check("cuDeviceGetName", nameOf(name, sizeof name - 1, gpu));
    check("cuDevicePrimaryCtxRetain", retain(&of, gpu));
    check("cuCtxSetCurrent", current(of));
    check("cuMemAlloc", allocate(&memory, sizeBytes));
    check("cuMemsetD32", fill(memory, 0xfeedbeef, words));
    check("cuMemcpyDtoH", copy(back, memory, sizeBytes));
    for (int i = 0; i < words; i++) {
        if (back[i] != 0xfeedbeef) {
            fprintf(stderr, "word %d is %x\n", i, back[i]);
            return 1;
        }
    }
    printf("%d GPU(s); %s filled and read %d bytes\n", gpus, name, sizeBytes);
    return 0;
}
