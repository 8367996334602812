//! Graphs by nodes and by capture.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use super::support::driver::Driver;
use super::support::{role, Server};
use super::{by_all_ways, pointer, INVALID_HANDLE};
use crate::cuda;

const NOT_SUPPORTED: i32 = 801;
const COUNT: u32 = 1000;

/// CUDA_KERNEL_NODE_PARAMS.
#[repr(C)]
struct KernelNode {
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    parameters: *const *const c_void,
    extra: *const c_void,
    kernel: u64,
    context: u64,
}

fn kernel_node(function: u64, parameters: &[*const c_void]) -> KernelNode {
    let (grid, block) = ([COUNT.div_ceil(256), 1, 1], [256, 1, 1]);
    KernelNode { function, grid, block, shared_bytes: 0, parameters: parameters.as_ptr(), extra: std::ptr::null(), kernel: 0, context: 0 }
}

unsafe extern "C" fn count_call(calls: *mut c_void) {
    (*calls.cast::<AtomicU32>()).fetch_add(1, Ordering::SeqCst);
}

#[test]
fn nodes_run_in_the_order_of_their_edges() {
    if role().is_none() {
        return by_all_ways(&Server::start(&[]), "graphs::nodes_run_in_the_order_of_their_edges");
    }
    let driver = Driver::open();
    driver.begin().unwrap();
    let scale = driver.program("scale");
    let bytes = 4 * COUNT as usize;
    let x = driver.allocate(bytes);
    let mut pinned: *mut f32 = std::ptr::null_mut();
    assert_eq!(cuda!(driver, cuMemHostAlloc(&mut pinned => *mut *mut f32, bytes => usize, 0 => u32)), 0);
    let (mut graph, mut context) = (0u64, 0u64);
    assert_eq!(cuda!(driver, cuGraphCreate(&mut graph => *mut u64, 0 => u32)), 0);
    assert_eq!(cuda!(driver, cuCtxGetCurrent(&mut context => *mut u64)), 0);
    let [mut fill, mut launch, mut copy, mut call] = [0u64; 4];
    // CUDA_MEMSET_NODE_PARAMS: ones in elements of 4 bytes.
    let ones = [x, 0, u64::from(1f32.to_bits()) | 4 << 32, u64::from(COUNT), 1];
    let after: *const u64 = std::ptr::null();
    assert_eq!(
        cuda!(driver, cuGraphAddMemsetNode(&mut fill => *mut u64, graph => u64, after => *const u64, 0 => usize, ones.as_ptr() => *const u64, context => u64)),
        0
    );
    let factor = 3f32;
    let parameters = [pointer(&x), pointer(&factor), pointer(&COUNT)];
    let node = kernel_node(scale, &parameters);
    assert_eq!(
        cuda!(driver, cuGraphAddKernelNode_v2(&mut launch => *mut u64, graph => u64, &fill => *const u64, 1 => usize, &node => *const KernelNode)),
        0
    );
    let flat = |kind: u64, start: u64| [0, 0, 0, 0, kind, start, start, 0, 0, bytes as u64, 1];
    let to_host: Vec<u64> = flat(2, x).into_iter().chain(flat(1, pinned as u64)).chain([bytes as u64, 1, 1]).collect();
    let copied = cuda!(driver, cuGraphAddMemcpyNode(&mut copy => *mut u64, graph => u64, &launch => *const u64, 1 => usize,
        to_host.as_ptr() => *const u64, context => u64));
    // By TCP, host memory is out of the server's reach.
    let shares = std::env::var("NEARMETAL_GPU_SERVER").unwrap().starts_with("unix:");
    assert_eq!(copied, if shares { 0 } else { NOT_SUPPORTED });
    let calls = AtomicU32::new(0);
    let function: unsafe extern "C" fn(*mut c_void) = count_call;
    let host = [function as usize, &raw const calls as usize];
    let last = if shares { copy } else { launch };
    assert_eq!(
        cuda!(driver, cuGraphAddHostNode(&mut call => *mut u64, graph => u64, &last => *const u64, 1 => usize, host.as_ptr() => *const usize)),
        0
    );
    let nodes = if shares { vec![fill, launch, copy, call] } else { vec![fill, launch, call] };
    let (mut found, mut count) = ([9u64; 6], 6usize);
    assert_eq!(cuda!(driver, cuGraphGetNodes(graph => u64, std::ptr::null_mut() => *mut u64, &mut count => *mut usize)), 0);
    assert_eq!(count, nodes.len());
    count = 6;
    assert_eq!(cuda!(driver, cuGraphGetNodes(graph => u64, found.as_mut_ptr() => *mut u64, &mut count => *mut usize)), 0);
    assert_eq!(
        (&found[..count], &found[count..]),
        (nodes.as_slice(), &[0; 6][count..]),
        "nodes have the same numbers, and the rest is null"
    );
    count = 6;
    let none: *mut u64 = std::ptr::null_mut();
    let listed = cuda!(driver, cuGraphNodeGetDependencies_v2(call => u64, found.as_mut_ptr() => *mut u64, none => *mut u64, &mut count => *mut usize));
    assert_eq!((listed, count, found[0]), (0, 1, last));
    let mut kind = -1;
    assert_eq!(cuda!(driver, cuGraphNodeGetType(fill => u64, &mut kind => *mut i32)), 0);
    assert_eq!(kind, 2, "a fill");

    let mut executable = 0u64;
    assert_eq!(cuda!(driver, cuGraphInstantiateWithFlags(&mut executable => *mut u64, graph => u64, 0 => u64)), 0);
    let run = |wanted: f32| {
        assert_eq!(cuda!(driver, cuGraphLaunch(executable => u64, 0 => u64)), 0);
        assert_eq!(cuda!(driver, cuCtxSynchronize()), 0);
        assert!(driver.read(x, COUNT as usize).iter().all(|value| *value == wanted), "{wanted}");
        if shares {
            let values = unsafe { std::slice::from_raw_parts(pinned, COUNT as usize) };
            assert!(values.iter().all(|value| *value == wanted), "{wanted} in host memory");
        }
    };
    run(3.0);
    let parameters = [pointer(&x), pointer(&-7f32), pointer(&COUNT)];
    let node = kernel_node(scale, &parameters);
    assert_eq!(cuda!(driver, cuGraphExecKernelNodeSetParams_v2(executable => u64, launch => u64, &node => *const KernelNode)), 0);
    run(-7.0);
    assert_eq!(calls.load(Ordering::SeqCst), 2, "each launch calls the program's function");
    assert_eq!(cuda!(driver, cuGraphDestroy(graph => u64)), 0);
    assert_eq!(cuda!(driver, cuGraphNodeGetType(fill => u64, &mut kind => *mut i32)), INVALID_HANDLE, "nodes end with their graph");
    run(-7.0);
    assert_eq!(cuda!(driver, cuGraphExecDestroy(executable => u64)), 0);
}

