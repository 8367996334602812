//! Alone in its process, because it leaves no device memory to other tests.

use nearmetal_gpu_kernels::api::{Api, ApiKind};
use nearmetal_gpu_kernels::memory;

#[test]
fn memory_ends_at_the_driver_s_refusal_and_is_free_again() {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("memory");
    std::fs::create_dir_all(&directory).expect("the directory can be created");
    let library = fakecuda::install(&directory).expect("the driver is built with this test");
    let api = Api::load(ApiKind::Cuda, Some(&library)).expect("the driver has all functions");
    let mut device = api.open().expect("the driver has a device");
    for round in 1..=2 {
        let report = memory::allocate_until_refused(device.as_mut(), 1 << 40).expect("only lack of memory is refused");
        // The driver has 256 MiB.
        assert_eq!(report.chunks, 4, "round {round}: {report}");
        let refusal = report.refusal.unwrap_or_default();
        assert!(refusal.contains("CUDA_ERROR_OUT_OF_MEMORY"), "round {round}: {refusal}");
    }
}
