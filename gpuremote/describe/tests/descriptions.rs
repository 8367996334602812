//! Every description that the workspace has.

use std::fs;

#[test]
fn every_description_is_read_and_makes_both_sides() {
    let mut names = Vec::new();
    for entry in fs::read_dir("apis").expect("the descriptions lie in apis") {
        let path = entry.expect("apis can be listed").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a description is called NAME.api");
        let api = gpuremote_describe::read("apis", name).unwrap_or_else(|error| panic!("{error}"));
        assert!(gpuremote_describe::client(&api).contains("ENTRY_POINTS"), "{}", api.name);
        assert!(gpuremote_describe::server(&api).contains("pub unsafe fn dispatch"), "{}", api.name);
        names.push(api.name);
    }
    assert!(names.contains(&"opencl".to_owned()), "{names:?}");
}

#[test]
fn objects_go_by_number_and_hold_their_first_object() {
    let text = "api x 1; status ok 0; object Q -36; object E -58;
        fn run(queue: Q, count: u32, waits: list E[count] -57, event: want E) async; fn drop_queue(queue: Q) release;";
    let api = gpuremote_describe::parse(text).unwrap();
    let client = gpuremote_describe::client(&api);
    for part in [
        "pub unsafe extern \"C\" fn run(queue: *mut crate::Object, count: u32, waits: *const *mut crate::Object, event: *mut *mut crate::Object) -> i32",
        "crate::object(kinds::Q, queue) else { return -36 }",
        "crate::objects(kinds::E, waits, usize::try_from(count).unwrap_or(0)) else { return -57 }",
        "crate::made(kinds::E, minted_event, Some(&queue_object), numbers::run)",
        "pub const RELEASES: [Option<u16>; 2] = [\nSome(1), None, ];",
    ] {
        assert!(client.contains(part), "{part} is not in\n{client}");
    }
    let server = gpuremote_describe::server(&api);
    for part in ["server.failed(queue, event_number, status)", "server.handles.take(kinds::Q, queue_number)"] {
        assert!(server.contains(part), "{part} is not in\n{server}");
    }
}
