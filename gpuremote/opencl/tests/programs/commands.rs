//! Programs, kernels and queues.

use std::ffi::CString;

use super::loader::{new, ok, Device, Object};

const ADD: &str = "kernel void add(global const uint *a, global uint *b, uint c) { size_t i = get_global_id(0); b[i] += a[i] + c; }";

#[test]
#[ignore = "run by remote.rs on a server"]
fn vectors_are_added() {
    let device = Device::open();
    let numbers: Vec<u32> = (0..10_000).collect();
    let (a, b) = (device.buffer(&numbers), device.buffer(&numbers));
    let kernel = device.kernel(ADD, "add");
    device.set(kernel, 0, &a);
    device.set(kernel, 1, &b);
    for _ in 0..3 {
        device.set(kernel, 2, &7u32);
        ok(device.launch(kernel, numbers.len(), &[], std::ptr::null_mut()));
    }
    let sums: Vec<u32> = numbers.iter().map(|n| 4 * n + 21).collect();
    assert_eq!(device.read(b, numbers.len()), sums);
    // SAFETY: nothing is used afterwards.
    unsafe {
        for memory in [a, b] {
            ok((device.cl.clReleaseMemObject)(memory));
        }
        ok((device.cl.clReleaseKernel)(kernel));
        ok((device.cl.clReleaseCommandQueue)(device.queue));
        ok((device.cl.clReleaseContext)(device.context));
    }
}

#[test]
#[ignore = "run by remote.rs on a server"]
fn what_is_wrong_is_told() {
    let device = Device::open();
    let cl = &device.cl;
    let (none, null) = (std::ptr::null_mut(), std::ptr::null());
    let program = device.program("kernel void broken( { nonsense }");
    let kernel = device.kernel(ADD, "add");
    let small = device.buffer(&[1, 2, 3, 4]);
    // SAFETY: pointers outlive the calls.
    unsafe {
        assert_eq!((cl.clBuildProgram)(program, 0, null, null.cast(), null.cast(), none), -11, "CL_BUILD_PROGRAM_FAILURE");
        let mut log = vec![0u8; 4096];
        let mut length = 0;
        ok((cl.clGetProgramBuildInfo)(program, device.device, 0x1183, log.len(), log.as_mut_ptr().cast(), &mut length));
        assert!(String::from_utf8_lossy(&log[..length]).contains("error"), "the build log tells why");
        let mut status = 0;
        let name = CString::new("nowhere").unwrap();
        assert!((cl.clCreateKernel)(program, name.as_ptr(), &mut status).is_null() && status < 0);
        assert_eq!((cl.clSetKernelArg)(kernel, 3, 4, null.cast()), -49, "CL_INVALID_ARG_INDEX");
        assert_eq!((cl.clSetKernelArg)(kernel, 2, 8, (&raw const small).cast()), -51, "CL_INVALID_ARG_SIZE");
        assert_eq!(device.launch(kernel, 4, &[], std::ptr::null_mut()), -52, "CL_INVALID_KERNEL_ARGS");
        let bytes = [0u8; 32];
        let write = |offset| (cl.clEnqueueWriteBuffer)(device.queue, small, 1, offset, 8, bytes.as_ptr().cast(), 0, null, none.cast());
        assert_eq!((write(8), write(9)), (0, -30), "CL_INVALID_VALUE past the end");
        device.set(kernel, 0, &small);
        device.set(kernel, 1, &small);
        device.set(kernel, 2, &0u32);
        let (global, local) = ([4usize], [3usize]);
        let launched =
            (cl.clEnqueueNDRangeKernel)(device.queue, kernel, 1, null.cast(), global.as_ptr(), local.as_ptr(), 0, null, none.cast());
        assert_eq!(launched, -54, "CL_INVALID_WORK_GROUP_SIZE");
        assert_eq!((cl.clFinish)(std::ptr::null_mut()), -36, "CL_INVALID_COMMAND_QUEUE");
        // Another object in a queue's place.
        assert_eq!((cl.clFinish)(small), -36, "CL_INVALID_COMMAND_QUEUE");
        ok((cl.clFinish)(device.queue));
    }
}

/// A number of 8 bytes may look like the address of an object.
#[test]
#[ignore = "run by remote.rs on a server"]
fn a_number_is_no_object() {
    let device = Device::open();
    let out = device.buffer(&[0, 0]);
    let kernel = device.kernel("kernel void keep(global ulong *out, ulong value) { out[0] = value; }", "keep");
    device.set(kernel, 0, &out);
    device.set(kernel, 1, &(out as u64));
    ok(device.launch(kernel, 1, &[], std::ptr::null_mut()));
    let halves = device.read(out, 2);
    assert_eq!(u64::from(halves[0]) | u64::from(halves[1]) << 32, out as u64);
}

