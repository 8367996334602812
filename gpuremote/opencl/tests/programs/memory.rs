//! Memory objects.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use super::loader::{new, ok, Device, Object};

const NONE: *const Object = std::ptr::null();
const NO_EVENT: *mut Object = std::ptr::null_mut();

#[test]
#[ignore = "run by remote.rs on a server"]
fn large_transfers_are_whole() {
    let device = Device::open();
    let cl = &device.cl;
    const COUNT: usize = 5 << 20;
    let numbers: Vec<u32> = (0..COUNT as u32).map(|n| n.wrapping_mul(2_654_435_761)).collect();
    // SAFETY: memory lives until the commands are complete.
    unsafe {
        let buffer = new(|status| (cl.clCreateBuffer)(device.context, 1, 4 * COUNT, std::ptr::null(), status));
        for blocking in [1, 0] {
            let mut zeros = vec![0u32; COUNT];
            ok((cl.clEnqueueWriteBuffer)(device.queue, buffer, blocking, 0, 4 * COUNT, zeros.as_ptr().cast(), 0, NONE, NO_EVENT));
            let mut copy = numbers.clone();
            ok((cl.clEnqueueWriteBuffer)(device.queue, buffer, blocking, 0, 4 * COUNT, copy.as_ptr().cast(), 0, NONE, NO_EVENT));
            // The data was copied, as blocking writes promise.
            copy.fill(0);
            ok((cl.clEnqueueReadBuffer)(device.queue, buffer, blocking, 0, 4 * COUNT, zeros.as_mut_ptr().cast(), 0, NONE, NO_EVENT));
            ok((cl.clFinish)(device.queue));
            assert!(zeros == numbers, "blocking: {blocking}");
        }
        // Many small reads that nobody waits for.
        let mut parts = vec![0u32; 1000];
        for (i, part) in parts.iter_mut().enumerate() {
            let at = 4 * i * 1000;
            ok((cl.clEnqueueReadBuffer)(device.queue, buffer, 0, at, 4, std::ptr::from_mut(part).cast(), 0, NONE, NO_EVENT));
        }
        ok((cl.clFinish)(device.queue));
        assert!(parts.iter().enumerate().all(|(i, part)| *part == numbers[i * 1000]));
    }
}

#[test]
#[ignore = "run by remote.rs on a server"]
fn regions_are_copied() {
    let device = Device::open();
    let cl = &device.cl;
    // 8 rows of 8 numbers.
    let buffer = device.buffer(&(0..64).collect::<Vec<_>>());
    let (origin, host_origin, region) = ([8usize, 2, 0], [4usize, 1, 0], [12usize, 2, 1]);
    // Rows of 5 numbers in host memory.
    let mut host = vec![0u32; 15];
    // SAFETY: memory lives until the commands are complete.
    unsafe {
        let (o, h, r) = (origin.as_ptr(), host_origin.as_ptr(), region.as_ptr());
        ok((cl.clEnqueueReadBufferRect)(device.queue, buffer, 1, o, h, r, 32, 0, 20, 0, host.as_mut_ptr().cast(), 0, NONE, NO_EVENT));
        assert_eq!(host, [0, 0, 0, 0, 0, 0, 18, 19, 20, 0, 0, 26, 27, 28, 0]);
        host.iter_mut().for_each(|value| *value += 100);
        ok((cl.clEnqueueWriteBufferRect)(device.queue, buffer, 0, o, h, r, 32, 0, 20, 0, host.as_ptr().cast(), 0, NONE, NO_EVENT));
        assert_eq!(device.read(buffer, 32)[17..22], [17, 118, 119, 120, 21]);
        ok((cl.clEnqueueFillBuffer)(device.queue, buffer, (&raw const region).cast(), 8, 0, 16, 0, NONE, NO_EVENT));
        ok((cl.clEnqueueCopyBuffer)(device.queue, buffer, buffer, 0, 64, 16, 0, NONE, NO_EVENT));
        assert_eq!(device.read(buffer, 21)[14..], [14, 15, 12, 0, 12, 0, 120]);
        let part = new(|status| (cl.clCreateSubBuffer)(buffer, 0, 0x1220, [128usize, 16].as_ptr(), status));
        assert_eq!(device.read(part, 4), [32, 33, 34, 35]);
    }
}

static FREED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn freed(_: Object, order: *mut c_void) {
    FREED.store(FREED.load(Ordering::SeqCst) * 10 + order as u32, Ordering::SeqCst);
}

