//! What programs hold: objects that begin with the dispatch table of the ICD loader.

use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use gpuremote_client::HandleKind;

use crate::contexts::{Context, Queue};
use crate::dispatch;
use crate::events::Event;
use crate::front;
use crate::kernels::Kernel;
use crate::memory::Memory;
use crate::platforms::{Device, Platform};
use crate::programs::Program;
use crate::stubs::{kinds, RELEASES, STATUSES};

/// A function of the program that an object's end calls, and its argument.
pub(crate) type Destructor = (unsafe extern "C" fn(*mut Object, *mut c_void), usize);

/// What an object is made of.
pub(crate) enum Data {
    Platform(Platform),
    Device(Device),
    Context(Context),
    Queue(Queue),
    Memory(Memory),
    Sampler,
    Program(Program),
    Kernel(Kernel),
    Event(Event),
}

/// An object. Programs have its address.
#[repr(C)]
pub(crate) struct Object {
    /// The ICD loader looks here.
    dispatch: *const dispatch::Table,
    pub kind: HandleKind,
    /// What the server knows it by.
    pub number: u64,
    /// The function that made it.
    pub made_by: u16,
    /// How many references the program has. While it has any, it holds the object once.
    references: AtomicU32,
    /// What the object was made from: it lives at least as long.
    pub parent: Option<Arc<Object>>,
    /// Answers about it that never change.
    pub kept: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    /// What its end calls, the last one first.
    pub destructors: Mutex<Vec<Destructor>>,
    pub data: Data,
}

// SAFETY: the dispatch table is never written to.
unsafe impl Send for Object {}
// SAFETY: as above; all else is shared by its own means.
unsafe impl Sync for Object {}

impl Object {
    pub fn new(kind: HandleKind, number: u64, parent: Option<Arc<Object>>, made_by: u16, data: Data) -> Arc<Self> {
        let object = Arc::new(Object {
            dispatch: dispatch::table(),
            kind,
            number,
            made_by,
            references: AtomicU32::new(0),
            parent,
            kept: Mutex::default(),
            destructors: Mutex::default(),
            data,
        });
        if kind == kinds::cl_mem || kind == kinds::cl_sampler {
            living().lock().expect("no one panics with this lock").insert(Arc::as_ptr(&object) as usize);
        }
        object
    }

    /// The address that programs know it by.
    pub fn address(self: &Arc<Self>) -> *mut Object {
        Arc::as_ptr(self).cast_mut()
    }

    /// Gives the program a reference.
    pub fn give(self: &Arc<Self>) -> *mut Object {
        if self.references.fetch_add(1, Ordering::AcqRel) == 0 {
            std::mem::forget(Arc::clone(self));
        }
        self.address()
    }

    /// How many references the program has.
    pub fn references(&self) -> u32 {
        self.references.load(Ordering::Relaxed)
    }

    /// The context that the object belongs to.
    pub fn context(self: &Arc<Self>) -> &Arc<Object> {
        let mut object = self;
        while object.kind != kinds::cl_context {
            object = object.parent.as_ref().expect("all but platforms and devices come from a context");
        }
        object
    }

    pub fn as_context(&self) -> &Context {
        match &self.data {
            Data::Context(context) => context,
            _ => unreachable!("the kind was checked"),
        }
    }

    pub fn as_queue(&self) -> &Queue {
        match &self.data {
            Data::Queue(queue) => queue,
            _ => unreachable!("the kind was checked"),
        }
    }

    pub fn as_memory(&self) -> &Memory {
        match &self.data {
            Data::Memory(memory) => memory,
            _ => unreachable!("the kind was checked"),
        }
    }

    pub fn as_program(&self) -> &Program {
        match &self.data {
            Data::Program(program) => program,
            _ => unreachable!("the kind was checked"),
        }
    }

    pub fn as_kernel(&self) -> &Kernel {
        match &self.data {
            Data::Kernel(kernel) => kernel,
            _ => unreachable!("the kind was checked"),
        }
    }

