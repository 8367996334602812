//! Attributes of launches, and kernels of libraries.

use std::ffi::{c_char, c_void, CStr, CString};

use super::support::driver::{Driver, PROGRAMS};
use super::support::{role, Server};
use super::{by_all_ways, pointer};
use crate::cuda;

const INVALID_CLUSTER_SIZE: i32 = 912;
const NOT_SUPPORTED: i32 = 801;
/// CUlaunchAttributeID.
const COOPERATIVE: u32 = 2;
const CLUSTER_DIMENSION: u32 = 4;
const PROGRAMMATIC_EVENT: u32 = 7;
const DEVICE_UPDATABLE_NODE: u32 = 13;

#[repr(C)]
struct Attribute {
    id: u32,
    padding: u32,
    value: [u64; 8],
}

#[repr(C)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: u64,
    attributes: *const Attribute,
    attribute_count: u32,
}

fn attribute(id: u32, first: u64, second: u64) -> Attribute {
    Attribute { id, padding: 0, value: [first, second, 0, 0, 0, 0, 0, 0] }
}

fn launch(driver: &Driver, function: u64, blocks: u32, attributes: &[Attribute], parameters: &[*const c_void]) -> i32 {
    let (grid, block) = ([blocks, 1, 1], [256, 1, 1]);
    let attribute_count = attributes.len() as u32;
    let config = Config { grid, block, shared_bytes: 0, stream: 0, attributes: attributes.as_ptr(), attribute_count };
    cuda!(driver, cuLaunchKernelEx(&config => *const Config, function => u64, parameters.as_ptr() => *const *const c_void, std::ptr::null() => *const c_void))
}

#[test]
fn attributes_of_launches_reach_the_driver() {
    if role().is_none() {
        return by_all_ways(&Server::start(&[]), "launches::attributes_of_launches_reach_the_driver");
    }
    const COUNT: u32 = 1024;
    let driver = Driver::open();
    driver.begin().unwrap();
    let (increment, spin) = (driver.program("increment"), driver.program("spin"));
    let x = driver.allocate(4 * COUNT as usize);
    assert_eq!(cuda!(driver, cuMemsetD32_v2(x => u64, 0 => u32, COUNT as usize => usize)), 0);
    let parameters = [pointer(&x), pointer(&COUNT)];
    let clusters = |size: u64| attribute(CLUSTER_DIMENSION, size | 1 << 32, 1);
    assert_eq!(launch(&driver, increment, 4, &[clusters(2), attribute(COOPERATIVE, 1, 0)], &parameters), 0);
    assert_eq!(cuda!(driver, cuCtxSynchronize()), 0);
    assert_eq!(launch(&driver, increment, 4, &[clusters(3)], &parameters), 0, "nobody waits for a launch");
    assert_eq!(cuda!(driver, cuCtxSynchronize()), INVALID_CLUSTER_SIZE, "its failure is told later");
    let mut event = 0u64;
    assert_eq!(cuda!(driver, cuEventCreate(&mut event => *mut u64, 2 => u32)), 0);
    assert_eq!(launch(&driver, spin, 1, &[attribute(PROGRAMMATIC_EVENT, event, 0)], &[pointer(&100_000u32)]), 0);
    assert_eq!(cuda!(driver, cuEventQuery(event => u64)), 600, "the event is of this launch");
    assert_eq!(cuda!(driver, cuEventSynchronize(event => u64)), 0);
    assert_eq!(launch(&driver, increment, 4, &[attribute(DEVICE_UPDATABLE_NODE, 1, 0)], &parameters), NOT_SUPPORTED);
    assert_eq!(driver.read(x, COUNT as usize)[7].to_bits(), 1);
}

#[test]
fn kernels_of_libraries_are_launched_and_named() {
    if role().is_none() {
        return by_all_ways(&Server::start(&[]), "launches::kernels_of_libraries_are_launched_and_named");
    }
    let driver = Driver::open();
    driver.begin().unwrap();
    let image = CString::new(PROGRAMS).unwrap();
    let none: *const c_void = std::ptr::null();
    let (mut library, mut count) = (0u64, 0u32);
    let loaded = cuda!(driver, cuLibraryLoadData(&mut library => *mut u64, image.as_ptr() => *const c_char, none => *const c_void,
        none => *const c_void, 0 => u32, none => *const c_void, none => *const c_void, 0 => u32));
    assert_eq!(loaded, 0);
    assert_eq!(cuda!(driver, cuLibraryGetKernelCount(&mut count => *mut u32, library => u64)), 0);
    assert_eq!(count, 5);
    let mut kernels = [0u64; 5];
    assert_eq!(cuda!(driver, cuLibraryEnumerateKernels(kernels.as_mut_ptr() => *mut u64, count => u32, library => u64)), 0);
    let names = kernels.map(|kernel| {
        let mut name: *const c_char = std::ptr::null();
        assert_eq!(cuda!(driver, cuKernelGetName(&mut name => *mut *const c_char, kernel => u64)), 0);
        unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned()
    });
    assert_eq!(names, ["vector_add", "scale", "increment", "spin", "fail"]);
    let (mut function, mut again, mut blocks) = (0u64, 0u64, 0);
    assert_eq!(cuda!(driver, cuKernelGetFunction(&mut function => *mut u64, kernels[2] => u64)), 0);
    assert_eq!(cuda!(driver, cuKernelGetFunction(&mut again => *mut u64, kernels[2] => u64)), 0);
    assert_eq!(function, again, "one function has one number");
    let occupancy =
        cuda!(driver, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks => *mut i32, kernels[2] => u64, 256 => i32, 0 => usize));
    assert_eq!((occupancy, blocks), (0, 8), "also of the kernel itself");
    let x = driver.allocate(400);
    assert_eq!(cuda!(driver, cuMemsetD32_v2(x => u64, 40 => u32, 100 => usize)), 0);
    for launched in [function, kernels[2]] {
        assert_eq!(driver.launch(launched, 100, 0, &[pointer(&x), pointer(&100u32)]), 0);
    }
    assert!(driver.read(x, 100).iter().all(|value| value.to_bits() == 42));
}
