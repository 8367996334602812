//! Events.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::loader::{new, ok, Device, Object};

const COMPLETE: i32 = 0;
const NONE: *const Object = std::ptr::null();

fn state(device: &Device, event: Object) -> i32 {
    let mut state = 99;
    // SAFETY: 4 bytes are written.
    ok(unsafe { (device.cl.clGetEventInfo)(event, 0x11d3, 4, (&raw mut state).cast(), std::ptr::null_mut()) });
    state
}

/// Commands of all kinds wait for an event that the program sets later: no call before that may wait for them.
#[test]
#[ignore = "run by remote.rs on a server"]
fn commands_wait_for_the_program() {
    let device = Device::open();
    let cl = &device.cl;
    // More than what is read at once when nothing waits for the program.
    const COUNT: usize = 1 << 20;
    let buffer = device.buffer(&vec![1; COUNT]);
    let written = vec![5u32; COUNT];
    let (mut read, mut early) = (vec![0u32; COUNT], [0u32; 2]);
    // SAFETY: memory lives until the commands are complete.
    unsafe {
        let gate = new(|status| (cl.clCreateUserEvent)(device.context, status));
        let [mut write, mut after, mut mapped] = [std::ptr::null_mut(); 3];
        let into = early.as_mut_ptr().cast();
        ok((cl.clEnqueueReadBuffer)(device.queue, buffer, 0, 0, 8, into, 0, NONE, std::ptr::null_mut()));
        ok((cl.clEnqueueWriteBuffer)(device.queue, buffer, 0, 0, 4 * COUNT, written.as_ptr().cast(), 1, &gate, &mut write));
        ok((cl.clEnqueueReadBuffer)(device.queue, buffer, 0, 0, 4 * COUNT, read.as_mut_ptr().cast(), 1, &write, &mut after));
        let map = new(|status| (cl.clEnqueueMapBuffer)(device.queue, buffer, 0, 1, 4, 8, 1, &after, &mut mapped, status));
        ok((cl.clFlush)(device.queue));
        assert!(state(&device, after) > COMPLETE, "it waits for the program");
        ok((cl.clSetUserEventStatus)(gate, COMPLETE));
        assert_ne!((cl.clSetUserEventStatus)(gate, COMPLETE), 0, "it is set once");
        ok((cl.clWaitForEvents)(1, &mapped));
        assert_eq!(std::slice::from_raw_parts(map.cast::<u32>(), 2), [5, 5]);
        assert!(read == written);
        assert_eq!(early, [1, 1]);
        assert_eq!(state(&device, after), COMPLETE);
        ok((cl.clEnqueueUnmapMemObject)(device.queue, buffer, map, 0, NONE, std::ptr::null_mut()));
        ok((cl.clFinish)(device.queue));
    }
}

static SEEN: AtomicU32 = AtomicU32::new(0);
static STATE: AtomicI32 = AtomicI32::new(99);

unsafe extern "C" fn see(_: Object, state: i32, read: *mut c_void) {
    STATE.store(state, Ordering::SeqCst);
    SEEN.store(*read.cast::<u32>(), Ordering::SeqCst);
}

#[test]
#[ignore = "run by remote.rs on a server"]
fn callbacks_come_after_the_data() {
    let device = Device::open();
    let buffer = device.buffer(&[42; 100]);
    let (mut read, mut event) = ([0u32; 100], std::ptr::null_mut());
    // SAFETY: memory lives until the command is complete.
    unsafe {
        let into = read.as_mut_ptr();
        ok((device.cl.clEnqueueReadBuffer)(device.queue, buffer, 0, 0, 400, into.cast(), 0, NONE, &mut event));
        ok((device.cl.clSetEventCallback)(event, COMPLETE, see, into.cast()));
        ok((device.cl.clFlush)(device.queue));
    }
    let begun = Instant::now();
    while SEEN.load(Ordering::SeqCst) == 0 && begun.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    assert_eq!((SEEN.load(Ordering::SeqCst), STATE.load(Ordering::SeqCst)), (42, COMPLETE));
}

