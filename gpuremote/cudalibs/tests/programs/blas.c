/* cuBLAS: levels 1 to 3, both pointer modes, batches, types as arguments, copies, streams and threads. */
#include "check.h"

#include <complex.h>
#include <cublas_v2.h>
#include <pthread.h>

static cublasHandle_t handle;

static void sgemm(void) {
    enum { M = 33, N = 29, K = 41, LDA = 50, LDB = 47, LDC = 36 };
    NUMBERS(a, float, LDA * K);
    NUMBERS(b, float, LDB * N);
    NUMBERS(c, float, LDC * N);
    double *want = malloc(sizeof(double) * LDC * N);
    float alpha = 1.5f, beta = -0.5f;
    /* B is given transposed when `flipped`: its N columns of K are read as K columns of N. */
    NUMBERS(bt, float, LDB * K);
    for (int flipped = 0; flipped < 2; flipped++) {
        for (int j = 0; j < N; j++)
            for (int i = 0; i < LDC; i++) {
                double sum = 0;
                for (int l = 0; l < K && i < M; l++)
                    sum += (double)a[l * LDA + i] * (flipped ? bt[l * LDB + j] : b[j * LDB + l]);
                want[j * LDC + i] = i < M ? alpha * sum + beta * c[j * LDC + i] : c[j * LDC + i];
            }
        float *got = malloc(sizeof(float) * LDC * N);
        void *da = device(a, sizeof(float) * LDA * K), *dc = device(c, sizeof(float) * LDC * N);
        void *db = flipped ? device(bt, sizeof(float) * LDB * K) : device(b, sizeof(float) * LDB * N);
        OK(cublasSgemm(handle, CUBLAS_OP_N, flipped ? CUBLAS_OP_T : CUBLAS_OP_N, M, N, K, &alpha, da, LDA, db, LDB, &beta, dc, LDC));
        fetch(got, dc, sizeof(float) * LDC * N);
        COMPARE(flipped ? "sgemm, B transposed" : "sgemm", got, want, LDC * N, 1e-4);
        release(da), release(db), release(dc), free(got);
    }
    free(a), free(b), free(bt), free(c), free(want);
}

static void sdot(void) {
    enum { N = 1000 };
    NUMBERS(x, float, 2 * N);
    NUMBERS(y, float, N);
    double want = 0;
    for (int i = 0; i < N; i++)
        want += (double)x[2 * i] * y[i];
    void *dx = device(x, sizeof(float) * 2 * N), *dy = device(y, sizeof(float) * N), *dr = device(NULL, sizeof(float));
    float got = 0;
    OK(cublasSdot(handle, N, dx, 2, dy, 1, &got));
    COMPARE("sdot to the host", &got, &want, 1, 1e-3);
    OK(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_DEVICE));
    OK(cublasSdot(handle, N, dx, 2, dy, 1, dr));
    OK(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST));
    got = 0;
    fetch(&got, dr, sizeof(float));
    COMPARE("sdot to the GPU", &got, &want, 1, 1e-3);
    release(dx), release(dy), release(dr), free(x), free(y);
}

static void vectors(void) {
    enum { N = 777 };
    NUMBERS(x, double, N);
    NUMBERS(y, double, N);
    x[123] = -7.0;
    double sum = 0, squares = 0, alpha = 0.75, got;
    double *want = malloc(sizeof(double) * N), *result = malloc(sizeof(double) * N);
    for (int i = 0; i < N; i++)
        sum += fabs(x[i]), squares += x[i] * x[i], want[i] = alpha * x[i] + y[i];
    squares = sqrt(squares);
    void *dx = device(x, sizeof(double) * N), *dy = device(y, sizeof(double) * N), *dalpha = device(&alpha, sizeof alpha);
    int place = 0;
    OK(cublasIdamax(handle, N, dx, 1, &place));
    expect("idamax", place == 124);
    OK(cublasDasum(handle, N, dx, 1, &got));
    COMPARE("dasum", &got, &sum, 1, 1e-10);
    OK(cublasDnrm2(handle, N, dx, 1, &got));
    COMPARE("dnrm2", &got, &squares, 1, 1e-10);
    OK(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_DEVICE));
    OK(cublasDaxpy(handle, N, dalpha, dx, 1, dy, 1));
    OK(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST));
    fetch(result, dy, sizeof(double) * N);
    COMPARE("daxpy with alpha on the GPU", result, want, N, 1e-12);
    int64_t wide_place = 0;
    OK(cublasIdamax_64(handle, N, dx, 1, &wide_place));
    expect("idamax with numbers of 64 bits", wide_place == 124);
    OK(cublasDscal(handle, N, &alpha, dx, 1));
    OK(cublasDswap(handle, N, dx, 1, dy, 1));
    fetch(result, dy, sizeof(double) * N);
    for (int i = 0; i < N; i++)
        want[i] = alpha * x[i];
    COMPARE("dscal, dswap", result, want, N, 1e-12);
    double a = 3, b = 4, c, s;
    OK(cublasDrotg(handle, &a, &b, &c, &s));
    expect("drotg", fabs(a - 5) < 1e-12 && fabs(c - 0.6) < 1e-12 && fabs(s - 0.8) < 1e-12);
    release(dx), release(dy), release(dalpha), free(x), free(y), free(want), free(result);
}

