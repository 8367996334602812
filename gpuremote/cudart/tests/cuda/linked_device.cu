// The other file of linked.cu.
__device__ int offset = 100;
__device__ int shifted(int x) { return x + offset; }