/// A launch that only the driver finds wrong.
#[test]
#[ignore = "run by remote.rs on a server"]
fn a_refused_command_has_a_failed_event() {
    let device = Device::open();
    let cl = &device.cl;
    let kernel = device.kernel("kernel void set(global uint *x) { x[0] = 1; }", "set");
    device.set(kernel, 0, &device.buffer(&[0]));
    // SAFETY: pointers outlive the calls.
    unsafe {
        let other = new(|status| (cl.clCreateContext)(std::ptr::null(), 1, &device.device, std::ptr::null(), std::ptr::null_mut(), status));
        let queue = new(|status| (cl.clCreateCommandQueue)(other, device.device, 0, status));
        let (items, mut event) = (1usize, std::ptr::null_mut());
        let null = std::ptr::null();
        let launched = (cl.clEnqueueNDRangeKernel)(queue, kernel, 1, null, &items, null, 0, NONE, &mut event);
        if launched == 0 {
            assert_ne!((cl.clWaitForEvents)(1, &event), 0, "the kernel is of another context");
            assert!(state(&device, event) < 0);
        }
        // What failed is told once.
        ok((cl.clFinish)(queue));
        ok((cl.clFinish)(device.queue));
    }
}

#[test]
#[ignore = "run by remote.rs on a server"]
fn times_are_told() {
    let device = Device::open();
    let kernel = device.kernel("kernel void set(global uint *x) { x[get_global_id(0)] = 1; }", "set");
    device.set(kernel, 0, &device.buffer(&[0; 64]));
    let mut event = std::ptr::null_mut();
    ok(device.launch(kernel, 64, &[], &mut event));
    // SAFETY: 8 bytes are written.
    let times: Vec<u64> = unsafe {
        ok((device.cl.clWaitForEvents)(1, &event));
        let time = |name| {
            let mut time = 0u64;
            ok((device.cl.clGetEventProfilingInfo)(event, name, 8, (&raw mut time).cast(), std::ptr::null_mut()));
            time
        };
        (0x1280..0x1284).map(time).collect()
    };
    assert!(times[0] > 0 && times.is_sorted(), "{times:?}");
    // SAFETY: 8 bytes are written at most.
    let mut queue = std::ptr::null_mut::<c_void>();
    ok(unsafe { (device.cl.clGetEventInfo)(event, 0x11d0, 8, (&raw mut queue).cast(), std::ptr::null_mut()) });
    assert_eq!(queue, device.queue, "an event knows its queue");
}

/// An object may be given up while its commands wait for the program.
#[test]
#[ignore = "run by remote.rs on a server"]
fn objects_end_while_commands_wait() {
    let device = Device::open();
    let cl = &device.cl;
    let kernel = device.kernel("kernel void set(global uint *x) { x[get_global_id(0)] = 3; }", "set");
    let buffer = device.buffer(&[0; 4]);
    device.set(kernel, 0, &buffer);
    // SAFETY: memory lives until the commands are complete.
    unsafe {
        let gate = new(|status| (cl.clCreateUserEvent)(device.context, status));
        let queue = new(|status| (cl.clCreateCommandQueue)(device.context, device.device, 0, status));
        let (items, null, mut done) = (4usize, std::ptr::null(), std::ptr::null_mut());
        ok((cl.clEnqueueNDRangeKernel)(queue, kernel, 1, null, &items, null, 1, &gate, &mut done));
        ok((cl.clReleaseKernel)(kernel));
        ok((cl.clReleaseCommandQueue)(queue));
        assert!(state(&device, done) > COMPLETE);
        ok((cl.clSetUserEventStatus)(gate, COMPLETE));
        ok((cl.clWaitForEvents)(1, &done));
        assert_eq!(device.read(buffer, 4), [3; 4]);
    }
}
