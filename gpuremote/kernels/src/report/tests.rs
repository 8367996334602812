//! Reports of small results, from their JSON to the tables.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{json, Value};

use super::files::Directory;
use super::{markdown, svg};

const DEVICE: &str = "Some GPU, CUDA driver 13.0";

fn call(name: &str, transfer: &str, total_s: f64, bytes: u64) -> Value {
    json!({"name": name, "transfer": transfer, "count": 2, "total_s": total_s, "longest_s": total_s, "bytes": bytes})
}

/// Returns a result whose runs take `works_s` and spend a quarter of their calls' time in copies.
fn kernel(kernel: &str, works_s: &[f64]) -> Value {
    let calls = [call("cuMemcpyHtoD_v2", "to_device", 0.1, 2048), call("cuLaunchKernel", "none", 0.3, 0)];
    let run = |work_s| json!({"setup_s": 1.0, "work_s": work_s, "total_s": 2.0, "close_s": 0.1, "setup_calls": [], "work_calls": calls});
    let runs: Vec<Value> = works_s.iter().map(run).collect();
    let spread = json!({"median": 1.0, "min": 1.0, "max": 1.0});
    let measurement = json!({
        "kernel": kernel, "problem": "a problem, small", "device": DEVICE, "deviation": {"relative": 0.0, "tolerance": 0.0},
        "warm_up": run(&9.0), "runs": runs, "setup_s": spread, "work_s": spread, "total_s": spread,
    });
    json!({"api": "cuda", "library": "libcuda.so.1", "size": "published", "seed": 1, "measurements": [measurement], "failures": []})
}

fn series(name: &str, bytes: u64, us: f64) -> Value {
    let s = us / 1e6;
    json!({"name": name, "bytes": bytes, "spread_s": {"median": s, "min": s, "max": s}, "samples_s": [s, s, s]})
}

/// Returns results with calls of this many microseconds, and copies of 1 MiB in 100 times as many.
fn micro(synchronous_us: f64, asynchronous_us: f64) -> Value {
    json!({
        "device": DEVICE,
        "latencies": [series("read of 4 bytes", 0, synchronous_us), series("write of 4 bytes", 0, asynchronous_us)],
        "launches": [series("each of 1000 launches, until submitted", 0, asynchronous_us)],
        "copies": [
            series("to device, pageable, until the call returns", 1 << 20, 1.0),
            series("from device, pageable", 1 << 20, synchronous_us * 100.0),
        ],
        "host": [
            series("copy in memory", 1 << 20, 1000.0),
            series("TCP loopback round trip of 64 bytes", 0, 20.0),
            series("TCP loopback stream, acknowledged at its end", 1 << 20, 2000.0),
        ],
    })
}

fn share(per_second: f64) -> Value {
    json!({
        "device": DEVICE, "load": {"seconds": 5.0, "at_unix_s": 1.0, "groups": 8, "rounds": 9, "depth": 2}, "late_s": 0.001,
        "completed": 5, "per_second": per_second, "by_second": [1], "longest_gap_s": 0.02,
    })
}

/// Reads a directory of these files.
fn read(files: &[(&str, Value)]) -> Result<Directory, String> {
    let texts: BTreeMap<String, String> = files.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Directory::from_texts(Path::new("results"), texts.keys().cloned().collect(), |name| Ok(texts[name].clone()))
}

fn report(files: &[(&str, Value)]) -> String {
    markdown(&[read(files).unwrap_or_else(|message| panic!("the files are refused: {message}"))])
}

/// Returns the only line of `text` that begins with `start`.
fn line<'a>(text: &'a str, start: &str) -> &'a str {
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(start)).collect();
    assert_eq!(lines.len(), 1, "lines that begin with \"{start}\" in\n{text}");
    lines[0]
}

#[test]
fn a_kernel_has_its_ratios_beside_the_published_one() {
    let files = [
        ("published-nw-local.json", kernel("nw", &[0.002, 0.001, 0.004])),
        ("published-nw-memory.json", kernel("nw", &[0.002; 3])),
        ("published-nw-tcp.json", kernel("nw", &[0.012; 3])),
    ];
    let text = report(&files);
    let want =
        "| nw | a problem, small | 4 | 2 KiB | 0 B | 2.00 (1.00..4.00) | 1.00 (0.50..2.00) | unclear | 6.00 (3.00..12.0) | **missed** \
                | 25, 25, 25 | 2.28 |";
    assert_eq!(line(&text, "| nw"), want);
    assert!(text.contains("Source: `published-nw-{local,memory,tcp}.json`."), "{text}");
    assert!(text.contains("`published-bfs-local.json`"), "kernels that were not run are missing files:\n{text}");
    assert!(text.contains("- Some GPU, CUDA driver 13.0; host not recorded (local, memory, TCP)"), "{text}");
    let drawing = svg(&[read(&files).expect("the files are read")]).expect("there is a kernel to draw");
    assert!(drawing.contains(">nw<") && drawing.contains(">6.00<"), "{drawing}");
}

