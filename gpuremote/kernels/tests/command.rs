//! The program as its users run it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&directory).expect("the directory can be created");
    directory
}

/// Runs the program with a fake CUDA driver of `memory_mib` MiB and returns its output and what it wrote for `--json`.
fn run(test: &str, memory_mib: u32, arguments: &[&str]) -> (Output, serde_json::Value) {
    let directory = directory(test);
    let library = fakecuda::install(&directory).expect("the driver is built with this test");
    let json = directory.join("report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_nearmetal-gpu-kernels"))
        .args(arguments)
        .args(["--api", "cuda", "--library"])
        .arg(library)
        .arg("--json")
        .arg(&json)
        .env("FAKE_CUDA_MEMORY_MIB", memory_mib.to_string())
        .output()
        .expect("the program can be started");
    let text = std::fs::read_to_string(&json).expect("the program writes its report");
    (output, serde_json::from_str(&text).expect("the report is JSON"))
}

#[test]
fn the_report_has_every_run_with_its_calls() {
    let (output, report) = run("report", 256, &["--size", "test", "--kernel", "nw", "--kernel", "nn", "--runs", "3"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(report["failures"], serde_json::json!([]));
    let measurements = report["measurements"].as_array().expect("measurements are a list");
    let kernels: Vec<_> = measurements.iter().map(|measurement| measurement["kernel"].as_str()).collect();
    assert_eq!(kernels, [Some("nn"), Some("nw")]);
    for measurement in measurements {
        let runs = measurement["runs"].as_array().expect("runs are a list");
        assert_eq!(runs.len(), 3);
        for run in runs {
            let calls = run["work_calls"].as_array().expect("calls are a list");
            assert!(calls.iter().any(|call| call["name"] == "cuLaunchKernel"), "{run}");
            assert!(calls.iter().any(|call| call["transfer"] == "to_device" && call["bytes"].as_u64() > Some(0)), "{run}");
        }
    }
}

#[test]
fn a_failed_kernel_fails_the_run_but_not_the_other_kernels() {
    // nn takes less than 1 MiB, nw 32.
    let (output, report) = run("failure", 4, &["--size", "published", "--kernel", "nn", "--kernel", "nw", "--runs", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(report["measurements"].as_array().map(Vec::len), Some(1));
    let want = "nw (2048 x 2048 letters, penalty 10): cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY (2)";
    assert_eq!(report["failures"], serde_json::json!([want]));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(want) && text.contains("1 of 2 measurements failed"), "{text}");
}

#[test]
fn a_wrong_command_line_has_a_status_of_its_own() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_nearmetal-gpu-kernels")).args(["--api", "cuda"]).output().expect("the program can be started");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("use --size test, published or large"));
}

#[test]
fn a_report_reads_what_the_program_writes() {
    let directory = directory("compare");
    let library = fakecuda::install(&directory).expect("the driver is built with this test");
    let program = || Command::new(env!("CARGO_BIN_EXE_nearmetal-gpu-kernels"));
    let write = |arguments: &[&str], name: &str| {
        let output = program()
            .args(arguments)
            .args(["--api", "cuda", "--library"])
            .arg(&library)
            .arg("--json")
            .arg(directory.join(name))
            .output()
            .expect("the program can be started");
        assert!(output.status.success(), "{output:?}");
    };
    for way in ["local", "memory", "tcp"] {
        write(&["--size", "test", "--kernel", "nn", "--runs", "3"], &format!("test-nn-{way}.json"));
        write(&["share", "--seconds", "0.1", "--groups", "1", "--rounds", "10"], &format!("share-{way}-1.json"));
        write(&["micro", "--largest-copy", "65536"], &format!("micro-{way}.json"));
    }
    let drawing = directory.join("ratios.svg");
    let output = program().arg("report").arg(&directory).arg("--svg").arg(&drawing).output().expect("the program can be started");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    for row in ["| nn | 3000 records |", "| read of 4 bytes |", "| from device, pageable | 64 KiB |", "| TCP | 1 |"] {
        assert!(text.contains(row), "no row \"{row}\" in\n{text}");
    }
    assert!(!text.contains("host not recorded"), "{text}");
    assert!(std::fs::read_to_string(&drawing).expect("the drawing is written").ends_with("</svg>\n"));
}

#[test]
fn a_report_of_a_wrong_directory_says_what_is_missing() {
    let output = Command::new(env!("CARGO_BIN_EXE_nearmetal-gpu-kernels"))
        .args(["report", "/nonexistent"])
        .output()
        .expect("the program can be started");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("can't read /nonexistent: No such file"), "{output:?}");
}
