/* cuSPARSE's generic interface: a matrix in rows, with vectors and matrices; solutions; products; other forms. */
#include "check.h"

#include <cusparse.h>

enum { ROWS = 40, COLUMNS = 30 };

static cusparseHandle_t handle;
static double dense[ROWS][COLUMNS];
static int offsets[ROWS + 1], indices[ROWS * COLUMNS], nnz;
static double values[ROWS * COLUMNS];
static void *d_offsets, *d_indices, *d_values;
static cusparseSpMatDescr_t matrix;

static void create(void) {
    double begin = seconds();
    OK(cusparseCreate(&handle));
    printf("create: %.0f ms\n", 1e3 * (seconds() - begin));
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++)
            if (next_number() > 0.6)
                dense[i][j] = values[nnz] = next_number(), indices[nnz++] = j;
        offsets[i + 1] = nnz;
    }
    d_offsets = device(offsets, sizeof offsets), d_indices = device(indices, sizeof(int) * nnz);
    d_values = device(values, sizeof(double) * nnz);
    OK(cusparseCreateCsr(&matrix, ROWS, COLUMNS, nnz, d_offsets, d_indices, d_values, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
                         CUSPARSE_INDEX_BASE_ZERO, CUDA_R_64F));
    int64_t rows, columns, count;
    OK(cusparseSpMatGetSize(matrix, &rows, &columns, &count));
    expect("a matrix knows its size", rows == ROWS && columns == COLUMNS && count == nnz);
}

static void *buffer(size_t size) {
    return device(NULL, size ? size : 1);
}

static void spmv(void) {
    NUMBERS(x, double, COLUMNS);
    NUMBERS(y, double, ROWS);
    double want[ROWS], twice[ROWS], got[ROWS], alpha = 2, beta = -1;
    for (int i = 0; i < ROWS; i++) {
        double sum = 0;
        for (int j = 0; j < COLUMNS; j++)
            sum += dense[i][j] * x[j];
        want[i] = alpha * sum + beta * y[i];
        twice[i] = alpha * sum + beta * want[i];
    }
    void *dx = device(x, sizeof(double) * COLUMNS), *dy = device(y, sizeof(double) * ROWS);
    cusparseDnVecDescr_t vx, vy;
    size_t size;
    OK(cusparseCreateDnVec(&vx, COLUMNS, dx, CUDA_R_64F));
    OK(cusparseCreateDnVec(&vy, ROWS, dy, CUDA_R_64F));
    OK(cusparseSpMV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, matrix, vx, &beta, vy, CUDA_R_64F, CUSPARSE_SPMV_ALG_DEFAULT,
                               &size));
    void *space = buffer(size);
    OK(cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, matrix, vx, &beta, vy, CUDA_R_64F, CUSPARSE_SPMV_ALG_DEFAULT, space));
    fetch(got, dy, sizeof got);
    COMPARE("SpMV", got, want, ROWS, 1e-12);
    double both[2] = {alpha, beta};
    char *scalars = device(both, sizeof both);
    OK(cusparseSetPointerMode(handle, CUSPARSE_POINTER_MODE_DEVICE));
    OK(cusparseSpMV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, scalars, matrix, vx, scalars + 8, vy, CUDA_R_64F, CUSPARSE_SPMV_ALG_DEFAULT,
                    space));
    OK(cusparseSetPointerMode(handle, CUSPARSE_POINTER_MODE_HOST));
    fetch(got, dy, sizeof got);
    COMPARE("SpMV with scalars on the GPU", got, twice, ROWS, 1e-12);
    OK(cusparseDestroyDnVec(vx));
    OK(cusparseDestroyDnVec(vy));
    release(dx), release(dy), release(space), release(scalars), free(x), free(y);
}