#[test]
fn the_host_is_named_if_the_files_have_it() {
    let mut file = kernel("nn", &[0.001]);
    file["machine"] = json!({"processor": "Some CPU", "processors": 16, "system": "Linux 6.8"});
    let text = report(&[("published-nn-local.json", file)]);
    assert!(text.contains("- Some GPU, CUDA driver 13.0; Some CPU, 16 processors, Linux 6.8 (local)"), "{text}");
}

#[test]
fn missing_files_are_named_and_a_kernel_without_local_has_no_row() {
    let files = [("published-nw-memory.json", kernel("nw", &[0.002])), ("published-nn-local.json", kernel("nn", &[0.002]))];
    let text = report(&files);
    assert!(!text.contains("| nw"), "{text}");
    assert!(line(&text, "| nn").contains("| – | – | – | – | 25, –, – |"), "{text}");
    let missing: Vec<&str> = text.lines().filter(|line| line.starts_with("Missing: ")).collect();
    assert_eq!(missing.len(), 3, "one for kernels, calls and shares each:\n{text}");
    for name in ["`published-nw-local.json`", "`published-nn-tcp.json`", "`published-lud-memory.json`"] {
        assert!(missing[0].contains(name), "{name}: {}", missing[0]);
    }
    assert!(!missing[0].contains("published-nw-memory"), "{}", missing[0]);
    assert!(svg(&[read(&files).expect("the files are read")]).is_none(), "no kernel has a ratio");
}

#[test]
fn one_run_has_a_ratio_without_a_verdict() {
    let files = [("published-nw-local.json", kernel("nw", &[0.002])), ("published-nw-tcp.json", kernel("nw", &[0.003]))];
    assert!(line(&report(&files), "| nw").contains("| 1.50 | no spread |"));
}

#[test]
fn failures_are_reported_with_their_file() {
    let mut file = kernel("nw", &[0.002]);
    file["measurements"] = json!([]);
    file["failures"] = json!(["nw (a problem): out of memory"]);
    let text = report(&[("published-nw-tcp.json", file)]);
    assert!(text.contains("Failed: `published-nw-tcp.json`: nw (a problem): out of memory."), "{text}");
}

#[test]
fn single_calls_are_judged_beyond_local_and_copies_by_their_baseline() {
    let text =
        report(&[("micro-local.json", micro(10.0, 5.0)), ("micro-memory.json", micro(12.0, 0.5)), ("micro-tcp.json", micro(40.0, 1.5))]);
    let want = "| read of 4 bytes | 10.0 (10.0) | 12.0 (12.0) | 2.00 (2.00..2.00) | met | 40.0 (40.0) | 30.0 (30.0..30.0) \
                | 1.50 (1.50..1.50) | **missed** |";
    assert_eq!(line(&text, "| read of 4 bytes"), want);
    let want = "| write of 4 bytes | 5.00 (5.00) | 0.50 (0.50) | 0.50 (0.50..0.50) | met | 1.50 (1.50) | 1.50 (1.50..1.50) | **missed** |";
    assert_eq!(line(&text, "| write of 4 bytes"), want);
    let want =
        "| from device, pageable | 1 MiB | 1.05 | 100 (100..100) | 0.87 | 83.3 (83.3..83.3) | 83.3 (83.3..83.3) | **missed** | 0.26 \
                | 25.0 (25.0..25.0) | 50.0 (50.0..50.0) | **missed** |";
    assert_eq!(line(&text, "| from device"), want);
    assert!(!text.contains("| to device, pageable, until the call returns"), "an unfinished copy has no rate:\n{text}");
}

