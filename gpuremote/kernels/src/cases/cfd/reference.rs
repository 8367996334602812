//! The same scheme on the CPU, on all of its cores.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Barrier;

use super::mesh::Mesh;
use super::{COURANT, FACES, FAR_FIELD, GAMMA, SMOOTHING, STAGES, VARIABLES, WING};

/// Density, momentum in x, y and z, and energy density.
type State = [f32; VARIABLES];

/// What follows from a state.
#[derive(Clone, Copy)]
struct Derived {
    velocity: [f32; 3],
    speed: f32,
    pressure: f32,
    sound: f32,
}

impl Derived {
    fn of(s: &State) -> Self {
        let velocity = [s[1] / s[0], s[2] / s[0], s[3] / s[0]];
        let speed_squared: f32 = velocity.iter().map(|v| v * v).sum();
        let pressure = (GAMMA - 1.0) * (s[4] - 0.5 * s[0] * speed_squared);
        Self {
            velocity,
            speed: speed_squared.sqrt(),
            pressure,
            sound: (GAMMA * pressure / s[0]).sqrt(),
        }
    }
}

/// Variables that all threads read and each changes for its own elements; a barrier separates reads from changes.
struct Shared {
    stride: usize,
    bits: Vec<AtomicU32>,
}

impl Shared {
    fn state(&self, element: usize) -> State {
        std::array::from_fn(|v| {
            f32::from_bits(self.bits[v * self.stride + element].load(Ordering::Relaxed))
        })
    }

    fn set(&self, element: usize, state: State) {
        for (v, value) in state.into_iter().enumerate() {
            self.bits[v * self.stride + element].store(value.to_bits(), Ordering::Relaxed);
        }
    }
}

/// Returns the variables after `iterations` time steps from `start`.
pub fn solve(mesh: &Mesh, far_field: &State, start: Vec<f32>, iterations: usize) -> Vec<f32> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let shared = Shared {
        stride: mesh.stride,
        bits: start
            .into_iter()
            .map(|value| AtomicU32::new(value.to_bits()))
            .collect(),
    };
    let barrier = Barrier::new(threads);
    let share = mesh.stride.div_ceil(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let own = (thread * share).min(mesh.stride)..((thread + 1) * share).min(mesh.stride);
            let (shared, barrier) = (&shared, &barrier);
            scope.spawn(move || solve_share(mesh, far_field, shared, own, barrier, iterations));
        }
    });
    shared
        .bits
        .into_iter()
        .map(|bits| f32::from_bits(bits.into_inner()))
        .collect()
}

fn solve_share(
    mesh: &Mesh,
    far_field: &State,
    shared: &Shared,
    own: Range<usize>,
    barrier: &Barrier,
    iterations: usize,
) {
    let mut fluxes = vec![[0.0; VARIABLES]; own.len()];
    for _ in 0..iterations {
        let before: Vec<State> = own.clone().map(|element| shared.state(element)).collect();
        let factors: Vec<f32> = own
            .clone()
            .zip(&before)
            .map(|(element, state)| {
                let derived = Derived::of(state);
                COURANT / (mesh.areas[element].sqrt() * (derived.speed + derived.sound))
            })
            .collect();
        for stage in 0..STAGES {
            for (flux, element) in fluxes.iter_mut().zip(own.clone()) {
                *flux = flux_into(mesh, far_field, shared, element);
            }
            barrier.wait();
            for (at, element) in own.clone().enumerate() {
                let factor = factors[at] / (STAGES - stage) as f32;
                shared.set(
                    element,
                    std::array::from_fn(|v| before[at][v] + factor * fluxes[at][v]),
                );
            }
            barrier.wait();
        }
    }
}

/// Returns the sum over all faces of what flows into an element.
fn flux_into(mesh: &Mesh, far_field: &State, shared: &Shared, element: usize) -> State {
    let stride = mesh.stride;
    let here = shared.state(element);
    let derived = Derived::of(&here);
    let mut sum = [0.0; VARIABLES];
    for face in 0..FACES {
        let normal =
            [0, 1, 2].map(|component| mesh.normals[(3 * face + component) * stride + element]);
        let neighbour = mesh.neighbours[face * stride + element];
        if neighbour == WING {
            for component in 0..3 {
                sum[component + 1] -= derived.pressure * normal[component];
            }
            continue;
        }
        let (there, smoothing) = match neighbour {
            FAR_FIELD => (*far_field, 0.0),
            _ => (shared.state(neighbour as usize), SMOOTHING),
        };
        let other = Derived::of(&there);
        let a = through(&here, &derived, &normal);
        let b = through(&there, &other, &normal);
        let length = normal.iter().map(|n| n * n).sum::<f32>().sqrt();
        let viscosity =
            0.5 * smoothing * length * (derived.speed + other.speed + derived.sound + other.sound);
        for v in 0..VARIABLES {
            sum[v] -= 0.5 * (a[v] + b[v]) + viscosity * (here[v] - there[v]);
        }
    }
    sum
}

/// Returns the flux of all variables through a face with this normal.
fn through(s: &State, derived: &Derived, normal: &[f32; 3]) -> State {
    let volume: f32 = derived
        .velocity
        .iter()
        .zip(normal)
        .map(|(v, n)| v * n)
        .sum();
    [
        s[0] * volume,
        s[1] * volume + derived.pressure * normal[0],
        s[2] * volume + derived.pressure * normal[1],
        s[3] * volume + derived.pressure * normal[2],
        (s[4] + derived.pressure) * volume,
    ]
}