static void spmm(void) {
    enum { N = 6 };
    NUMBERS(b, double, COLUMNS * N);
    double want[ROWS * N], got[ROWS * N], alpha = 1.5, beta = 0;
    for (int k = 0; k < N; k++)
        for (int i = 0; i < ROWS; i++) {
            double sum = 0;
            for (int j = 0; j < COLUMNS; j++)
                sum += dense[i][j] * b[k * COLUMNS + j];
            want[k * ROWS + i] = alpha * sum;
        }
    void *db = device(b, sizeof(double) * COLUMNS * N), *dc = device(NULL, sizeof got);
    cusparseDnMatDescr_t mb, mc;
    size_t size;
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cusparseSetStream(handle, stream));
    OK(cusparseCreateDnMat(&mb, COLUMNS, N, COLUMNS, db, CUDA_R_64F, CUSPARSE_ORDER_COL));
    OK(cusparseCreateDnMat(&mc, ROWS, N, ROWS, dc, CUDA_R_64F, CUSPARSE_ORDER_COL));
    OK(cusparseSpMM_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, matrix, mb, &beta, mc,
                               CUDA_R_64F, CUSPARSE_SPMM_ALG_DEFAULT, &size));
    void *space = buffer(size);
    OK(cusparseSpMM(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, matrix, mb, &beta, mc, CUDA_R_64F,
                    CUSPARSE_SPMM_ALG_DEFAULT, space));
    OK(cuMemcpyDtoHAsync(got, (CUdeviceptr)dc, sizeof got, stream));
    OK(cuStreamSynchronize(stream));
    COMPARE("SpMM in a stream", got, want, ROWS * N, 1e-12);
    OK(cusparseSetStream(handle, NULL));
    OK(cuStreamDestroy(stream));
    OK(cusparseDestroyDnMat(mb));
    OK(cusparseDestroyDnMat(mc));
    release(db), release(dc), release(space), free(b);
}

static void vectors(void) {
    enum { N = 20, SOME = 5 };
    int places[SOME] = {1, 4, 5, 11, 19};
    NUMBERS(x, float, SOME);
    NUMBERS(y, float, N);
    double want[N], dot = 0;
    float got[N], alpha = 3, beta = 0.5f, result;
    for (int i = 0; i < N; i++)
        want[i] = beta * y[i];
    for (int i = 0; i < SOME; i++)
        want[places[i]] += alpha * x[i];
    for (int i = 0; i < SOME; i++)
        dot += x[i] * want[places[i]];
    void *dp = device(places, sizeof places), *dx = device(x, sizeof(float) * SOME), *dy = device(y, sizeof(float) * N);
    cusparseSpVecDescr_t vx;
    cusparseDnVecDescr_t vy;
    size_t size;
    OK(cusparseCreateSpVec(&vx, N, SOME, dp, dx, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F));
    OK(cusparseCreateDnVec(&vy, N, dy, CUDA_R_32F));
    OK(cusparseAxpby(handle, &alpha, vx, &beta, vy));
    fetch(got, dy, sizeof got);
    COMPARE("Axpby", got, want, N, 1e-6);
    OK(cusparseSpVV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, vx, vy, &result, CUDA_R_32F, &size));
    void *space = buffer(size);
    OK(cusparseSpVV(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, vx, vy, &result, CUDA_R_32F, space));
    COMPARE("SpVV to the host", &result, &dot, 1, 1e-5);
    OK(cusparseDestroySpVec(vx));
    OK(cusparseDestroyDnVec(vy));
    release(dp), release(dx), release(dy), release(space), free(x), free(y);
}

