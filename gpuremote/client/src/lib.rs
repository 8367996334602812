//! What all front ends of remote GPUs share: the session with the server, a lane for each thread, numbers of handles, and answers that
//! never change.

mod arena;
mod channel;
mod data_type;
mod flusher;
mod front;
mod handles;
mod lane;
mod notes;
mod session;
mod stripes;

pub use arena::Arena;
pub use channel::{Channel, ChannelCall, ChannelReply, FindChannel, TakeValues, CHANNEL_VERSION};
pub use data_type::data_type_bytes;
pub use front::{knows_server, Entry, Front, Statuses};
pub use gpuremote_wire as wire;
pub use handles::{HandleKind, Handles};
pub use lane::ClientLane;
pub use notes::Notes;
pub use session::{Failure, Session};
