//! Graphs, and what streams capture into them.

use crate::abi::*;
use std::sync::{Arc, Mutex};

/// Work of a node, which runs at each launch of its graph.
pub type Step = Arc<dyn Fn() -> Result<(), CUresult> + Send + Sync>;

/// `CUgraphNodeType` values.
pub mod node_kind {
    /// A launch.
    pub const KERNEL: i32 = 0;
    /// A copy.
    pub const MEMCPY: i32 = 1;
    /// A fill.
    pub const MEMSET: i32 = 2;
    /// A function of the client.
    pub const HOST: i32 = 3;
    /// Nothing but its edges.
    pub const EMPTY: i32 = 5;
}

/// A node.
#[derive(Clone)]
pub struct Node {
    /// Its handle.
    pub handle: usize,
    /// One of [`node_kind`].
    pub kind: i32,
    /// Its work.
    pub step: Step,
    /// Handles of the nodes that it comes after.
    pub after: Vec<usize>,
}

/// A graph: its nodes, of which each is behind those that it comes after.
#[derive(Default)]
pub struct Graph {
    /// The nodes.
    pub nodes: Mutex<Vec<Node>>,
}

/// An executable graph: handles and work of its nodes in their order.
pub struct Executable {
    /// The steps.
    pub steps: Mutex<Vec<(usize, Step)>>,
}

/// What a stream captures.
pub struct Capture {
    /// Number of the capture.
    pub id: u64,
    /// Handle of the graph.
    pub handle: usize,
    /// The graph.
    pub graph: Arc<Graph>,
    /// The last node, if there is one.
    pub last: Vec<usize>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Graph {
    /// Appends a node, whose handle is new.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE` if it comes after a node of another graph.
    pub fn add(&self, node: Node) -> Result<(), CUresult> {
        let mut nodes = locked(&self.nodes);
        if node.after.iter().any(|after| nodes.iter().all(|other| other.handle != *after)) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        nodes.push(node);
        Ok(())
    }

    /// A node by its handle.
    pub fn node(&self, handle: usize) -> Option<Node> {
        locked(&self.nodes).iter().find(|node| node.handle == handle).cloned()
    }

    /// An executable graph of the nodes so far.
    pub fn instantiate(&self) -> Executable {
        Executable { steps: Mutex::new(locked(&self.nodes).iter().map(|node| (node.handle, node.step.clone())).collect()) }
    }
}

impl Executable {
    /// Replaces the work of a node.
    ///
    /// # Errors
    ///
    /// `CUDA_ERROR_INVALID_VALUE` for a node of another graph.
    pub fn set(&self, node: usize, step: Step) -> Result<(), CUresult> {
        let mut steps = locked(&self.steps);
        steps.iter_mut().find(|(handle, _)| *handle == node).ok_or(CUDA_ERROR_INVALID_VALUE)?.1 = step;
        Ok(())
    }

    /// Work that runs all nodes in order.
    pub fn work(&self) -> Step {
        let steps = locked(&self.steps).clone();
        Arc::new(move || steps.iter().try_for_each(|(_, step)| step()))
    }
}
