/* cuRAND: that distributions have their moments, and that seeds and offsets give the same numbers again. */
#include "check.h"

#include <curand.h>

enum { N = 1 << 20 };

static curandGenerator_t generator(curandRngType_t type, unsigned long long seed) {
    curandGenerator_t made;
    OK(curandCreateGenerator(&made, type));
    OK(curandSetPseudoRandomGeneratorSeed(made, seed));
    return made;
}

/* Mean and deviation of N numbers, as far as that many of them tell: within five of their own deviations. */
static void moments(const char *what, const double *values, double mean, double deviation) {
    double sum = 0, squares = 0;
    for (int i = 0; i < N; i++)
        sum += values[i];
    sum /= N;
    for (int i = 0; i < N; i++)
        squares += (values[i] - sum) * (values[i] - sum);
    double off = fabs(sum - mean), spread = sqrt(squares / N);
    report(what, off < 5 * deviation / sqrt(N) && fabs(spread / deviation - 1) < 0.02, off);
}

static void floats(void) {
    float *got = malloc(sizeof(float) * N);
    double *values = malloc(sizeof(double) * N);
    void *memory = device(NULL, sizeof(float) * N);
    curandGenerator_t made = generator(CURAND_RNG_PSEUDO_DEFAULT, 1234);
    OK(curandGenerateUniform(made, memory, N));
    fetch(got, memory, sizeof(float) * N);
    int inside = 1;
    for (int i = 0; i < N; i++)
        values[i] = got[i], inside &= got[i] > 0 && got[i] <= 1;
    expect("uniform numbers are above 0 and at most 1", inside);
    moments("uniform", values, 0.5, sqrt(1.0 / 12));
    OK(curandGenerateNormal(made, memory, N, 3, 2));
    fetch(got, memory, sizeof(float) * N);
    for (int i = 0; i < N; i++)
        values[i] = got[i];
    moments("normal", values, 3, 2);
    OK(curandGenerateLogNormal(made, memory, N, 0.5f, 0.25f));
    fetch(got, memory, sizeof(float) * N);
    for (int i = 0; i < N; i++)
        values[i] = log(got[i]);
    moments("lognormal", values, 0.5, 0.25);
    OK(curandDestroyGenerator(made));
    release(memory), free(got), free(values);
}

static void doubles(void) {
    double *values = malloc(sizeof(double) * N);
    void *memory = device(NULL, sizeof(double) * N);
    curandGenerator_t made = generator(CURAND_RNG_PSEUDO_PHILOX4_32_10, 99);
    OK(curandGenerateUniformDouble(made, memory, N));
    fetch(values, memory, sizeof(double) * N);
    moments("uniform, double", values, 0.5, sqrt(1.0 / 12));
    OK(curandGenerateNormalDouble(made, memory, N, -1, 0.5));
    fetch(values, memory, sizeof(double) * N);
    moments("normal, double", values, -1, 0.5);
    OK(curandDestroyGenerator(made));
    release(memory), free(values);
}

static void integers(void) {
    unsigned *got = malloc(sizeof(unsigned) * N);
    double *values = malloc(sizeof(double) * N);
    void *memory = device(NULL, sizeof(unsigned) * N);
    curandGenerator_t made = generator(CURAND_RNG_PSEUDO_MRG32K3A, 7);
    OK(curandGeneratePoisson(made, memory, N, 12.5));
    fetch(got, memory, sizeof(unsigned) * N);
    for (int i = 0; i < N; i++)
        values[i] = got[i];
    moments("poisson", values, 12.5, sqrt(12.5));
    OK(curandDestroyGenerator(made));
    made = generator(CURAND_RNG_PSEUDO_XORWOW, 7);
    OK(curandGenerate(made, memory, N));
    fetch(got, memory, sizeof(unsigned) * N);
    for (int i = 0; i < N; i++)
        values[i] = got[i] / 4294967296.0;
    moments("32 bits", values, 0.5, sqrt(1.0 / 12));
    OK(curandDestroyGenerator(made));
    release(memory), free(got), free(values);
}