#[test]
#[ignore = "run by remote.rs on a server"]
fn mapped_memory_is_written_back() {
    /// CL_MEM_READ_WRITE and CL_MEM_USE_HOST_PTR.
    const OF_PROGRAM: u64 = 1 | 8;
    /// CL_MAP_READ, CL_MAP_WRITE and CL_MAP_WRITE_INVALIDATE_REGION.
    const READ: u64 = 1;
    const WRITE: u64 = 2;
    const INVALIDATE: u64 = 4;
    let device = Device::open();
    let cl = &device.cl;
    let kernel = device.kernel("kernel void inc(global uint *x) { x[get_global_id(0)] += 1; }", "inc");
    let mut memory = [10u32, 20, 30, 40];
    // SAFETY: memory lives until the commands are complete.
    unsafe {
        let of_program = new(|status| (cl.clCreateBuffer)(device.context, OF_PROGRAM, 16, memory.as_ptr().cast(), status));
        for buffer in [device.buffer(&[10, 20, 30, 40]), of_program] {
            device.set(kernel, 0, &buffer);
            ok(device.launch(kernel, 4, &[], std::ptr::null_mut()));
            let map = |flags, offset, bytes| {
                new(|status| (cl.clEnqueueMapBuffer)(device.queue, buffer, 1, flags, offset, bytes, 0, NONE, NO_EVENT, status))
                    .cast::<u32>()
            };
            let unmap = |at: *mut u32| ok((cl.clEnqueueUnmapMemObject)(device.queue, buffer, at.cast(), 0, NONE, NO_EVENT));
            let at = map(READ | WRITE, 4, 8);
            assert_eq!(std::slice::from_raw_parts(at, 2), [21, 31]);
            *at = 7;
            unmap(at);
            let at = map(INVALIDATE, 12, 4);
            *at = 9;
            unmap(at);
            ok(device.launch(kernel, 4, &[], std::ptr::null_mut()));
            assert_eq!(device.read(buffer, 4), [12, 8, 32, 10]);
            assert_ne!((cl.clEnqueueUnmapMemObject)(device.queue, buffer, at.cast(), 0, NONE, NO_EVENT), 0, "it is unmapped already");
            for order in [1usize, 2] {
                ok((cl.clSetMemObjectDestructorCallback)(buffer, freed, order as *mut c_void));
            }
            // The kernel holds its argument, so nothing is freed before that is another.
            ok((cl.clReleaseMemObject)(buffer));
        }
        assert_eq!(memory[1], 7, "the program's own memory was mapped");
        memory.fill(0);
    }
    assert_eq!(FREED.load(Ordering::SeqCst), 2121, "the last function is called first");
}

#[test]
#[ignore = "run by remote.rs on a server"]
fn images_are_read_and_mapped() {
    let device = Device::open();
    let cl = &device.cl;
    /// CL_RGBA and CL_UNSIGNED_INT8, and a CL_MEM_OBJECT_IMAGE2D of 4 x 3 pixels with rows of 20 bytes.
    const FORMAT: [u32; 2] = [0x10b5, 0x10da];
    let shape: [usize; 9] = [0x10f1, 4, 3, 1, 1, 20, 0, 0, 0];
    let pixels: Vec<u8> = (0..60).collect();
    let (origin, region) = ([1usize, 1, 0], [2usize, 2, 1]);
    let (o, r) = (origin.as_ptr(), region.as_ptr());
    // SAFETY: memory lives until the commands are complete.
    unsafe {
        let image = new(|status| {
            let (format, shape) = (FORMAT.as_ptr().cast(), shape.as_ptr().cast());
            (cl.clCreateImage)(device.context, 1 | 32, format, shape, pixels.as_ptr().cast(), status)
        });
        let mut read = vec![0u8; 24];
        ok((cl.clEnqueueReadImage)(device.queue, image, 0, o, r, 12, 0, read.as_mut_ptr().cast(), 0, NONE, NO_EVENT));
        ok((cl.clFinish)(device.queue));
        assert_eq!(read[..8], pixels[24..32]);
        assert_eq!(read[8..20], [0, 0, 0, 0, 44, 45, 46, 47, 48, 49, 50, 51]);
        let mut pitch = 0;
        let at = new(|status| {
            (cl.clEnqueueMapImage)(device.queue, image, 1, 3, o, r, &mut pitch, std::ptr::null_mut(), 0, NONE, NO_EVENT, status)
        });
        assert_eq!(*at.add(pitch), 44);
        *at.add(pitch) = 99;
        ok((cl.clEnqueueUnmapMemObject)(device.queue, image, at, 0, NONE, NO_EVENT));
        ok((cl.clEnqueueReadImage)(device.queue, image, 1, o, r, 0, 0, read.as_mut_ptr().cast(), 0, NONE, NO_EVENT));
        assert_eq!(read[8], 99);
    }
}

#[test]
#[ignore = "run by remote.rs on a server with a bound"]
fn a_bound_of_16_mib_is_kept() {
    let device = Device::open();
    let cl = &device.cl;
    const MIB: usize = 1 << 20;
    // SAFETY: pointers outlive the calls.
    unsafe {
        let mut bytes = 0u64;
        ok((cl.clGetDeviceInfo)(device.device, 0x101f, 8, (&raw mut bytes).cast(), std::ptr::null_mut()));
        assert_eq!(bytes, 16 * MIB as u64, "CL_DEVICE_GLOBAL_MEM_SIZE");
        let mut status = 0;
        let mut allocate = |bytes| {
            let buffer = (cl.clCreateBuffer)(device.context, 1, bytes, std::ptr::null(), &mut status);
            (buffer, status)
        };
        let (first, _) = allocate(10 * MIB);
        assert!(!first.is_null());
        assert_eq!(allocate(10 * MIB), (std::ptr::null_mut(), -4), "CL_MEM_OBJECT_ALLOCATION_FAILURE");
        ok((cl.clReleaseMemObject)(first));
        assert_eq!(allocate(10 * MIB).1, 0);
        assert_eq!(allocate(usize::MAX / 2).1, -4);
        // An image of 1024 x 2048 pixels of 4 bytes.
        let (format, shape) = ([0x10b5u32, 0x10da], [0x10f1usize, 1024, 2048, 1, 1, 0, 0, 0, 0]);
        let mut status = 0;
        let (format, shape) = (format.as_ptr().cast(), shape.as_ptr().cast());
        let image = (cl.clCreateImage)(device.context, 1, format, shape, std::ptr::null(), &mut status);
        assert_eq!((image, status), (std::ptr::null_mut(), -4), "an image of 8 MiB is too much");
    }
}
