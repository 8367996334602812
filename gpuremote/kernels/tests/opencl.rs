//! All kernels through the installed OpenCL implementation, which the project's set-up provides.

use nearmetal_gpu_kernels::api::{Api, ApiKind, Error};
use nearmetal_gpu_kernels::cases::{Size, KERNELS};
use nearmetal_gpu_kernels::measure::measure;

#[test]
fn every_kernel_computes_what_the_cpu_computes() {
    let api = Api::load(ApiKind::OpenCl, None).expect("the OpenCL loader is installed (Debian: ocl-icd-libopencl1)");
    for kernel in KERNELS {
        for mut case in kernel.cases(Size::Test, 1) {
            let measurement = measure(&api, kernel.name, case.as_mut(), 1)
                .unwrap_or_else(|error| panic!("{} ({}): {error}", kernel.name, case.problem()));
            assert_eq!(measurement.runs.len(), 1);
            let launches = measurement.runs[0].work_calls.iter();
            let launches: u64 = launches.filter(|call| call.name == "clEnqueueNDRangeKernel").map(|call| call.count).sum();
            let want = match kernel.name {
                "backprop" => 2..=2,
                // Two per level; a random graph of this size has about 8 levels.
                "bfs" => 12..=24,
                "cfd" => 3 + 20 * 7..=3 + 20 * 7,
                "hotspot" => 4..=4,
                "lud" => 3 * 31 + 1..=3 * 31 + 1,
                "nn" => 1..=1,
                "nw" => 2 * 8 - 1..=2 * 8 - 1,
                "pathfinder" => 3..=3,
                other => panic!("kernel {other} has no expected number of launches"),
            };
            assert!(want.contains(&launches), "{}: {launches} launches, want {want:?}", kernel.name);
        }
    }
}

#[test]
fn a_result_that_was_never_computed_is_wrong() {
    for kernel in KERNELS {
        for mut case in kernel.cases(Size::Test, 2) {
            assert!(matches!(case.check(), Err(Error::WrongResult(_))), "{} accepts zeros", kernel.name);
        }
    }
}

#[test]
fn a_library_without_the_functions_is_refused_by_name() {
    let refused = Api::load(ApiKind::Cuda, Some(std::path::Path::new("libc.so.6")));
    let Err(error) = refused else { panic!("libc.so.6 passes for a CUDA driver") };
    let text = error.to_string();
    assert!(text.contains("libc.so.6") && text.contains("cuInit"), "{text}");
}