#[test]
fn a_copy_without_a_stream_of_its_size_has_no_verdict() {
    let mut tcp = micro(10.0, 0.5);
    tcp["host"].as_array_mut().expect("series are a list").pop();
    let text = report(&[("micro-local.json", micro(10.0, 5.0)), ("micro-tcp.json", tcp)]);
    assert!(line(&text, "| from device").ends_with("| 100 (100..100) | – | – |"), "{text}");
}

#[test]
fn baselines_that_differ_between_ways_widen_the_interval() {
    let mut memory = micro(10.0, 0.5);
    memory["host"][0] = series("copy in memory", 1 << 20, 500.0);
    let text = report(&[("micro-local.json", micro(10.0, 5.0)), ("micro-memory.json", memory)]);
    assert!(line(&text, "| from device").contains("| 50.0 (50.0..100) | unclear |"), "{text}");
}

#[test]
fn shares_leave_out_a_way_whose_clients_are_incomplete() {
    let text = report(&[
        ("share-local-1.json", share(100.0)),
        ("share-local-2.json", share(100.0)),
        ("share-memory-1.json", share(100.0)),
        ("share-memory-2.json", share(50.0)),
        ("share-tcp-1.json", share(100.0)),
    ]);
    assert_eq!(line(&text, "| local"), "| local | 2 | 100, 100 | 200 | 0.00 | met | 1.00 | 20.0 |");
    assert_eq!(line(&text, "| memory"), "| memory | 2 | 100, 50.0 | 150 | 33.33 | **missed** | 1.00 | 20.0 |");
    assert!(!text.contains("| TCP |") && text.contains("Missing: `share-tcp-2.json`."), "{text}");
}

#[test]
fn a_wrong_file_is_an_error_that_names_it() {
    let local = || ("published-nw-local.json", kernel("nw", &[0.002]));
    let with = |key: &str, value: Value| {
        let mut file = kernel("nw", &[0.002]);
        file[key] = value;
        file
    };
    let mut other_device = kernel("nw", &[0.002]);
    other_device["measurements"][0]["device"] = json!("Other GPU");
    let mut other_load = share(1.0);
    other_load["load"]["depth"] = json!(3);
    let mut no_samples = micro(1.0, 1.0);
    no_samples["copies"][0]["samples_s"] = json!([]);
    for (files, part) in [
        (vec![], "results has no results: files are expected to be named SIZE-KERNEL-WAY.json"),
        (vec![("other.json", json!({}))], "results has no results"),
        (vec![("micro-tcp.json", kernel("nw", &[0.002]))], "results/micro-tcp.json is no result as its name says: missing field"),
        (vec![("share-tcp-1.json", json!("text"))], "results/share-tcp-1.json is no result as its name says"),
        (vec![("test-nw-tcp.json", kernel("nw", &[0.002]))], "holds API cuda and size published, its name says cuda and test"),
        (vec![("opencl-published-tcp.json", kernel("nw", &[0.002]))], "its name says opencl and published"),
        (vec![("published-nn-tcp.json", kernel("nw", &[0.002]))], "results/published-nn-tcp.json: holds kernel nw, unlike its name"),
        (vec![("published-nw-tcp.json", kernel("nw", &[]))], "kernel nw has no measured run"),
        (vec![("published-nw-tcp.json", kernel("nw", &[0.0]))], "kernel nw has a run of 0 s"),
        (vec![("micro-tcp.json", no_samples)], "\"to device, pageable, until the call returns\" has no samples"),
        (vec![local(), ("published-nw-tcp.json", with("seed", json!(2)))], "published-nw-tcp.json has inputs of seed 2"),
        (
            vec![local(), ("published-local.json", kernel("nw", &[0.002]))],
            "published-nw-local.json measures nw (a problem, small) once more",
        ),
        (vec![local(), ("published-nw-tcp.json", other_device)], "mixes results of \"Some GPU, CUDA driver 13.0\" and of \"Other GPU\""),
        (
            vec![("share-tcp-1.json", share(1.0)), ("share-tcp-2.json", other_load)],
            "share-tcp-1.json and share-tcp-2.json have different loads",
        ),
    ] {
        let message = read(&files).expect_err(part);
        assert!(message.contains(part), "got \"{message}\", want \"{part}\"");
    }
}

#[test]
fn json_files_with_other_names_are_named() {
    let text = report(&[("published-nw-local.json", kernel("nw", &[0.002])), ("published-sort-tcp.json", json!({}))]);
    assert!(text.contains("not part of this report, by their names: `published-sort-tcp.json`."), "{text}");
}