    pub fn as_event(&self) -> &Event {
        match &self.data {
            Data::Event(event) => event,
            _ => unreachable!("the kind was checked"),
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if self.kind == kinds::cl_mem || self.kind == kinds::cl_sampler {
            living().lock().expect("no one panics with this lock").remove(&(std::ptr::from_ref(self) as usize));
        }
        if let (Some(function), false) = (RELEASES[self.kind.number], self.is_root_device()) {
            front().post(function, |encoder| encoder.u64(self.number));
            front().unmint(self.kind, self.number);
        }
        let destructors = std::mem::take(self.destructors.get_mut().expect("no one panics with this lock"));
        for (function, data) in destructors.into_iter().rev() {
            // SAFETY: the program gave a function of this type.
            unsafe { function(std::ptr::from_mut(self), data as *mut c_void) };
        }
    }
}

/// The addresses of all memory objects and samplers.
fn living() -> &'static Mutex<HashSet<usize>> {
    static LIVING: OnceLock<Mutex<HashSet<usize>>> = OnceLock::new();
    LIVING.get_or_init(Mutex::default)
}

/// Whether a memory object or a sampler lives at this address.
pub(crate) fn lives(address: usize) -> bool {
    living().lock().expect("no one panics with this lock").contains(&address)
}

/// The object at this address, if it is one of this kind.
///
/// # Safety
/// The address is null, or that of an object or of memory as long as one.
pub(crate) unsafe fn object(kind: HandleKind, address: *mut Object) -> Option<Arc<Object>> {
    if address.is_null() || !address.is_aligned() || (*address).dispatch != dispatch::table() || (*address).kind != kind {
        return None;
    }
    Arc::increment_strong_count(address);
    Some(Arc::from_raw(address))
}

/// The objects at these addresses. None when one is of another kind, or there are addresses but no number of them, or the other way round.
///
/// # Safety
/// The pointer is null, or `count` addresses are there, each as [`object`] needs it.
pub(crate) unsafe fn objects(kind: HandleKind, addresses: *const *mut Object, count: usize) -> Option<Vec<Arc<Object>>> {
    if addresses.is_null() != (count == 0) {
        return None;
    }
    (0..count).map(|i| object(kind, *addresses.add(i))).collect()
}

/// A new object, for the program.
pub(crate) fn made(kind: HandleKind, number: u64, parent: Option<&Arc<Object>>, made_by: u16) -> *mut Object {
    let data = match kind {
        kinds::cl_sampler => Data::Sampler,
        kinds::cl_program => Data::Program(Program::default()),
        _ => Data::Event(Event::default()),
    };
    Object::new(kind, number, parent.cloned(), made_by, data).give()
}

/// Tells the program why it gets no object.
///
/// # Safety
/// The pointer is null or can be written to.
pub(crate) unsafe fn failed(status: i32, errcode: *mut i32) -> *mut Object {
    if !errcode.is_null() {
        *errcode = status;
    }
    std::ptr::null_mut()
}

/// Hands a new object to the program, or tells it why there is none.
///
/// # Safety
/// The pointer is null or can be written to.
pub(crate) unsafe fn handed(result: Result<Arc<Object>, i32>, errcode: *mut i32) -> *mut Object {
    match result {
        Err(status) => failed(status, errcode),
        Ok(object) => {
            failed(STATUSES.ok, errcode);
            object.give()
        }
    }
}

/// Counts one more reference. False when this is no such object.
///
/// # Safety
/// As [`object`].
pub(crate) unsafe fn retain(kind: HandleKind, address: *mut Object) -> bool {
    let Some(object) = object(kind, address) else { return false };
    object.give();
    true
}

/// Counts one reference less. False when this is no such object, or the program has no reference.
///
/// # Safety
/// As [`object`].
pub(crate) unsafe fn release(kind: HandleKind, address: *mut Object) -> bool {
    let Some(object) = object(kind, address) else { return false };
    let counted = object.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1));
    if counted == Ok(1) {
        Arc::decrement_strong_count(address);
    }
    // A device that is no part of another has no references to count.
    counted.is_ok() || object.is_root_device()
}
