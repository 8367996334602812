/* cuDNN beside its graphs: convolutions by each algorithm that is found, activations, softmax, pooling, additions. */
#include "check.h"

#include <cudnn.h>

static cudnnHandle_t handle;
static const float one = 1, zero = 0;

static void create(void) {
    double begin = seconds();
    OK(cudnnCreate(&handle));
    printf("create: %.0f ms, version %zu\n", 1e3 * (seconds() - begin), cudnnGetVersion());
    expect("a version", cudnnGetVersion() >= 90000);
}

static cudnnTensorDescriptor_t tensor(int n, int c, int h, int w) {
    cudnnTensorDescriptor_t made;
    OK(cudnnCreateTensorDescriptor(&made));
    OK(cudnnSetTensor4dDescriptor(made, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h, w));
    return made;
}

static void convolution(void) {
    enum { N = 2, C = 3, H = 12, W = 11, K = 4, R = 3, S = 3, PAD = 1, P = H, Q = W, FOUND = 8 };
    NUMBERS(x, float, N * C * H * W);
    NUMBERS(filter, float, K * C * R * S);
    static double want[N * K * P * Q];
    static float got[N * K * P * Q];
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++)
            for (int p = 0; p < P; p++)
                for (int q = 0; q < Q; q++) {
                    double sum = 0;
                    for (int c = 0; c < C; c++)
                        for (int r = 0; r < R; r++)
                            for (int s = 0; s < S; s++) {
                                int h = p + r - PAD, w = q + s - PAD;
                                if (h >= 0 && h < H && w >= 0 && w < W)
                                    sum += (double)x[((n * C + c) * H + h) * W + w] * filter[((k * C + c) * R + r) * S + s];
                            }
                    want[((n * K + k) * P + p) * Q + q] = sum;
                }
    cudnnTensorDescriptor_t from = tensor(N, C, H, W), to = tensor(N, K, P, Q);
    cudnnFilterDescriptor_t weights;
    cudnnConvolutionDescriptor_t how;
    OK(cudnnCreateFilterDescriptor(&weights));
    OK(cudnnSetFilter4dDescriptor(weights, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, K, C, R, S));
    OK(cudnnCreateConvolutionDescriptor(&how));
    OK(cudnnSetConvolution2dDescriptor(how, PAD, PAD, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    OK(cudnnSetConvolutionMathType(how, CUDNN_FMA_MATH));
    int n, c, h, w, found = 0, most = 0;
    OK(cudnnGetConvolution2dForwardOutputDim(how, from, weights, &n, &c, &h, &w));
    expect("the shape of a convolution's result", n == N && c == K && h == P && w == Q);
    OK(cudnnGetConvolutionForwardAlgorithmMaxCount(handle, &most));
    cudnnConvolutionFwdAlgoPerf_t algorithms[FOUND];
    OK(cudnnGetConvolutionForwardAlgorithm_v7(handle, from, weights, how, to, FOUND, &found, algorithms));
    expect("algorithms are found", found > 0 && found <= most);
    void *dx = device(x, sizeof(float) * N * C * H * W), *df = device(filter, sizeof(float) * K * C * R * S), *dy = device(NULL, sizeof got);
    for (int i = 0; i < found; i++) {
        size_t size = 0;
        char name[64];
        if (algorithms[i].status != CUDNN_STATUS_SUCCESS)
            continue;
        OK(cudnnGetConvolutionForwardWorkspaceSize(handle, from, weights, how, to, algorithms[i].algo, &size));
        void *space = device(NULL, size ? size : 1);
        OK(cudnnConvolutionForward(handle, &one, from, dx, weights, df, how, algorithms[i].algo, space, size, &zero, to, dy));
        fetch(got, dy, sizeof got);
        snprintf(name, sizeof name, "convolution by algorithm %d", algorithms[i].algo);
        COMPARE(name, got, want, N * K * P * Q, 1e-3);
        release(space);
    }
    OK(cudnnDestroyConvolutionDescriptor(how));
    OK(cudnnDestroyFilterDescriptor(weights));
    OK(cudnnDestroyTensorDescriptor(from));
    OK(cudnnDestroyTensorDescriptor(to));
    release(dx), release(df), release(dy), free(x), free(filter);
}

static void activations(void) {
    enum { C = 10, H = 4, W = 5, COUNT = C * H * W };
    NUMBERS(x, float, COUNT);
    double want[COUNT];
    float got[COUNT];
    cudnnTensorDescriptor_t shape = tensor(1, C, H, W);
    cudnnActivationDescriptor_t how;
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cudnnSetStream(handle, stream));
    OK(cudnnCreateActivationDescriptor(&how));
    void *dx = device(x, sizeof got), *dy = device(NULL, sizeof got);
    const cudnnActivationMode_t modes[] = {CUDNN_ACTIVATION_RELU, CUDNN_ACTIVATION_SIGMOID, CUDNN_ACTIVATION_TANH};
    const char *names[] = {"relu in a stream", "sigmoid in a stream", "tanh in a stream"};
    for (int i = 0; i < 3; i++) {
        OK(cudnnSetActivationDescriptor(how, modes[i], CUDNN_PROPAGATE_NAN, 0));
        OK(cudnnActivationForward(handle, how, &one, shape, dx, &zero, shape, dy));
        OK(cuMemcpyDtoHAsync(got, (CUdeviceptr)dy, sizeof got, stream));
        OK(cuStreamSynchronize(stream));
        for (int j = 0; j < COUNT; j++)
            want[j] = i == 0 ? fmax(x[j], 0) : i == 1 ? 1 / (1 + exp(-x[j])) : tanh(x[j]);
        COMPARE(names[i], got, want, COUNT, 1e-5);
    }
    OK(cudnnSetStream(handle, NULL));
    OK(cuStreamDestroy(stream));
    for (int p = 0; p < H * W; p++) {
        double sum = 0;
        for (int c = 0; c < C; c++)
            sum += exp(x[c * H * W + p]);
        for (int c = 0; c < C; c++)
            want[c * H * W + p] = exp(x[c * H * W + p]) / sum;
    }
    OK(cudnnSoftmaxForward(handle, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_MODE_CHANNEL, &one, shape, dx, &zero, shape, dy));
    fetch(got, dy, sizeof got);
    COMPARE("softmax of channels", got, want, COUNT, 1e-5);
    OK(cudnnDestroyActivationDescriptor(how));
    OK(cudnnDestroyTensorDescriptor(shape));
    release(dx), release(dy), free(x);
}