/* Solves with the lower triangle of a matrix, whose diagonal is given. */
static void solve(void) {
    enum { N = 4 };
    int rows[N + 1] = {0, 1, 3, 5, 8}, columns[8] = {0, 0, 1, 1, 2, 0, 2, 3};
    double entries[8] = {2, 1, 4, -1, 5, 3, 2, 8}, b[N] = {2, 9, 1, 30}, x[N], got[N], alpha = 1;
    x[0] = b[0] / 2, x[1] = (b[1] - x[0]) / 4, x[2] = (b[2] + x[1]) / 5, x[3] = (b[3] - 3 * x[0] - 2 * x[2]) / 8;
    void *dr = device(rows, sizeof rows), *dc = device(columns, sizeof columns), *de = device(entries, sizeof entries);
    void *db = device(b, sizeof b), *dx = device(NULL, sizeof x);
    cusparseSpMatDescr_t lower;
    cusparseDnVecDescr_t vb, vx;
    cusparseSpSVDescr_t solver;
    cusparseFillMode_t fill = CUSPARSE_FILL_MODE_LOWER;
    cusparseDiagType_t diagonal = CUSPARSE_DIAG_TYPE_NON_UNIT;
    size_t size;
    OK(cusparseCreateCsr(&lower, N, N, 8, dr, dc, de, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_64F));
    OK(cusparseSpMatSetAttribute(lower, CUSPARSE_SPMAT_FILL_MODE, &fill, sizeof fill));
    OK(cusparseSpMatSetAttribute(lower, CUSPARSE_SPMAT_DIAG_TYPE, &diagonal, sizeof diagonal));
    OK(cusparseCreateDnVec(&vb, N, db, CUDA_R_64F));
    OK(cusparseCreateDnVec(&vx, N, dx, CUDA_R_64F));
    OK(cusparseSpSV_createDescr(&solver));
    OK(cusparseSpSV_bufferSize(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, lower, vb, vx, CUDA_R_64F, CUSPARSE_SPSV_ALG_DEFAULT, solver,
                               &size));
    void *space = buffer(size);
    OK(cusparseSpSV_analysis(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, lower, vb, vx, CUDA_R_64F, CUSPARSE_SPSV_ALG_DEFAULT, solver,
                             space));
    OK(cusparseSpSV_solve(handle, CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, lower, vb, vx, CUDA_R_64F, CUSPARSE_SPSV_ALG_DEFAULT, solver));
    fetch(got, dx, sizeof got);
    COMPARE("SpSV", got, x, N, 1e-12);
    OK(cusparseSpSV_destroyDescr(solver));
    OK(cusparseDestroyDnVec(vb));
    OK(cusparseDestroyDnVec(vx));
    OK(cusparseDestroySpMat(lower));
    release(dr), release(dc), release(de), release(db), release(dx), release(space);
}