#[test]
#[ignore = "run by remote.rs on a server"]
fn binaries_are_programs() {
    let device = Device::open();
    let cl = &device.cl;
    let (none, null) = (std::ptr::null_mut(), std::ptr::null());
    let program = device.program(ADD);
    // SAFETY: pointers outlive the calls.
    unsafe {
        ok((cl.clBuildProgram)(program, 0, null, null.cast(), null.cast(), none));
        let mut length = 0usize;
        ok((cl.clGetProgramInfo)(program, 0x1165, 8, (&raw mut length).cast(), std::ptr::null_mut()));
        let mut binary = vec![0u8; length];
        let mut into = binary.as_mut_ptr();
        ok((cl.clGetProgramInfo)(program, 0x1166, 8, (&raw mut into).cast(), std::ptr::null_mut()));
        let (start, mut accepted) = (binary.as_ptr(), 1);
        let again = new(|status| (cl.clCreateProgramWithBinary)(device.context, 1, &device.device, &length, &start, &mut accepted, status));
        assert_eq!(accepted, 0);
        ok((cl.clBuildProgram)(again, 0, null, null.cast(), null.cast(), none));
        let name = CString::new("add").unwrap();
        let kernel = new(|status| (cl.clCreateKernel)(again, name.as_ptr(), status));
        let (a, b) = (device.buffer(&[1, 2]), device.buffer(&[10, 20]));
        device.set(kernel, 0, &a);
        device.set(kernel, 1, &b);
        device.set(kernel, 2, &100u32);
        ok(device.launch(kernel, 2, &[], std::ptr::null_mut()));
        assert_eq!(device.read(b, 2), [111, 122]);
    }
}

#[test]
#[ignore = "run by remote.rs on a server"]
fn programs_are_compiled_and_linked() {
    let device = Device::open();
    let cl = &device.cl;
    let (none, null) = (std::ptr::null_mut(), std::ptr::null());
    let header = device.program("uint twice(uint x);\n");
    let library = device.program("uint twice(uint x) { return 2 * x; }\n");
    let main =
        device.program("#include \"twice.h\"\nkernel void run(global uint *x) { x[get_global_id(0)] = twice(x[get_global_id(0)]); }\n");
    let name = CString::new("twice.h").unwrap();
    let names = [name.as_ptr()];
    // SAFETY: pointers outlive the calls.
    unsafe {
        ok((cl.clCompileProgram)(library, 0, null, null.cast(), 0, null, std::ptr::null(), null.cast(), none));
        ok((cl.clCompileProgram)(main, 0, null, null.cast(), 1, &header, names.as_ptr(), null.cast(), none));
        let parts: [Object; 2] = [library, main];
        let linked = new(|status| (cl.clLinkProgram)(device.context, 0, null, null.cast(), 2, parts.as_ptr(), null.cast(), none, status));
        let kernel_name = CString::new("run").unwrap();
        let kernel = new(|status| (cl.clCreateKernel)(linked, kernel_name.as_ptr(), status));
        let buffer = device.buffer(&[1, 2, 3]);
        device.set(kernel, 0, &buffer);
        ok(device.launch(kernel, 3, &[], std::ptr::null_mut()));
        assert_eq!(device.read(buffer, 3), [2, 4, 6]);
    }
}

#[test]
#[ignore = "run by remote.rs on a server"]
fn threads_have_queues_of_their_own() {
    let device = Device::open();
    let program = device.program(ADD);
    let none = std::ptr::null_mut();
    // SAFETY: pointers outlive the calls.
    ok(unsafe { (device.cl.clBuildProgram)(program, 0, std::ptr::null(), std::ptr::null(), std::ptr::null(), none) });
    let program = program as usize;
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let device = &device;
            scope.spawn(move || {
                let name = CString::new("add").unwrap();
                // SAFETY: pointers outlive the calls.
                let (kernel, queue) = unsafe {
                    let kernel = new(|status| (device.cl.clCreateKernel)(program as Object, name.as_ptr(), status));
                    (kernel, new(|status| (device.cl.clCreateCommandQueue)(device.context, device.device, 0, status)))
                };
                let numbers: Vec<u32> = (0..1000).map(|n| n * (thread + 1)).collect();
                for round in 0..20u32 {
                    let (a, b) = (device.buffer(&numbers), device.buffer(&numbers));
                    device.set(kernel, 0, &a);
                    device.set(kernel, 1, &b);
                    device.set(kernel, 2, &round);
                    let (items, null) = (numbers.len(), std::ptr::null());
                    let mut sums = vec![0u32; items];
                    // SAFETY: pointers outlive the calls.
                    unsafe {
                        let event = std::ptr::null_mut();
                        ok((device.cl.clEnqueueNDRangeKernel)(queue, kernel, 1, null, &items, null, 0, null.cast(), event));
                        ok((device.cl.clEnqueueReadBuffer)(queue, b, 0, 0, 4 * items, sums.as_mut_ptr().cast(), 0, null.cast(), event));
                        ok((device.cl.clFinish)(queue));
                        ok((device.cl.clReleaseMemObject)(a));
                        ok((device.cl.clReleaseMemObject)(b));
                    }
                    assert!(numbers.iter().zip(&sums).all(|(n, sum)| 2 * n + round == *sum), "thread {thread}, round {round}");
                }
            });
        }
    });
}

#[test]
#[ignore = "run by remote.rs on a server"]
fn a_kernel_prints() {
    let device = Device::open();
    let source = "kernel void say(uint of) { printf(\"item %u of %u\\n\", (uint)get_global_id(0), of); }";
    let kernel = device.kernel(source, "say");
    device.set(kernel, 0, &4u32);
    ok(device.launch(kernel, 4, &[], std::ptr::null_mut()));
    // SAFETY: the queue lives.
    ok(unsafe { (device.cl.clFinish)(device.queue) });
}
