/* cuFFT: plans of one to three dimensions and of many transforms, all types of numbers, streams, work areas. */
#include "check.h"

#include <complex.h>
#include <cufft.h>

typedef double complex number;

static number *numbers(int count) {
    number *made = malloc(sizeof(number) * count);
    for (int i = 0; i < count; i++)
        made[i] = next_number() + next_number() * I;
    return made;
}

/* The transform of a part of `from` by its definition: n values that are `stride` apart. */
static void line(number *values, int n, int stride, int sign) {
    number *sums = malloc(sizeof(number) * n);
    for (int k = 0; k < n; k++) {
        sums[k] = 0;
        for (int j = 0; j < n; j++)
            sums[k] += values[j * stride] * cexp(sign * 2 * M_PI * I * ((double)((long)j * k % n) / n));
    }
    for (int k = 0; k < n; k++)
        values[k * stride] = sums[k];
    free(sums);
}

static void transform(number *values, int nx, int ny, int nz, int sign) {
    for (int x = 0; x < nx; x++)
        for (int y = 0; y < ny; y++)
            line(values + (x * ny + y) * nz, nz, 1, sign);
    for (int x = 0; x < nx; x++)
        for (int z = 0; z < nz; z++)
            line(values + x * ny * nz + z, ny, nz, sign);
    for (int y = 0; y < ny; y++)
        for (int z = 0; z < nz; z++)
            line(values + y * nz + z, nx, ny * nz, sign);
}

static void z2z(void) {
    enum { NX = 6, NY = 10, NZ = 16, N = NX * NY * NZ };
    const struct {
        const char *name;
        int nx, ny, nz;
    } shapes[] = {{"Z2Z of one dimension", 1, 1, N}, {"Z2Z of two dimensions", 1, NX * NY, NZ}, {"Z2Z of three dimensions", NX, NY, NZ}};
    for (int i = 0; i < 3; i++) {
        number *values = numbers(N), *got = malloc(sizeof(number) * N);
        void *memory = device(values, sizeof(number) * N);
        cufftHandle plan;
        if (i == 0)
            OK(cufftPlan1d(&plan, N, CUFFT_Z2Z, 1));
        else if (i == 1)
            OK(cufftPlan2d(&plan, NX * NY, NZ, CUFFT_Z2Z));
        else
            OK(cufftPlan3d(&plan, NX, NY, NZ, CUFFT_Z2Z));
        OK(cufftExecZ2Z(plan, memory, memory, CUFFT_FORWARD));
        fetch(got, memory, sizeof(number) * N);
        transform(values, shapes[i].nx, shapes[i].ny, shapes[i].nz, -1);
        COMPARE(shapes[i].name, (double *)got, (double *)values, 2 * N, 1e-10);
        OK(cufftDestroy(plan));
        release(memory), free(values), free(got);
    }
}

static void c2c(void) {
    enum { N = 128, BATCH = 7 };
    float complex values[N * BATCH], got[N * BATCH];
    number want[N * BATCH];
    for (int i = 0; i < N * BATCH; i++)
        want[i] = values[i] = (float)next_number() + (float)next_number() * I;
    void *from = device(values, sizeof values), *to = device(NULL, sizeof values);
    cufftHandle plan;
    OK(cufftPlan1d(&plan, N, CUFFT_C2C, BATCH));
    OK(cufftExecC2C(plan, from, to, CUFFT_INVERSE));
    fetch(got, to, sizeof got);
    for (int i = 0; i < BATCH; i++)
        line(want + i * N, N, 1, 1);
    COMPARE("C2C backwards, a batch", (float *)got, (double *)want, 2 * N * BATCH, 1e-4);
    OK(cufftDestroy(plan));
    release(from), release(to);
}

static void r2c(void) {
    enum { N = 60, HALF = N / 2 + 1 };
    NUMBERS(values, float, N);
    float complex got[HALF];
    number want[N];
    float back[N];
    double scaled[N];
    for (int i = 0; i < N; i++)
        want[i] = values[i], scaled[i] = N * values[i];
    line(want, N, 1, -1);
    void *real = device(values, sizeof(float) * N), *half = device(NULL, sizeof got);
    cufftHandle there, again;
    OK(cufftPlan1d(&there, N, CUFFT_R2C, 1));
    OK(cufftPlan1d(&again, N, CUFFT_C2R, 1));
    OK(cufftExecR2C(there, real, half));
    fetch(got, half, sizeof got);
    COMPARE("R2C", (float *)got, (double *)want, 2 * HALF, 1e-4);
    OK(cufftExecC2R(again, half, real));
    fetch(back, real, sizeof back);
    COMPARE("C2R", back, scaled, N, 1e-4);
    OK(cufftDestroy(there));
    OK(cufftDestroy(again));
    release(real), release(half), free(values);
}