static void level2(void) {
    enum { M = 37, N = 23 };
    NUMBERS(a, double, M * N);
    NUMBERS(x, double, N);
    NUMBERS(y, double, M);
    double want[M], got[M], alpha = 2, beta = 0.25;
    for (int i = 0; i < M; i++) {
        want[i] = beta * y[i];
        for (int j = 0; j < N; j++)
            want[i] += alpha * a[j * M + i] * x[j];
    }
    void *da = device(a, sizeof(double) * M * N), *dx = device(x, sizeof(double) * N), *dy = device(y, sizeof(double) * M);
    OK(cublasDgemv(handle, CUBLAS_OP_N, M, N, &alpha, da, M, dx, 1, &beta, dy, 1));
    fetch(got, dy, sizeof got);
    COMPARE("dgemv", got, want, M, 1e-12);
    OK(cublasDger(handle, M, N, &alpha, dy, 1, dx, 1, da, M));
    double *after = malloc(sizeof(double) * M * N);
    fetch(after, da, sizeof(double) * M * N);
    for (int j = 0; j < N; j++)
        for (int i = 0; i < M; i++)
            a[j * M + i] += alpha * want[i] * x[j];
    COMPARE("dger", after, a, M * N, 1e-12);
    release(da), release(dx), release(dy), free(a), free(x), free(y), free(after);
}

static void zgemm(void) {
    enum { N = 24 };
    double complex a[N * N], b[N * N], got[N * N], want[N * N], alpha = 1 - 2 * I, beta = 0;
    for (int i = 0; i < N * N; i++)
        a[i] = next_number() + next_number() * I, b[i] = next_number() + next_number() * I;
    for (int j = 0; j < N; j++)
        for (int i = 0; i < N; i++) {
            double complex sum = 0;
            for (int l = 0; l < N; l++)
                sum += conj(a[i * N + l]) * b[j * N + l];
            want[j * N + i] = alpha * sum;
        }
    void *da = device(a, sizeof a), *db = device(b, sizeof b), *dc = device(NULL, sizeof got);
    OK(cublasZgemm(handle, CUBLAS_OP_C, CUBLAS_OP_N, N, N, N, (void *)&alpha, da, N, db, N, (void *)&beta, dc, N));
    fetch(got, dc, sizeof got);
    COMPARE("zgemm, A conjugated", (double *)got, (double *)want, 2 * N * N, 1e-11);
    release(da), release(db), release(dc);
}

static void solve(void) {
    enum { N = 30 };
    NUMBERS(a, double, N * N);
    NUMBERS(b, double, N);
    double x[N], alpha = 1;
    for (int i = 0; i < N; i++)
        a[i * N + i] = 4 + i;
    for (int i = 0; i < N; i++) {
        x[i] = b[i];
        for (int j = 0; j < i; j++)
            x[i] -= a[j * N + i] * x[j];
        x[i] /= a[i * N + i];
    }
    void *da = device(a, sizeof(double) * N * N), *db = device(b, sizeof(double) * N);
    OK(cublasDtrsm(handle, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, N, 1, &alpha, da, N, db, N));
    fetch(b, db, sizeof(double) * N);
    COMPARE("dtrsm", b, x, N, 1e-11);
    release(da), release(db), free(a), free(b);
}

