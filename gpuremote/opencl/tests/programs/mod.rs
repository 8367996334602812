//! Programs, each an ignored test, which `remote.rs` runs in processes of their own.

pub mod commands;
pub mod events;
pub mod loader;
pub mod memory;

/// All that need nothing special of their server.
pub const NAMES: [&str; 15] = [
    "programs::commands::vectors_are_added",
    "programs::commands::what_is_wrong_is_told",
    "programs::commands::a_number_is_no_object",
    "programs::commands::binaries_are_programs",
    "programs::commands::programs_are_compiled_and_linked",
    "programs::commands::threads_have_queues_of_their_own",
    "programs::events::commands_wait_for_the_program",
    "programs::events::callbacks_come_after_the_data",
    "programs::events::a_refused_command_has_a_failed_event",
    "programs::events::times_are_told",
    "programs::events::objects_end_while_commands_wait",
    "programs::memory::large_transfers_are_whole",
    "programs::memory::regions_are_copied",
    "programs::memory::mapped_memory_is_written_back",
    "programs::memory::images_are_read_and_mapped",
];
