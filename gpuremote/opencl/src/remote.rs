//! Calls, as OpenCL needs them: what failed in a call that nobody waited for is told where the program waits for its commands.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::Arc;

use gpuremote_client::wire::{Decoder, Encoder, Malformed, Reply};
use gpuremote_client::{Failure, Front, HandleKind};

use crate::objects::{Data, Object};
use crate::stubs::STATUSES;

/// The front end, and the first failure of calls without a reply that the program has not been told of.
pub(crate) struct Remote {
    front: Front,
    deferred: AtomicI32,
}

impl Remote {
    pub fn new(front: Front) -> Self {
        Remote { front, deferred: AtomicI32::new(0) }
    }

    pub fn mint(&self, kind: HandleKind) -> u64 {
        self.front.mint(kind)
    }

    pub fn unmint(&self, kind: HandleKind, number: u64) {
        self.front.unmint(kind, number);
    }

    /// Tells once that a function is not supported, and returns the status for it.
    pub fn refuse(&self, function: &'static str) -> i32 {
        self.front.refuse(function)
    }

    fn settle(&self, result: Result<i32, Failure>) -> i32 {
        result.unwrap_or(STATUSES.lost)
    }

    fn keep_deferred(&self, reply: Reply) {
        if reply.deferred != STATUSES.ok {
            // An earlier failure is the better explanation.
            let _ = self.deferred.compare_exchange(STATUSES.ok, reply.deferred, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The status of a call that waits for commands: what failed before, unless the call failed itself.
    pub fn with_deferred(&self, status: i32) -> i32 {
        match self.deferred.swap(STATUSES.ok, Ordering::Relaxed) {
            deferred if status == STATUSES.ok => deferred,
            _ => status,
        }
    }

    /// Calls without waiting.
    pub fn post(&self, function: u16, arguments: impl FnOnce(&mut Encoder)) -> i32 {
        self.front.post(function, arguments)
    }

    /// Calls without waiting; the data follows.
    pub fn post_data(&self, function: u16, arguments: impl FnOnce(&mut Encoder), data: &[u8]) -> i32 {
        self.front.post_data(function, arguments, data)
    }

    /// Calls and waits. Values are decoded after success only.
    pub fn call(
        &self,
        function: u16,
        arguments: impl FnOnce(&mut Encoder),
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<(), Malformed>,
    ) -> i32 {
        self.call_data(function, arguments, None, decode)
    }

    /// Calls and waits; data may follow the arguments.
    pub fn call_data(
        &self,
        function: u16,
        arguments: impl FnOnce(&mut Encoder),
        data: Option<&[u8]>,
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<(), Malformed>,
    ) -> i32 {
        let called = self.front.session().and_then(|session| {
            session.call(self.front.api(), function, arguments, data, |lane, reply| {
                self.keep_deferred(reply);
                if reply.status == STATUSES.ok {
                    lane.decode(decode)?;
                }
                Ok(reply.status)
            })
        });
        self.settle(called)
    }

    /// Calls and waits the first time that these arguments are given. The answer is kept with the object, for as long as that lives.
    pub fn ask_of(
        &self,
        object: &Object,
        function: u16,
        arguments: impl FnOnce(&mut Encoder),
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<(), Malformed>,
    ) -> i32 {
        let mut key = Encoder::default();
        key.u16(function);
        arguments(&mut key);
        let kept = object.kept.lock().expect("no one panics with this lock").get(key.bytes()).cloned();
        let values = match kept {
            Some(values) => values,
            None => {
                let mut values = Vec::new();
                let status = self.call(
                    function,
                    |encoder| encoder.raw(&key.bytes()[2..]),
                    |decoder| {
                        values = decoder.take(decoder.remaining())?.to_vec();
                        Ok(())
                    },
                );
                if status != STATUSES.ok {
                    return status;
                }
                object.kept.lock().expect("no one panics with this lock").insert(key.bytes().to_vec(), values.clone());
                values
            }
        };
        let mut decoder = Decoder::new(&values);
        match decode(&mut decoder).and_then(|()| decoder.finish()) {
            Ok(()) => STATUSES.ok,
            Err(_) => STATUSES.lost,
        }
    }

    /// A value that never changes, of an object that the server knows: the functions called `clGet...Info` share their arguments.
    pub fn info(&self, object: &Object, function: u16, name: u32) -> Result<Vec<u8>, i32> {
        let mut value = Vec::new();
        let arguments = |encoder: &mut Encoder| {
            encoder.u64(object.number);
            encoder.u32(name);
        };
        let status = self.ask_of(object, function, arguments, |decoder| {
            value = decoder.bytes_counted()?.to_vec();
            Ok(())
        });
        ok(status).map(|()| value)
    }

    /// Calls, waits, and fills the buffer with the data that follows the reply, and with the status after that.
    pub fn fetch(&self, function: u16, arguments: impl FnOnce(&mut Encoder), buffer: &mut [u8]) -> i32 {
        let fetched = self.front.session().and_then(|session| {
            session.call(self.front.api(), function, arguments, None, |lane, reply| {
                self.keep_deferred(reply);
                if reply.status != STATUSES.ok {
                    return Ok(reply.status);
                }
                lane.data().read(buffer)?;
                let mut status = [0; 4];
                lane.data().read(&mut status)?;
                Ok(i32::from_le_bytes(status))
            })
        });
        self.settle(fetched)
    }

    /// Makes an object on the server, whose number is the message's first value, and here.
    pub fn create(
        &self,
        (kind, function): (HandleKind, u16),
        arguments: impl FnOnce(&mut Encoder),
        data: Option<&[u8]>,
        decode: impl FnOnce(&mut Decoder<'_>) -> Result<(), Malformed>,
        of_object: impl FnOnce() -> (Arc<Object>, Data),
    ) -> Result<Arc<Object>, i32> {
        let number = self.mint(kind);
        let arguments = |encoder: &mut Encoder| {
            encoder.u64(number);
            arguments(encoder);
        };
        let status = self.call_data(function, arguments, data, decode);
        if status != STATUSES.ok {
            self.unmint(kind, number);
            return Err(status);
        }
        let (parent, data) = of_object();
        Ok(Object::new(kind, number, Some(parent), function, data))
    }
}

/// A status as a result.
pub(crate) fn ok(status: i32) -> Result<(), i32> {
    match status {
        status if status == STATUSES.ok => Ok(()),
        status => Err(status),
    }
}

/// A result as a status.
pub(crate) fn status(result: Result<(), i32>) -> i32 {
    result.err().unwrap_or(STATUSES.ok)
}