static void batches(void) {
    enum { N = 8, COUNT = 5 };
    NUMBERS(a, float, N * N * COUNT);
    NUMBERS(b, float, N * N * COUNT);
    double want[N * N * COUNT];
    float got[N * N * COUNT], alpha = 1, beta = 0;
    for (int k = 0; k < COUNT; k++)
        for (int j = 0; j < N; j++)
            for (int i = 0; i < N; i++) {
                double sum = 0;
                for (int l = 0; l < N; l++)
                    sum += (double)a[k * N * N + l * N + i] * b[k * N * N + j * N + l];
                want[k * N * N + j * N + i] = sum;
            }
    char *da = device(a, sizeof got), *db = device(b, sizeof got), *dc = device(NULL, sizeof got);
    OK(cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &alpha, (float *)da, N, N * N, (float *)db, N, N * N, &beta,
                                 (float *)dc, N, N * N, COUNT));
    fetch(got, dc, sizeof got);
    COMPARE("sgemm in a batch with strides", got, want, N * N * COUNT, 1e-4);
    void *pa[COUNT], *pb[COUNT], *pc[COUNT];
    for (int k = 0; k < COUNT; k++)
        pa[k] = da + 4 * N * N * k, pb[k] = db + 4 * N * N * k, pc[k] = dc + 4 * N * N * k;
    void *dpa = device(pa, sizeof pa), *dpb = device(pb, sizeof pb), *dpc = device(pc, sizeof pc);
    memset(got, 0, sizeof got);
    OK(cuMemcpyHtoD((CUdeviceptr)dc, got, sizeof got));
    OK(cublasSgemmBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &alpha, dpa, N, dpb, N, &beta, dpc, N, COUNT));
    fetch(got, dc, sizeof got);
    COMPARE("sgemm in a batch with addresses", got, want, N * N * COUNT, 1e-4);
    release(da), release(db), release(dc), release(dpa), release(dpb), release(dpc), free(a), free(b);
}

static void types(void) {
    enum { N = 16 };
    _Float16 a[N * N], b[N * N];
    float got[N * N], alpha = 1, beta = 0;
    double want[N * N];
    for (int i = 0; i < N * N; i++)
        a[i] = (_Float16)(i % 7 - 3), b[i] = (_Float16)(i % 5 - 2);
    for (int j = 0; j < N; j++)
        for (int i = 0; i < N; i++) {
            double sum = 0;
            for (int l = 0; l < N; l++)
                sum += (double)a[l * N + i] * (double)b[j * N + l];
            want[j * N + i] = sum;
        }
    void *da = device(a, sizeof a), *db = device(b, sizeof b), *dc = device(NULL, sizeof got);
    OK(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH));
    OK(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &alpha, da, CUDA_R_16F, N, db, CUDA_R_16F, N, &beta, dc, CUDA_R_32F, N,
                    CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    fetch(got, dc, sizeof got);
    COMPARE("gemmEx of halves", got, want, N * N, 0);
    release(da), release(db), release(dc);
}

static void copies(void) {
    enum { ROWS = 5, COLUMNS = 4, LD = 7 };
    NUMBERS(a, double, LD * COLUMNS);
    double got[ROWS * COLUMNS], want[ROWS * COLUMNS], vector[3] = {0};
    for (int j = 0; j < COLUMNS; j++)
        for (int i = 0; i < ROWS; i++)
            want[j * ROWS + i] = a[j * LD + i];
    void *memory = device(NULL, sizeof(double) * ROWS * COLUMNS);
    OK(cublasSetMatrix(ROWS, COLUMNS, sizeof(double), a, LD, memory, ROWS));
    OK(cublasGetMatrix(ROWS, COLUMNS, sizeof(double), memory, ROWS, got, ROWS));
    COMPARE("setMatrix, getMatrix", got, want, ROWS * COLUMNS, 0);
    OK(cublasGetVector(3, sizeof(double), memory, ROWS, vector, 1));
    expect("getVector", vector[0] == want[0] && vector[1] == want[ROWS] && vector[2] == want[2 * ROWS]);
    release(memory), free(a);
}

static void streams(void) {
    enum { N = 1 << 20 };
    CUstream stream, known;
    float *x = malloc(sizeof(float) * N), factor = 2;
    for (int i = 0; i < N; i++)
        x[i] = 1;
    void *dx = device(x, sizeof(float) * N);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cublasSetStream(handle, stream));
    OK(cublasGetStream(handle, &known));
    expect("the stream is known", known == stream);
    for (int i = 0; i < 10; i++)
        OK(cublasSscal(handle, N, &factor, dx, 1));
    OK(cuMemcpyDtoHAsync(x, (CUdeviceptr)dx, sizeof(float) * N, stream));
    OK(cuStreamSynchronize(stream));
    int right = 1;
    for (int i = 0; i < N; i++)
        right &= x[i] == 1024;
    expect("calls in a stream are in its order", right);
    OK(cublasSetStream(handle, NULL));
    OK(cuStreamDestroy(stream));
    release(dx), free(x);
}

