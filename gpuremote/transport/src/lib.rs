//! Lanes of remote GPU calls: ordered bytes between a client and the server, through shared memory on one host or by TCP between hosts.

mod address;
mod arena;
mod copy;
mod descriptors;
mod lane;
mod memory;
mod ring;

pub use address::Address;
pub use arena::{free_in_arena, map_arena, shared_arena, ARENA_BYTES};
pub use descriptors::{receive_with_files, send_with_files};
pub use lane::{shared_rings, Lane, CHUNK_BYTES, RING_BYTES};
pub use memory::{sealed_file, Mapping};
