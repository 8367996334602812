//! What the runtime keeps for each thread of the application.

use crate::abi::{Dim3, Handle};
use crate::error::{Error, SUCCESS};
use std::cell::{Cell, RefCell};

/// What stands between the three angle brackets of a launch.
#[derive(Clone, Copy)]
pub struct CallConfiguration {
    /// Blocks of the grid.
    pub grid: Dim3,
    /// Threads of a block.
    pub block: Dim3,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: usize,
    /// Stream of the launch.
    pub stream: Handle,
}

thread_local! {
    static DEVICE: Cell<i32> = const { Cell::new(0) };
    static LAST_ERROR: Cell<i32> = const { Cell::new(SUCCESS) };
    static CONFIGURATIONS: RefCell<Vec<CallConfiguration>> = const { RefCell::new(Vec::new()) };
    static GENERATION: Cell<u64> = const { Cell::new(0) };
}

/// The device of `cudaSetDevice`, 0 at first.
pub fn device() -> i32 {
    DEVICE.get()
}

/// Stores the device of the thread.
pub fn set_device(device: i32) {
    DEVICE.set(device);
}

/// Stores an error for `cudaGetLastError`.
pub fn set_last_error(error: Error) {
    LAST_ERROR.set(error.0);
}

/// The last error.
pub fn last_error() -> i32 {
    LAST_ERROR.get()
}

/// The last error, which is cleared.
pub fn take_last_error() -> i32 {
    LAST_ERROR.replace(SUCCESS)
}

/// Stores the configuration of the next launch.
pub fn push_configuration(configuration: CallConfiguration) {
    CONFIGURATIONS.with_borrow_mut(|stack| stack.push(configuration));
}

/// Takes the configuration of a launch.
pub fn pop_configuration() -> Option<CallConfiguration> {
    CONFIGURATIONS.with_borrow_mut(|stack| stack.pop())
}

/// Number of device resets that the thread's current context has seen.
pub fn generation() -> u64 {
    GENERATION.get()
}

/// Stores the number of device resets that the thread's current context has seen.
pub fn set_generation(generation: u64) {
    GENERATION.set(generation);
}
