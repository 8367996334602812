//! All kernels through a CUDA driver without a GPU, which computes them on the host but checks calls, handles and addresses.

use nearmetal_gpu_kernels::api::{Api, ApiKind};
use nearmetal_gpu_kernels::cases::{Size, KERNELS};
use nearmetal_gpu_kernels::share::Load;
use nearmetal_gpu_kernels::{measure, micro, share};

/// Loads the driver by a link of its own for each test.
fn driver(test: &str) -> Api {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&directory).expect("the directory can be created");
    let library = fakecuda::install(&directory).expect("the driver is built with this test");
    Api::load(ApiKind::Cuda, Some(&library)).expect("the driver has all functions")
}

#[test]
fn every_kernel_computes_what_the_cpu_computes() {
    let api = driver("kernels");
    for kernel in KERNELS {
        for mut case in kernel.cases(Size::Test, 1) {
            let measurement = measure::measure(&api, kernel.name, case.as_mut(), 1)
                .unwrap_or_else(|error| panic!("{} ({}): {error}", kernel.name, case.problem()));
            let work = &measurement.runs[0].work_calls;
            let count = |name: &str| work.iter().find(|call| call.name == name).map_or(0, |call| call.count);
            assert!(count("cuLaunchKernel") > 0, "{} launches nothing", kernel.name);
            assert_eq!(count("cuMemAlloc_v2"), count("cuMemFree_v2"), "{} leaks device memory", kernel.name);
        }
    }
}

#[test]
fn micro_measures_pinned_memory_too() {
    let mut device = driver("micro").open().expect("the driver has a device");
    let report = micro::run(device.as_mut(), 64 << 10).expect("all calls succeed");
    assert_eq!(report.copies.len(), 2 * 2 * 3, "2 sizes, 2 kinds of memory, 3 series");
    assert!(report.copies.iter().any(|series| series.name == "from device, pinned"));
    assert_eq!(report.latencies[0].samples_s.len(), 1000);
}

#[test]
fn share_counts_completed_launches_by_second() {
    let mut device = driver("share").open().expect("the driver has a device");
    // 1 ms per launch.
    let load = Load { seconds: 0.2, ..Load::DEFAULT };
    let report = share::run(device.as_mut(), load).expect("all calls succeed");
    assert!((1..=200).contains(&report.completed), "{report}");
    assert_eq!(report.by_second, [report.completed]);
}