#[test]
fn captured_work_is_launched_again() {
    if role().is_none() {
        return by_all_ways(&Server::start(&[]), "graphs::captured_work_is_launched_again");
    }
    let driver = Driver::open();
    driver.begin().unwrap();
    let increment = driver.program("increment");
    let x = driver.allocate(4 * COUNT as usize);
    let mut stream = 0u64;
    assert_eq!(cuda!(driver, cuStreamCreate(&mut stream => *mut u64, 1 => u32)), 0);
    assert_eq!(cuda!(driver, cuMemsetD32Async(x => u64, 0 => u32, COUNT as usize => usize, stream => u64)), 0);
    let (mut status, mut id, mut graph, mut after, mut count) = (9, 0u64, 0u64, std::ptr::null::<u64>(), 0usize);
    let mut info = || {
        let edges: *mut *const u64 = std::ptr::null_mut();
        let asked = cuda!(driver, cuStreamGetCaptureInfo_v3(stream => u64, &mut status => *mut i32, &mut id => *mut u64, &mut graph => *mut u64,
            &mut after => *mut *const u64, edges => *mut *const u64, &mut count => *mut usize));
        assert_eq!(asked, 0);
        (status, graph, unsafe {
            if count == 0 {
                Vec::new()
            } else {
                std::slice::from_raw_parts(after, count).to_vec()
            }
        })
    };
    assert_eq!(info(), (0, 0, Vec::new()), "no capture");
    let calls = AtomicU32::new(0);
    assert_eq!(cuda!(driver, cuStreamBeginCapture_v2(stream => u64, 0 => i32)), 0);
    for _ in 0..10 {
        assert_eq!(driver.launch(increment, COUNT as usize, stream, &[pointer(&x), pointer(&COUNT)]), 0);
    }
    let called =
        cuda!(driver, cuLaunchHostFunc(stream => u64, count_call => unsafe extern "C" fn(*mut c_void), pointer(&calls) => *const c_void));
    assert_eq!(called, 0);
    let (capturing, graph, last) = info();
    assert_eq!((capturing, last.len()), (1, 1));
    let mut ended = 0u64;
    assert_eq!(cuda!(driver, cuStreamEndCapture(stream => u64, &mut ended => *mut u64)), 0);
    assert_eq!(ended, graph, "the graph has one number");
    let (mut nodes, mut count) = ([0u64; 20], 20usize);
    assert_eq!(cuda!(driver, cuGraphGetNodes(graph => u64, nodes.as_mut_ptr() => *mut u64, &mut count => *mut usize)), 0);
    assert_eq!((count, nodes[10]), (11, last[0]));
    let mut executable = 0u64;
    assert_eq!(cuda!(driver, cuGraphInstantiateWithFlags(&mut executable => *mut u64, graph => u64, 0 => u64)), 0);
    assert_eq!(cuda!(driver, cuGraphDestroy(graph => u64)), 0);
    for _ in 0..5 {
        assert_eq!(cuda!(driver, cuGraphLaunch(executable => u64, stream => u64)), 0);
    }
    assert_eq!(cuda!(driver, cuStreamSynchronize(stream => u64)), 0);
    assert_eq!(calls.load(Ordering::SeqCst), 5);
    assert!(driver.read(x, COUNT as usize).iter().all(|value| value.to_bits() == 50));
}
