//! Streams and events: a worker thread per stream runs its operations in order.
//!
//! An operation may wait for operations of other streams. It only waits for operations that were submitted before, so streams
//! can't wait for each other in a circle.

use crate::abi::*;
use crate::graph::{Capture, Node, Step};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// Work of one operation.
pub type Work = Box<dyn FnOnce() -> Result<(), CUresult> + Send>;

/// A point in the order of a stream, after the operation `number`.
#[derive(Clone)]
pub struct Point {
    stream: Arc<Progress>,
    number: u64,
}

impl Point {
    /// Reports whether the point is reached.
    pub fn is_reached(&self) -> bool {
        *self.stream.done() >= self.number
    }

    /// Blocks until the point is reached.
    pub fn wait(&self) {
        let mut done = self.stream.done();
        while *done < self.number {
            done = self.stream.changed.wait(done).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

#[derive(Default)]
struct Progress {
    done: Mutex<u64>,
    changed: Condvar,
}

impl Progress {
    fn done(&self) -> MutexGuard<'_, u64> {
        self.done.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

struct Operation {
    after: Vec<Point>,
    work: Work,
}

struct Submitted {
    count: u64,
    waits: Vec<Point>,
    sender: Sender<Operation>,
}

/// One stream.
pub struct Stream {
    /// Handle of the context of the stream.
    pub context: CUcontext,
    /// Flags of its creation, `CU_STREAM_NON_BLOCKING` is 1.
    pub flags: u32,
    /// Priority of its creation.
    pub priority: i32,
    progress: Arc<Progress>,
    submitted: Mutex<Submitted>,
    capture: Mutex<Option<Capture>>,
}

thread_local! {
    static ON_WORKER: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Reports whether the calling thread runs a host function of a stream, which may not call the driver.
pub fn on_worker() -> bool {
    ON_WORKER.with(|flag| flag.get())
}

impl Stream {
    /// Starts a stream. An error of its work is stored in `error`, and work after an error is skipped.
    pub fn start(context: CUcontext, flags: u32, priority: i32, error: Arc<AtomicU32>, delay: Duration) -> Arc<Stream> {
        let (sender, receiver) = channel::<Operation>();
        let progress = Arc::new(Progress::default());
        let ours = progress.clone();
        thread::spawn(move || {
            ON_WORKER.with(|flag| flag.set(true));
            for operation in receiver {
                operation.after.iter().for_each(Point::wait);
                if !delay.is_zero() {
                    thread::sleep(delay);
                }
                if error.load(Ordering::SeqCst) == CUDA_SUCCESS {
                    if let Err(code) = (operation.work)() {
                        let _ = error.compare_exchange(CUDA_SUCCESS, code, Ordering::SeqCst, Ordering::SeqCst);
                    }
                }
                *ours.done() += 1;
                ours.changed.notify_all();
            }
        });
        let submitted = Mutex::new(Submitted { count: 0, waits: Vec::new(), sender });
        Arc::new(Stream { context, flags, priority, progress, submitted, capture: Mutex::new(None) })
    }

    fn submitted(&self) -> MutexGuard<'_, Submitted> {
        self.submitted.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Appends an operation that also waits for `after`, and returns the point behind it.
    pub fn submit(&self, mut after: Vec<Point>, work: Work) -> Point {
        let mut submitted = self.submitted();
        after.append(&mut submitted.waits);
        submitted.count += 1;
        // The worker ends only when the stream, which owns the sender, is gone.
        let _ = submitted.sender.send(Operation { after, work });
        Point { stream: self.progress.clone(), number: submitted.count }
    }

    /// What the stream captures, if it does.
    pub fn capture(&self) -> MutexGuard<'_, Option<Capture>> {
        self.capture.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Puts work behind what the stream has captured. Nothing: the stream doesn't capture.
    ///
    /// # Errors
    ///
    /// Those of adding a node.
    pub fn captured(&self, node: usize, kind: i32, step: &Step) -> Result<Option<()>, CUresult> {
        let mut capture = self.capture();
        let Some(capture) = capture.as_mut() else { return Ok(None) };
        capture.graph.add(Node { handle: node, kind, step: step.clone(), after: capture.last.clone() })?;
        capture.last = vec![node];
        Ok(Some(()))
    }

    /// Lets all later operations wait for `point`.
    pub fn wait_for(&self, point: Point) {
        self.submitted().waits.push(point);
    }

    /// The point behind all operations so far.
    pub fn last_point(&self) -> Point {
        Point { stream: self.progress.clone(), number: self.submitted().count }
    }

    /// Reports whether the legacy default stream and this one wait for each other.
    pub fn is_blocking(&self) -> bool {
        self.flags & 1 == 0
    }
}

/// One record of an event.
#[derive(Clone)]
struct Record {
    point: Point,
    time: Arc<Mutex<Option<Instant>>>,
}

/// One event.
pub struct Event {
    /// Handle of the context of the event.
    pub context: CUcontext,
    /// Flags of its creation, `CU_EVENT_DISABLE_TIMING` is 2.
    pub flags: u32,
    record: Mutex<Option<Record>>,
}

impl Event {
    /// An event without a record.
    pub fn new(context: CUcontext, flags: u32) -> Event {
        Event { context, flags, record: Mutex::new(None) }
    }

    fn record_now(&self) -> Option<Record> {
        self.record.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Records the event behind the operations of a stream so far. `submit` appends the work to the stream.
    pub fn record(&self, submit: impl FnOnce(Work) -> Point) {
        let time = Arc::new(Mutex::new(None));
        let ours = time.clone();
        let point = submit(Box::new(move || {
            *ours.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Instant::now());
            Ok(())
        }));
        *self.record.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Record { point, time });
    }

    /// The point of the last record.
    pub fn point(&self) -> Option<Point> {
        self.record_now().map(|record| record.point)
    }

    /// Milliseconds from `start` to this event.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_HANDLE` without a record or without timing, `CUDA_ERROR_NOT_READY` before both are reached.
    pub fn elapsed_ms(&self, start: &Event) -> Result<f32, CUresult> {
        const DISABLE_TIMING: u32 = 2;
        if (self.flags | start.flags) & DISABLE_TIMING != 0 {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let (from, to) = (start.record_now(), self.record_now());
        let (Some(from), Some(to)) = (from, to) else { return Err(CUDA_ERROR_INVALID_HANDLE) };
        if !from.point.is_reached() || !to.point.is_reached() {
            return Err(CUDA_ERROR_NOT_READY);
        }
        let read = |record: &Record| *record.time.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (Some(from), Some(to)) = (read(&from), read(&to)) else { return Err(CUDA_ERROR_UNKNOWN) };
        let seconds = if to >= from { (to - from).as_secs_f64() } else { -(from - to).as_secs_f64() };
        Ok((seconds * 1e3) as f32)
    }
}