/* Twice the same seed, and a part of the same numbers by an offset, in a stream. */
static void seeds(void) {
    enum { COUNT = 4096, SKIPPED = 1024 };
    float first[COUNT], second[COUNT], part[COUNT - SKIPPED];
    void *memory = device(NULL, sizeof first);
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 3; i++) {
        curandGenerator_t made = generator(CURAND_RNG_PSEUDO_PHILOX4_32_10, 42);
        OK(curandSetStream(made, stream));
        OK(curandSetGeneratorOrdering(made, CURAND_ORDERING_PSEUDO_DEFAULT));
        OK(curandSetGeneratorOffset(made, i == 2 ? SKIPPED : 0));
        OK(curandGenerateUniform(made, memory, i == 2 ? COUNT - SKIPPED : COUNT));
        float *to = i == 0 ? first : i == 1 ? second : part;
        OK(cuMemcpyDtoHAsync(to, (CUdeviceptr)memory, i == 2 ? sizeof part : sizeof first, stream));
        OK(cuStreamSynchronize(stream));
        OK(curandDestroyGenerator(made));
    }
    expect("a seed gives the same numbers again", memcmp(first, second, sizeof first) == 0);
    expect("an offset leaves out the first numbers", memcmp(first + SKIPPED, part, sizeof part) == 0);
    OK(cuStreamDestroy(stream));
    release(memory);
}

static void sobol(void) {
    enum { DIMENSIONS = 4, COUNT = 1 << 12 };
    float *got = malloc(sizeof(float) * DIMENSIONS * COUNT);
    void *memory = device(NULL, sizeof(float) * DIMENSIONS * COUNT);
    curandGenerator_t made;
    OK(curandCreateGenerator(&made, CURAND_RNG_QUASI_SOBOL32));
    OK(curandSetQuasiRandomGeneratorDimensions(made, DIMENSIONS));
    OK(curandGenerateUniform(made, memory, DIMENSIONS * COUNT));
    fetch(got, memory, sizeof(float) * DIMENSIONS * COUNT);
    double worst = 0;
    for (int d = 0; d < DIMENSIONS; d++) {
        double sum = 0;
        for (int i = 0; i < COUNT; i++)
            sum += got[d * COUNT + i];
        worst = fmax(worst, fabs(sum / COUNT - 0.5));
    }
    report("Sobol numbers are evenly spread", worst < 1e-3, worst);
    OK(curandDestroyGenerator(made));
    release(memory), free(got);
}

static void errors(void) {
    int version = 0;
    curandGenerator_t made;
    OK(curandGetVersion(&version));
    printf("version %d\n", version);
    expect("a generator of no type is refused", curandCreateGenerator(&made, (curandRngType_t)5) != CURAND_STATUS_SUCCESS);
}

static void speed(void) {
    enum { COUNT = 1 << 26 };
    void *memory = device(NULL, sizeof(float) * COUNT);
    curandGenerator_t made = generator(CURAND_RNG_PSEUDO_PHILOX4_32_10, 1);
    OK(curandGenerateUniform(made, memory, COUNT));
    OK(cuCtxSynchronize());
    double begin = seconds();
    for (int i = 0; i < 20; i++)
        OK(curandGenerateUniform(made, memory, COUNT));
    OK(cuCtxSynchronize());
    printf("uniform: %.1f billion a second\n", 20e-9 * COUNT / (seconds() - begin));
    OK(curandDestroyGenerator(made));
    release(memory);
}

int main(int argc, char **argv) {
    const struct check checks[] = {{"floats", floats}, {"doubles", doubles}, {"integers", integers}, {"seeds", seeds},
                                   {"sobol", sobol},   {"errors", errors},   {"speed", speed}};
    return RUN_CHECKS(checks);
}
