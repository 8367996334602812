//! Boxes, fills, pools, registered memory, and maps of tensors.

use std::ffi::c_void;

use super::support::driver::Driver;
use super::support::{role, Server};
use super::{by_all_ways, INVALID_HANDLE, OUT_OF_MEMORY};
use crate::cuda;

const INVALID_VALUE: i32 = 1;
const NOT_SUPPORTED: i32 = 801;
const ALREADY_REGISTERED: i32 = 712;
const NOT_REGISTERED: i32 = 713;
/// CUmemorytype.
const HOST: u64 = 1;
const DEVICE: u64 = 2;

/// One side of CUDA_MEMCPY3D: where, and at which byte, row and slice of what is so many bytes wide and so many rows high.
fn side(kind: u64, start: u64, [x, y, z]: [u64; 3], [pitch, height]: [u64; 2]) -> [u64; 11] {
    [x, y, z, 0, kind, start, start, 0, 0, pitch, height]
}

fn copy_box(driver: &Driver, from: [u64; 11], to: [u64; 11], extent: [u64; 3]) -> i32 {
    let copy: Vec<u64> = from.into_iter().chain(to).chain(extent).collect();
    cuda!(driver, cuMemcpy3D_v2(copy.as_ptr() => *const u64))
}

#[test]
fn boxes_lie_where_they_were_put() {
    if role().is_none() {
        return by_all_ways(&Server::start(&[]), "memory::boxes_lie_where_they_were_put");
    }
    let driver = Driver::open();
    driver.begin().unwrap();
    const WIDTH: u64 = 20;
    const HEIGHT: u64 = 6;
    const DEPTH: u64 = 5;
    let bytes = (WIDTH * HEIGHT * DEPTH) as usize;
    let source: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
    let mut back = vec![0u8; bytes];
    let [first, second] = [(); 2].map(|()| driver.allocate(2 * bytes));
    for memory in [first, second] {
        assert_eq!(cuda!(driver, cuMemsetD8_v2(memory => u64, 0xee => u8, 2 * bytes => usize)), 0);
    }
    // Rows on the GPU are wider than in the program.
    let (narrow, wide) = ([WIDTH, HEIGHT], [32, HEIGHT]);
    let part = [10, 3, 2];
    let (host, device) = (side(HOST, source.as_ptr() as u64, [2, 1, 1], narrow), side(DEVICE, first, [4, 2, 1], wide));
    assert_eq!(copy_box(&driver, host, device, part), 0, "to the GPU");
    let moved = side(DEVICE, second, [0, 0, 3], wide);
    assert_eq!(copy_box(&driver, device, moved, part), 0, "on the GPU");
    let whole = side(DEVICE, second, [0; 3], wide);
    let target = side(HOST, back.as_mut_ptr() as u64, [0; 3], narrow);
    assert_eq!(copy_box(&driver, whole, target, [WIDTH, HEIGHT, DEPTH]), 0, "back");
    for z in 0..DEPTH {
        for y in 0..HEIGHT {
            for x in 0..WIDTH {
                let at = |x, y, z| ((z * HEIGHT + y) * WIDTH + x) as usize;
                let wanted = if x < 10 && y < 3 && z >= 3 { source[at(x + 2, y + 1, z - 2)] } else { 0xee };
                assert_eq!(back[at(x, y, z)], wanted, "{x}, {y}, {z}");
            }
        }
    }
    assert_eq!(copy_box(&driver, host, device, [WIDTH + 1, 1, 1]), INVALID_VALUE, "wider than a row");
    assert_eq!(copy_box(&driver, host, device, [0, 1, 1]), 0, "nothing");
}

#[test]
fn faults_of_fills_and_registrations_are_told_at_once() {
    if role().is_none() {
        return by_all_ways(&Server::start(&[]), "memory::faults_of_fills_and_registrations_are_told_at_once");
    }
    let driver = Driver::open();
    driver.begin().unwrap();
    let memory = driver.allocate(1024);
    assert_eq!(cuda!(driver, cuMemsetD8_v2(memory => u64, 1 => u8, 1025 => usize)), INVALID_VALUE);
    assert_eq!(cuda!(driver, cuMemsetD32_v2(memory + 4 => u64, 1 => u32, 256 => usize)), INVALID_VALUE);
    assert_eq!(cuda!(driver, cuMemsetD2D8_v2(memory => u64, 512 => usize, 1 => u8, 500 => usize, 3 => usize)), INVALID_VALUE);
    assert_eq!(cuda!(driver, cuMemsetD2D8_v2(memory => u64, 512 => usize, 1 => u8, 500 => usize, 2 => usize)), 0);
    let own = vec![0u8; 8192];
    let register = |start: usize| cuda!(driver, cuMemHostRegister_v2(own[start..].as_ptr() => *const u8, 4096 => usize, 0 => u32));
    let unregister = |start: usize| cuda!(driver, cuMemHostUnregister(own[start..].as_ptr() => *const u8));
    assert_eq!(register(0), 0);
    assert_eq!(register(4000), ALREADY_REGISTERED, "the end of the first");
    assert_eq!(unregister(4096), NOT_REGISTERED);
    assert_eq!((unregister(0), unregister(0)), (0, NOT_REGISTERED));
    let mut managed = 0u64;
    assert_eq!(cuda!(driver, cuMemAllocManaged(&mut managed => *mut u64, 4 => usize, 1 => u32)), NOT_SUPPORTED);
}

