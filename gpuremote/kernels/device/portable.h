// The common subset of OpenCL C and CUDA C in which the device code is written.
//
// OpenCL receives this text in front of each program. For CUDA, clang includes it without the toolkit's headers, hence the builtins.

#ifdef __OPENCL_VERSION__

#define KERNEL(x, y) __kernel __attribute__((reqd_work_group_size(x, y, 1)))
#define DEVICE static inline
#define GLOBAL __global
#define LOCAL __local
#define LOCAL_POINTER __local
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define LOCAL_X ((int)get_local_id(0))
#define LOCAL_Y ((int)get_local_id(1))
#define GROUP_X ((int)get_group_id(0))
#define GROUP_Y ((int)get_group_id(1))
#define SQRT(value) sqrt(value)

#else

#define KERNEL(x, y) extern "C" __attribute__((global)) __attribute__((launch_bounds((x) * (y))))
#define DEVICE static __attribute__((device)) inline
#define GLOBAL
#define LOCAL __attribute__((shared))
#define LOCAL_POINTER
#define BARRIER() __syncthreads()
#define LOCAL_X __nvvm_read_ptx_sreg_tid_x()
#define LOCAL_Y __nvvm_read_ptx_sreg_tid_y()
#define GROUP_X __nvvm_read_ptx_sreg_ctaid_x()
#define GROUP_Y __nvvm_read_ptx_sreg_ctaid_y()
#define SQRT(value) __builtin_sqrtf(value)

#endif