static void d2z(void) {
    enum { ROWS = 12, COLUMNS = 10, HALF = COLUMNS / 2 + 1 };
    NUMBERS(values, double, ROWS * COLUMNS);
    number all[ROWS * COLUMNS], want[ROWS * HALF], got[ROWS * HALF];
    double scaled[ROWS * COLUMNS], back[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++)
        all[i] = values[i], scaled[i] = ROWS * COLUMNS * values[i];
    transform(all, 1, ROWS, COLUMNS, -1);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < HALF; j++)
            want[i * HALF + j] = all[i * COLUMNS + j];
    void *real = device(values, sizeof scaled), *half = device(NULL, sizeof got);
    cufftHandle there, again;
    OK(cufftPlan2d(&there, ROWS, COLUMNS, CUFFT_D2Z));
    OK(cufftPlan2d(&again, ROWS, COLUMNS, CUFFT_Z2D));
    OK(cufftExecD2Z(there, real, half));
    fetch(got, half, sizeof got);
    COMPARE("D2Z of two dimensions", (double *)got, (double *)want, 2 * ROWS * HALF, 1e-11);
    OK(cufftExecZ2D(again, half, real));
    fetch(back, real, sizeof back);
    COMPARE("Z2D of two dimensions", back, scaled, ROWS * COLUMNS, 1e-10);
    OK(cufftDestroy(there));
    OK(cufftDestroy(again));
    release(real), release(half), free(values);
}

/* Transforms of columns of a matrix, in a work area and a stream of the program's own. */
static void many(void) {
    enum { N = 24, COLUMNS = 5 };
    int n[1] = {N}, embed[1] = {N};
    number *values = numbers(N * COLUMNS), *got = malloc(sizeof(number) * N * COLUMNS);
    void *memory = device(values, sizeof(number) * N * COLUMNS);
    size_t size = 0, known = 1;
    CUstream stream;
    cufftHandle plan;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cufftCreate(&plan));
    OK(cufftSetAutoAllocation(plan, 0));
    OK(cufftMakePlanMany(plan, 1, n, embed, COLUMNS, 1, embed, COLUMNS, 1, CUFFT_Z2Z, COLUMNS, &size));
    OK(cufftGetSize(plan, &known));
    expect("the work area's size", size == known);
    void *area = device(NULL, size ? size : 1);
    OK(cufftSetWorkArea(plan, area));
    OK(cufftSetStream(plan, stream));
    OK(cufftExecZ2Z(plan, memory, memory, CUFFT_FORWARD));
    OK(cuMemcpyDtoHAsync(got, (CUdeviceptr)memory, sizeof(number) * N * COLUMNS, stream));
    OK(cuStreamSynchronize(stream));
    for (int i = 0; i < COLUMNS; i++)
        line(values + i, N, COLUMNS, -1);
    COMPARE("many columns", (double *)got, (double *)values, 2 * N * COLUMNS, 1e-11);
    OK(cufftDestroy(plan));
    OK(cufftPlanMany(&plan, 1, n, NULL, 1, N, NULL, 1, N, CUFFT_Z2Z, COLUMNS));
    OK(cufftDestroy(plan));
    OK(cuStreamDestroy(stream));
    release(memory), release(area), free(values), free(got);
}

static void errors(void) {
    int version = 0;
    cufftHandle plan;
    OK(cufftGetVersion(&version));
    printf("version %d\n", version);
    expect("a transform of no values is refused", cufftPlan1d(&plan, 0, CUFFT_C2C, 1) != CUFFT_SUCCESS);
}

static void speed(void) {
    enum { N = 1 << 22, TIMES = 50 };
    void *memory = device(NULL, sizeof(float complex) * N);
    OK(cuMemsetD32((CUdeviceptr)memory, 0, 2 * N));
    cufftHandle plan;
    double begin = seconds();
    OK(cufftPlan1d(&plan, N, CUFFT_C2C, 1));
    printf("plan: %.1f ms\n", 1e3 * (seconds() - begin));
    OK(cufftExecC2C(plan, memory, memory, CUFFT_FORWARD));
    OK(cuCtxSynchronize());
    begin = seconds();
    for (int i = 0; i < TIMES; i++)
        OK(cufftExecC2C(plan, memory, memory, CUFFT_FORWARD));
    OK(cuCtxSynchronize());
    printf("C2C of %d: %.1f us each\n", N, 1e6 * (seconds() - begin) / TIMES);
    OK(cufftDestroy(plan));
    release(memory);
}

int main(int argc, char **argv) {
    const struct check checks[] = {{"z2z", z2z}, {"c2c", c2c}, {"r2c", r2c}, {"d2z", d2z}, {"many", many}, {"errors", errors}, {"speed", speed}};
    return RUN_CHECKS(checks);
}
