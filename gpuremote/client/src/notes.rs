//! What a front end knows of its objects without asking.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

/// What a front end knows of its objects, by their numbers. What was never noted has the default.
pub struct Notes<T> {
    notes: OnceLock<Mutex<HashMap<u64, T>>>,
}

impl<T: Clone + Default> Notes<T> {
    /// No notes yet.
    pub const fn new() -> Self {
        Notes { notes: OnceLock::new() }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<u64, T>> {
        self.notes.get_or_init(Mutex::default).lock().expect("no one panics with this lock")
    }

    /// What is known of an object.
    pub fn of(&self, object: u64) -> T {
        self.all().get(&object).cloned().unwrap_or_default()
    }

    /// Notes something about an object.
    pub fn change(&self, object: u64, change: impl FnOnce(&mut T)) {
        change(self.all().entry(object).or_default());
    }

    /// The object is gone; its number may come again.
    pub fn forget(&self, object: u64) {
        self.all().remove(&object);
    }
}

impl<T: Clone + Default> Default for Notes<T> {
    fn default() -> Self {
        Self::new()
    }
}