static void *other_thread(void *context) {
    enum { N = 64, TIMES = 200 };
    cublasHandle_t own;
    OK(cuCtxSetCurrent(context));
    OK(cublasCreate(&own));
    float x[N], total = 0;
    for (int i = 0; i < N; i++)
        x[i] = 0.5f;
    void *dx = device(x, sizeof x);
    for (int i = 0; i < TIMES; i++) {
        float dot = 0;
        OK(cublasSdot(own, N, dx, 1, dx, 1, &dot));
        total += dot;
    }
    OK(cublasDestroy(own));
    release(dx);
    return total == TIMES * N * 0.25f ? context : NULL;
}

static void threads(void) {
    pthread_t thread[4];
    CUcontext context;
    int right = 1;
    OK(cuCtxGetCurrent(&context));
    for (int i = 0; i < 4; i++)
        OK(pthread_create(&thread[i], NULL, other_thread, context));
    for (int i = 0; i < 4; i++) {
        void *result;
        OK(pthread_join(thread[i], &result));
        right &= result == context;
    }
    expect("four threads with handles of their own", right);
}

static void errors(void) {
    int version = 0;
    OK(cublasGetVersion(handle, &version));
    printf("version %d\n", version);
    expect("a null handle is refused", cublasSetStream(NULL, NULL) == CUBLAS_STATUS_NOT_INITIALIZED);
    expect("names of statuses", strcmp(cublasGetStatusName(CUBLAS_STATUS_INVALID_VALUE), "CUBLAS_STATUS_INVALID_VALUE") == 0);
    float one = 1, dot;
    void *memory = device(&one, sizeof one);
    int failed = cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, memory, 1, memory, 2, &one, memory, 2) != 0;
    failed |= cublasSdot(handle, 1, memory, 1, memory, 1, &dot) != 0;
    expect("a wrong leading dimension is told, by the next call at the latest", failed);
    OK(cublasSdot(handle, 1, memory, 1, memory, 1, &dot));
    release(memory);
}

static void speed(void) {
    enum { N = 4096, TIMES = 20, CALLS = 20000 };
    float one = 1, zero = 0;
    void *a = device(NULL, sizeof(float) * N * N), *b = device(NULL, sizeof(float) * N * N), *c = device(NULL, sizeof(float) * N * N);
    OK(cuMemsetD32((CUdeviceptr)a, 0, N * N));
    OK(cuMemsetD32((CUdeviceptr)b, 0, N * N));
    OK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, a, N, b, N, &zero, c, N));
    OK(cuCtxSynchronize());
    double begin = seconds();
    for (int i = 0; i < TIMES; i++)
        OK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, a, N, b, N, &zero, c, N));
    OK(cuCtxSynchronize());
    double took = seconds() - begin;
    printf("sgemm of %d: %.0f GFLOP/s\n", N, 2e-9 * N * N * N * TIMES / took);
    begin = seconds();
    for (int i = 0; i < CALLS; i++)
        OK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 16, 16, 16, &one, a, N, b, N, &zero, c, N));
    OK(cuCtxSynchronize());
    printf("sgemm of 16: %.2f us each\n", 1e6 * (seconds() - begin) / CALLS);
    begin = seconds();
    for (int i = 0; i < 1000; i++)
        OK(cublasSdot(handle, 16, a, 1, b, 1, &zero));
    printf("sdot of 16 to the host: %.2f us each\n", 1e6 * (seconds() - begin) / 1000);
    release(a), release(b), release(c);
}

static void create(void) {
    double begin = seconds();
    OK(cublasCreate(&handle));
    printf("create: %.0f ms\n", 1e3 * (seconds() - begin));
}

static void destroy(void) {
    OK(cublasDestroy(handle));
}

int main(int argc, char **argv) {
    const struct check checks[] = {
        {"create", create},   {"sgemm", sgemm},     {"sdot", sdot},       {"vectors", vectors}, {"level2", level2},
        {"zgemm", zgemm},     {"solve", solve},     {"batches", batches}, {"types", types},     {"copies", copies},
        {"streams", streams}, {"threads", threads}, {"errors", errors},   {"speed", speed},     {"destroy", destroy},
    };
    return RUN_CHECKS(checks);
}