static void pooling(void) {
    enum { N = 2, C = 3, H = 8, W = 6, P = H / 2, Q = W / 2 };
    NUMBERS(x, float, N * C * H * W);
    double most[N * C * P * Q], mean[N * C * P * Q];
    float got[N * C * P * Q];
    for (int i = 0; i < N * C; i++)
        for (int p = 0; p < P; p++)
            for (int q = 0; q < Q; q++) {
                const float *at = x + (i * H + 2 * p) * W + 2 * q;
                most[(i * P + p) * Q + q] = fmax(fmax(at[0], at[1]), fmax(at[W], at[W + 1]));
                mean[(i * P + p) * Q + q] = ((double)at[0] + at[1] + at[W] + at[W + 1]) / 4;
            }
    cudnnTensorDescriptor_t from = tensor(N, C, H, W), to = tensor(N, C, P, Q);
    cudnnPoolingDescriptor_t how;
    int n, c, h, w;
    OK(cudnnCreatePoolingDescriptor(&how));
    OK(cudnnSetPooling2dDescriptor(how, CUDNN_POOLING_MAX, CUDNN_PROPAGATE_NAN, 2, 2, 0, 0, 2, 2));
    OK(cudnnGetPooling2dForwardOutputDim(how, from, &n, &c, &h, &w));
    expect("the shape of a pooling's result", n == N && c == C && h == P && w == Q);
    void *dx = device(x, sizeof(float) * N * C * H * W), *dy = device(NULL, sizeof got);
    OK(cudnnPoolingForward(handle, how, &one, from, dx, &zero, to, dy));
    fetch(got, dy, sizeof got);
    COMPARE("pooling of the largest", got, most, N * C * P * Q, 0);
    OK(cudnnSetPooling2dDescriptor(how, CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING, CUDNN_PROPAGATE_NAN, 2, 2, 0, 0, 2, 2));
    OK(cudnnPoolingForward(handle, how, &one, from, dx, &zero, to, dy));
    fetch(got, dy, sizeof got);
    COMPARE("pooling of the mean", got, mean, N * C * P * Q, 1e-6);
    OK(cudnnDestroyPoolingDescriptor(how));
    OK(cudnnDestroyTensorDescriptor(from));
    OK(cudnnDestroyTensorDescriptor(to));
    release(dx), release(dy), free(x);
}