/* The product of the matrix and its transposed, given as a matrix of its own. */
static void spgemm(void) {
    const cusparseOperation_t plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
    int t_offsets[COLUMNS + 1] = {0}, *t_indices = malloc(sizeof(int) * nnz), at = 0;
    double *t_values = malloc(sizeof(double) * nnz), alpha = 1, beta = 0;
    for (int j = 0; j < COLUMNS; j++) {
        for (int i = 0; i < ROWS; i++)
            if (dense[i][j] != 0)
                t_values[at] = dense[i][j], t_indices[at++] = i;
        t_offsets[j + 1] = at;
    }
    void *to = device(t_offsets, sizeof t_offsets), *ti = device(t_indices, sizeof(int) * nnz), *tv = device(t_values, sizeof(double) * nnz);
    void *po = device(NULL, sizeof(int) * (ROWS + 1));
    cusparseSpMatDescr_t transposed, product;
    cusparseSpGEMMDescr_t work;
    size_t size1 = 0, size2 = 0;
    OK(cusparseCreateCsr(&transposed, COLUMNS, ROWS, nnz, to, ti, tv, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
                         CUDA_R_64F));
    OK(cusparseCreateCsr(&product, ROWS, ROWS, 0, po, NULL, NULL, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO,
                         CUDA_R_64F));
    OK(cusparseSpGEMM_createDescr(&work));
    OK(cusparseSpGEMM_workEstimation(handle, plain, plain, &alpha, matrix, transposed, &beta, product, CUDA_R_64F, CUSPARSE_SPGEMM_DEFAULT,
                                     work, &size1, NULL));
    void *space1 = buffer(size1);
    OK(cusparseSpGEMM_workEstimation(handle, plain, plain, &alpha, matrix, transposed, &beta, product, CUDA_R_64F, CUSPARSE_SPGEMM_DEFAULT,
                                     work, &size1, space1));
    OK(cusparseSpGEMM_compute(handle, plain, plain, &alpha, matrix, transposed, &beta, product, CUDA_R_64F, CUSPARSE_SPGEMM_DEFAULT, work,
                              &size2, NULL));
    void *space2 = buffer(size2);
    OK(cusparseSpGEMM_compute(handle, plain, plain, &alpha, matrix, transposed, &beta, product, CUDA_R_64F, CUSPARSE_SPGEMM_DEFAULT, work,
                              &size2, space2));
    int64_t rows, columns, count;
    OK(cusparseSpMatGetSize(product, &rows, &columns, &count));
    void *pi = buffer(sizeof(int) * count), *pv = buffer(sizeof(double) * count);
    OK(cusparseCsrSetPointers(product, po, pi, pv));
    OK(cusparseSpGEMM_copy(handle, plain, plain, &alpha, matrix, transposed, &beta, product, CUDA_R_64F, CUSPARSE_SPGEMM_DEFAULT, work));
    int got_offsets[ROWS + 1], *got_indices = malloc(sizeof(int) * count);
    double *got_values = malloc(sizeof(double) * count), got[ROWS * ROWS] = {0}, want[ROWS * ROWS];
    fetch(got_offsets, po, sizeof got_offsets), fetch(got_indices, pi, sizeof(int) * count), fetch(got_values, pv, sizeof(double) * count);
    for (int i = 0; i < ROWS; i++)
        for (int k = got_offsets[i]; k < got_offsets[i + 1]; k++)
            got[i * ROWS + got_indices[k]] = got_values[k];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < ROWS; j++) {
            want[i * ROWS + j] = 0;
            for (int k = 0; k < COLUMNS; k++)
                want[i * ROWS + j] += dense[i][k] * dense[j][k];
        }
    COMPARE("SpGEMM", got, want, ROWS * ROWS, 1e-12);
    OK(cusparseSpGEMM_destroyDescr(work));
    OK(cusparseDestroySpMat(transposed));
    OK(cusparseDestroySpMat(product));
    release(to), release(ti), release(tv), release(po), release(pi), release(pv), release(space1), release(space2);
    free(t_indices), free(t_values), free(got_indices), free(got_values);
}

static void to_dense(void) {
    double got[ROWS * COLUMNS];
    void *memory = device(NULL, sizeof got);
    cusparseDnMatDescr_t full;
    size_t size;
    OK(cusparseCreateDnMat(&full, ROWS, COLUMNS, COLUMNS, memory, CUDA_R_64F, CUSPARSE_ORDER_ROW));
    OK(cusparseSparseToDense_bufferSize(handle, matrix, full, CUSPARSE_SPARSETODENSE_ALG_DEFAULT, &size));
    void *space = buffer(size);
    OK(cusparseSparseToDense(handle, matrix, full, CUSPARSE_SPARSETODENSE_ALG_DEFAULT, space));
    fetch(got, memory, sizeof got);
    COMPARE("SparseToDense", got, &dense[0][0], ROWS * COLUMNS, 0);
    OK(cusparseDestroyDnMat(full));
    release(memory), release(space);
}

static void errors(void) {
    int version = 0;
    OK(cusparseGetVersion(handle, &version));
    printf("version %d\n", version);
    expect("names of statuses", strcmp(cusparseGetErrorName(CUSPARSE_STATUS_INVALID_VALUE), "CUSPARSE_STATUS_INVALID_VALUE") == 0);
    expect("a null handle is refused", cusparseSetStream(NULL, NULL) != CUSPARSE_STATUS_SUCCESS);
}

static void destroy(void) {
    OK(cusparseDestroySpMat(matrix));
    OK(cusparseDestroy(handle));
    release(d_offsets), release(d_indices), release(d_values);
}

int main(int argc, char **argv) {
    const struct check checks[] = {{"create", create},   {"spmv", spmv},         {"spmm", spmm},     {"vectors", vectors}, {"solve", solve},
                                   {"spgemm", spgemm},   {"to_dense", to_dense}, {"errors", errors}, {"destroy", destroy}};
    return RUN_CHECKS(checks);
}
