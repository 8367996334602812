//! Contexts, and the modules and kernels in them.

use crate::abi::*;
use crate::graph::Step;
use crate::image::Kernel;
use crate::stream::{Point, Stream, Work};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// A loaded module.
pub struct Module {
    /// Its context.
    pub context: CUcontext,
    /// Its kernels.
    pub kernels: Vec<Arc<Kernel>>,
    /// Address and size of its variables.
    pub variables: Arc<HashMap<String, (u64, usize)>>,
    /// Handles of kernels that the client asked for.
    pub handles: Mutex<HashMap<String, CUfunction>>,
}

/// A kernel that the client asked for.
pub struct Function {
    /// Context of its module.
    pub context: CUcontext,
    /// Its module.
    pub module: CUmodule,
    /// Its description.
    pub kernel: Arc<Kernel>,
    /// Variables of its module.
    pub variables: Arc<HashMap<String, (u64, usize)>>,
    /// Attributes that the client set.
    pub attributes: Mutex<HashMap<i32, i32>>,
}

/// A context.
pub struct Context {
    /// Its handle.
    pub handle: CUcontext,
    /// Its device.
    pub device: CUdevice,
    /// Flags of its creation.
    pub flags: AtomicU32,
    /// Limits that the client set, by `CUlimit`.
    pub limits: Mutex<HashMap<u32, usize>>,
    error: Arc<AtomicU32>,
    delay: Duration,
    legacy: Arc<Stream>,
    created: Mutex<Vec<Arc<Stream>>>,
    per_thread: Mutex<HashMap<ThreadId, Arc<Stream>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Context {
    /// A context with its default stream.
    pub fn new(handle: CUcontext, device: CUdevice, flags: u32, delay: Duration) -> Context {
        let error = Arc::new(AtomicU32::new(CUDA_SUCCESS));
        Context {
            handle,
            device,
            flags: AtomicU32::new(flags),
            limits: Mutex::new(HashMap::new()),
            legacy: Stream::start(handle, 0, 0, error.clone(), delay),
            error,
            delay,
            created: Mutex::new(Vec::new()),
            per_thread: Mutex::new(HashMap::new()),
        }
    }

    /// Gives the error of earlier asynchronous work, which stays until the context ends.
    pub fn check(&self) -> Result<(), CUresult> {
        match self.error.load(Ordering::SeqCst) {
            CUDA_SUCCESS => Ok(()),
            code => Err(code),
        }
    }

    /// Starts a stream of the client.
    pub fn create_stream(&self, flags: u32, priority: i32) -> Arc<Stream> {
        let stream = Stream::start(self.handle, flags, priority, self.error.clone(), self.delay);
        locked(&self.created).push(stream.clone());
        stream
    }

    /// Forgets a stream, whose submitted work still runs.
    pub fn forget_stream(&self, stream: &Arc<Stream>) {
        locked(&self.created).retain(|other| !Arc::ptr_eq(other, stream));
    }

    /// The legacy default stream.
    pub fn legacy_stream(&self) -> Arc<Stream> {
        self.legacy.clone()
    }

    /// The default stream of the calling thread.
    pub fn thread_stream(&self) -> Arc<Stream> {
        let mut streams = locked(&self.per_thread);
        let start = || Stream::start(self.handle, 0, 0, self.error.clone(), self.delay);
        streams.entry(thread::current().id()).or_insert_with(start).clone()
    }

    fn other_streams(&self) -> Vec<Arc<Stream>> {
        locked(&self.created).iter().chain(locked(&self.per_thread).values()).cloned().collect()
    }

    /// Appends work to a stream of this context, after what the legacy default stream implies: it waits for all blocking streams,
    /// and they wait for it.
    pub fn submit(&self, stream: &Arc<Stream>, work: Work) -> Point {
        let after = if Arc::ptr_eq(stream, &self.legacy) {
            let others = self.other_streams();
            others.iter().filter(|other| other.is_blocking()).map(|other| other.last_point()).collect()
        } else if stream.is_blocking() {
            vec![self.legacy.last_point()]
        } else {
            Vec::new()
        };
        stream.submit(after, work)
    }

    /// Appends work to a stream as [`Context::submit`] does, or to what the stream captures, as a node with this handle. The point is
    /// none where nothing runs yet.
    ///
    /// # Errors
    ///
    /// Those of adding a node.
    pub fn append(&self, stream: &Arc<Stream>, node: usize, kind: i32, step: Step) -> Result<Option<Point>, CUresult> {
        if stream.captured(node, kind, &step)?.is_some() {
            return Ok(None);
        }
        Ok(Some(self.submit(stream, Box::new(move || step()))))
    }

    /// Waits for all work and gives its error.
    pub fn synchronize(&self) -> Result<(), CUresult> {
        self.wait();
        self.check()
    }

    /// Waits for all work.
    pub fn wait(&self) {
        self.legacy.last_point().wait();
        self.other_streams().iter().for_each(|stream| stream.last_point().wait());
    }
}