/* Factors of tensors of double are of double. */
static void additions(void) {
    enum { COUNT = 6 * 7 };
    NUMBERS(x, double, COUNT);
    NUMBERS(y, double, COUNT);
    double want[COUNT], got[COUNT], alpha = 2.5, beta = -1;
    for (int i = 0; i < COUNT; i++)
        want[i] = alpha * x[i] + beta * y[i];
    cudnnTensorDescriptor_t shape;
    int dimensions[] = {1, 1, 6, 7}, strides[] = {COUNT, COUNT, 7, 1}, got_dimensions[4], got_strides[4], rank;
    cudnnDataType_t type;
    OK(cudnnCreateTensorDescriptor(&shape));
    OK(cudnnSetTensorNdDescriptor(shape, CUDNN_DATA_DOUBLE, 4, dimensions, strides));
    OK(cudnnGetTensorNdDescriptor(shape, 4, &type, &rank, got_dimensions, got_strides));
    expect("a tensor's shape", type == CUDNN_DATA_DOUBLE && rank == 4 && !memcmp(dimensions, got_dimensions, sizeof dimensions));
    void *dx = device(x, sizeof got), *dy = device(y, sizeof got);
    OK(cudnnAddTensor(handle, &alpha, shape, dx, &beta, shape, dy));
    fetch(got, dy, sizeof got);
    COMPARE("addTensor of double", got, want, COUNT, 1e-12);
    double value = 4.25;
    OK(cudnnSetTensor(handle, shape, dy, &value));
    fetch(got, dy, sizeof got);
    int right = 1;
    for (int i = 0; i < COUNT; i++)
        right &= got[i] == value;
    expect("setTensor of double", right);
    OK(cudnnDestroyTensorDescriptor(shape));
    release(dx), release(dy), free(x), free(y);
}

static void speed(void) {
    enum { N = 32, C = 64, H = 56, W = 56, TIMES = 50 };
    cudnnTensorDescriptor_t shape = tensor(N, C, H, W);
    cudnnFilterDescriptor_t weights;
    cudnnConvolutionDescriptor_t how;
    size_t bytes = sizeof(float) * N * C * H * W, size = 0;
    cudnnConvolutionFwdAlgo_t algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    OK(cudnnCreateFilterDescriptor(&weights));
    OK(cudnnSetFilter4dDescriptor(weights, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, C, C, 3, 3));
    OK(cudnnCreateConvolutionDescriptor(&how));
    OK(cudnnSetConvolution2dDescriptor(how, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    OK(cudnnGetConvolutionForwardWorkspaceSize(handle, shape, weights, how, shape, algorithm, &size));
    void *x = device(NULL, bytes), *y = device(NULL, bytes), *filter = device(NULL, sizeof(float) * C * C * 9), *space = device(NULL, size + 1);
    OK(cuMemsetD8((CUdeviceptr)x, 0, bytes));
    OK(cuMemsetD8((CUdeviceptr)filter, 0, sizeof(float) * C * C * 9));
    OK(cudnnConvolutionForward(handle, &one, shape, x, weights, filter, how, algorithm, space, size, &zero, shape, y));
    OK(cuCtxSynchronize());
    double begin = seconds();
    for (int i = 0; i < TIMES; i++)
        OK(cudnnConvolutionForward(handle, &one, shape, x, weights, filter, how, algorithm, space, size, &zero, shape, y));
    OK(cuCtxSynchronize());
    printf("convolution: %.1f us each\n", 1e6 * (seconds() - begin) / TIMES);
    OK(cudnnDestroyConvolutionDescriptor(how));
    OK(cudnnDestroyFilterDescriptor(weights));
    OK(cudnnDestroyTensorDescriptor(shape));
    release(x), release(y), release(filter), release(space);
}

static void errors(void) {
    cudnnTensorDescriptor_t shape = tensor(1, 1, 1, 1);
    int n = 0, other;
    cudnnDataType_t type;
    int failed = cudnnSetTensor4dDescriptor(shape, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, -1, 1, 1, 1) != CUDNN_STATUS_SUCCESS;
    failed |= cudnnGetTensor4dDescriptor(shape, &type, &n, &other, &other, &other, &other, &other, &other, &other) != CUDNN_STATUS_SUCCESS;
    expect("a negative dimension is told, by the next call at the latest", failed);
    OK(cudnnDestroyTensorDescriptor(shape));
}

static void destroy(void) {
    OK(cudnnDestroy(handle));
}

int main(int argc, char **argv) {
    const struct check checks[] = {{"create", create},       {"convolution", convolution}, {"activations", activations}, {"pooling", pooling},
                                   {"additions", additions}, {"errors", errors},           {"speed", speed},             {"destroy", destroy}};
    return RUN_CHECKS(checks);
}
