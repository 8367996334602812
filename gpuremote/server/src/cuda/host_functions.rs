//! Functions of the client that streams and graphs call.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::sync::{Condvar, Mutex};

use gpuremote_wire::{Decoder, Encoder};

use super::{calls, Server, INVALID_HANDLE, NOT_SUPPORTED};
use crate::worker::{Link, Outcome};

/// Functions of the client that its streams call, and that it runs itself.
#[derive(Default)]
pub struct HostFunctions {
    state: Mutex<HostFunctionsState>,
    changed: Condvar,
}

#[derive(Default)]
struct HostFunctionsState {
    reached: VecDeque<(u64, bool)>,
    done: u64,
    begun: u64,
}

/// What a stream calls: it waits until the client has run its function.
#[derive(Clone, Copy)]
struct Reached {
    shared: *const HostFunctions,
    number: u64,
    /// Whether a graph has it, which may call it again.
    again: bool,
}

unsafe extern "C" fn reached(data: *mut c_void) {
    let Reached { shared, number, again } = *data.cast::<Reached>();
    if !again {
        drop(Box::from_raw(data.cast::<Reached>()));
    }
    let functions = &*shared;
    let mut state = functions.state.lock().expect("no one panics with this lock");
    state.reached.push_back((number, again));
    state.begun += 1;
    let place = state.begun;
    functions.changed.notify_all();
    while state.done < place {
        state = functions.changed.wait(state).expect("no one panics with this lock");
    }
}

/// What streams call, as the driver takes it.
fn callback() -> *const u8 {
    let callback: unsafe extern "C" fn(*mut c_void) = reached;
    callback as *const u8
}

impl Server {
    fn reached(&self, number: u64, again: bool) -> *mut Reached {
        Box::into_raw(Box::new(Reached { shared: &self.shared.host_functions, number, again }))
    }

    pub unsafe fn cu_graph_add_host_node(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        let place = self.place(decoder)?;
        let number = decoder.u64()?;
        decoder.finish()?;
        let Some(place) = place else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuGraphAddHostNode else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        // CUDA_HOST_NODE_PARAMS. A graph, its copies and executables may call it at any time, so it stays for good.
        let call = [callback() as u64, self.reached(number, true) as u64];
        place.add(self, values, |node, graph, after, count| run(node, graph, after, count, call.as_ptr().cast()))
    }

    pub unsafe fn cu_launch_host_func(&mut self, _: &mut Link<'_>, decoder: &mut Decoder<'_>, _: &mut Encoder) -> io::Result<Outcome> {
        let (stream, number) = (decoder.u64()?, decoder.u64()?);
        decoder.finish()?;
        let Some(stream) = self.handles.get(calls::kinds::CUstream, stream) else { return Ok(Outcome::Status(INVALID_HANDLE)) };
        let Some(run) = self.functions.cuLaunchHostFunc else { return Ok(Outcome::Status(NOT_SUPPORTED)) };
        let again = self.captures(Some(stream));
        let data = self.reached(number, again);
        let status = run(stream, callback(), data.cast());
        if status != 0 {
            drop(Box::from_raw(data));
        }
        Ok(Outcome::Status(status))
    }

    /// Waits until a stream reaches a function of the client.
    pub unsafe fn nearmetal_next_host_function(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        values: &mut Encoder,
    ) -> io::Result<Outcome> {
        decoder.finish()?;
        let functions = &self.shared.host_functions;
        let mut state = functions.state.lock().expect("no one panics with this lock");
        let (number, again) = loop {
            match state.reached.pop_front() {
                Some(first) => break first,
                None => state = functions.changed.wait(state).expect("no one panics with this lock"),
            }
        };
        values.u64(number);
        values.u8(again.into());
        Ok(Outcome::Status(0))
    }

    /// The client has run the function that was reached first of those not done.
    pub unsafe fn nearmetal_host_function_done(
        &mut self,
        _: &mut Link<'_>,
        decoder: &mut Decoder<'_>,
        _: &mut Encoder,
    ) -> io::Result<Outcome> {
        decoder.finish()?;
        let functions = &self.shared.host_functions;
        functions.state.lock().expect("no one panics with this lock").done += 1;
        functions.changed.notify_all();
        Ok(Outcome::Status(0))
    }
}