#[test]
fn pools_allocate_within_the_bound() {
    if role().is_none() {
        return by_all_ways(&Server::start(&["--memory-mib", "64"]), "memory::pools_allocate_within_the_bound");
    }
    let driver = Driver::open();
    driver.begin().unwrap();
    let (mut pool, mut again) = (0u64, 0u64);
    assert_eq!(cuda!(driver, cuDeviceGetDefaultMemPool(&mut pool => *mut u64, 0 => i32)), 0);
    assert_eq!(cuda!(driver, cuDeviceGetMemPool(&mut again => *mut u64, 0 => i32)), 0);
    assert_eq!(pool, again, "one pool has one number");
    let allocate = |pool: u64, mib: usize| {
        let mut address = 0u64;
        let status = cuda!(driver, cuMemAllocFromPoolAsync(&mut address => *mut u64, mib << 20 => usize, pool => u64, 0 => u64));
        (status, address)
    };
    let (status, held) = allocate(pool, 60);
    assert_eq!(status, 0);
    assert_eq!(allocate(pool, 5).0, OUT_OF_MEMORY);
    assert_eq!(cuda!(driver, cuMemFreeAsync(held => u64, 0 => u64)), 0);
    // CUmemPoolProps: pinned memory of the first GPU.
    let properties = |shared_by: i32| -> [i32; 22] { std::array::from_fn(|i| [1, shared_by, 1, 0].get(i).copied().unwrap_or(0)) };
    let mut own = 0u64;
    let create =
        |properties: [i32; 22], pool: &mut u64| cuda!(driver, cuMemPoolCreate(pool => *mut u64, properties.as_ptr() => *const i32));
    assert_eq!(create(properties(1), &mut own), NOT_SUPPORTED, "what other processes could open");
    assert_eq!(create(properties(0), &mut own), 0);
    assert_ne!(own, pool);
    assert_eq!(allocate(own, 64).0, 0);
    // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD and _REUSE_FOLLOW_EVENT_DEPENDENCIES.
    let (threshold, mut read) = (1u64 << 20, [7u64; 2]);
    assert_eq!(cuda!(driver, cuMemPoolSetAttribute(own => u64, 4 => i32, &threshold => *const u64)), 0);
    assert_eq!(cuda!(driver, cuMemPoolGetAttribute(own => u64, 4 => i32, &mut read[0] => *mut u64)), 0);
    assert_eq!(read[0], 0, "a client with a bound keeps nothing");
    read = [u64::MAX; 2];
    assert_eq!(cuda!(driver, cuMemPoolGetAttribute(own => u64, 1 => i32, read.as_mut_ptr() => *mut u64)), 0);
    assert_eq!(read[0], 0xffff_ffff_0000_0001, "a switch has 32 bits");
    assert_eq!(cuda!(driver, cuMemPoolTrimTo(own => u64, 0 => usize)), 0);
    assert_eq!(cuda!(driver, cuMemPoolDestroy(own => u64)), 0);
    assert_eq!(cuda!(driver, cuMemPoolTrimTo(own => u64, 0 => usize)), INVALID_HANDLE, "a pool that is destroyed");
}

#[repr(C, align(64))]
struct Map([u64; 16]);

#[test]
fn maps_of_tensors_are_encoded_once() {
    if role().is_none() {
        let server = Server::start(&[]);
        by_all_ways(&server, "memory::maps_of_tensors_are_encoded_once");
        let log = server.driver_log();
        assert_eq!(log.matches("cuTensorMapEncodeTiled(").count(), 2 * 3, "two maps by each way");
        return;
    }
    let driver = Driver::open();
    driver.begin().unwrap();
    let memory = driver.allocate(4096);
    let (sizes, strides, extents, steps) = ([64u64, 32], [128u64], [32u32, 8], [1u32, 1]);
    let encode = |map: &mut Map, address: u64| {
        cuda!(driver, cuTensorMapEncodeTiled(map.0.as_mut_ptr() => *mut u64, 6 => i32, 2 => u32, address => u64, sizes.as_ptr() => *const u64,
            strides.as_ptr() => *const u64, extents.as_ptr() => *const u32, steps.as_ptr() => *const u32, 0 => i32, 3 => i32, 1 => i32,
            0 => i32))
    };
    for address in [memory, memory + 64] {
        for _ in 0..3 {
            let mut map = Map([0; 16]);
            assert_eq!(encode(&mut map, address), 0);
            assert_eq!(map.0[..9], [address, 2, 6, 3, 64, 32, 128, 32, 8], "as the fake driver encodes it");
        }
    }
    let mut map = Map([0; 16]);
    assert_eq!(encode(&mut map, memory), 0);
    assert_eq!(cuda!(driver, cuTensorMapReplaceAddress(map.0.as_mut_ptr() => *mut u64, memory + 128 => u64)), 0);
    assert_eq!(map.0[..3], [memory + 128, 2, 6]);
    let none: *const c_void = std::ptr::null();
    let wrong = cuda!(driver, cuTensorMapEncodeTiled(map.0.as_mut_ptr() => *mut u64, 6 => i32, 9 => u32, memory => u64, none => *const c_void,
        none => *const c_void, none => *const c_void, none => *const c_void, 0 => i32, 0 => i32, 0 => i32, 0 => i32));
    assert_eq!(wrong, INVALID_VALUE, "nine dimensions");
}
