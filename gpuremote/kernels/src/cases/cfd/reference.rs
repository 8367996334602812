//! The same scheme on the CPU, on all of its cores.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Barrier;

use super::mesh::Mesh;
use super::{COURANT, FACES, FAR_FIELD, GAMMA, SMOOTHING, STAGES, VARIABLES, WING};

/// Density, momentum in x, y and z, and energy density.
type State = [f32; VARIABLES];

/// A state and what follows from it, so that the five users of an element don't derive it anew.
#[derive(Clone, Copy)]
struct Element {
    state: State,
    velocity: [f32; 3],
    speed: f32,
    pressure: f32,
    sound: f32,
}

/// Numbers of an [`Element`].
const WIDTH: usize = VARIABLES + 6;

impl Element {
    fn of(state: State) -> Self {
        let velocity = [state[1] / state[0], state[2] / state[0], state[3] / state[0]];
        let speed_squared: f32 = velocity.iter().map(|v| v * v).sum();
        let pressure = (GAMMA - 1.0) * (state[4] - 0.5 * state[0] * speed_squared);
        Self { state, velocity, speed: speed_squared.sqrt(), pressure, sound: (GAMMA * pressure / state[0]).sqrt() }
    }
}

/// Elements that all threads read and each changes for its own part; a barrier separates reads from changes.
struct Shared {
    bits: Vec<AtomicU32>,
}

impl Shared {
    fn get(&self, element: usize) -> Element {
        let bits = &self.bits[element * WIDTH..(element + 1) * WIDTH];
        let value = |at: usize| f32::from_bits(bits[at].load(Ordering::Relaxed));
        Element {
            state: std::array::from_fn(value),
            velocity: [value(5), value(6), value(7)],
            speed: value(8),
            pressure: value(9),
            sound: value(10),
        }
    }

    fn set(&self, element: usize, e: &Element) {
        let rest = [e.velocity[0], e.velocity[1], e.velocity[2], e.speed, e.pressure, e.sound];
        let bits = &self.bits[element * WIDTH..(element + 1) * WIDTH];
        for (place, value) in bits.iter().zip(e.state.into_iter().chain(rest)) {
            place.store(value.to_bits(), Ordering::Relaxed);
        }
    }
}

/// Returns the variables after `iterations` time steps from `far_field`, as arrays of the mesh's stride.
pub fn solve(mesh: &Mesh, far_field: &State, iterations: usize) -> Vec<f32> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let shared = Shared { bits: (0..WIDTH * mesh.stride).map(|_| AtomicU32::new(0)).collect() };
    let outside = Element::of(*far_field);
    for element in 0..mesh.stride {
        shared.set(element, &outside);
    }
    let barrier = Barrier::new(threads);
    let share = mesh.stride.div_ceil(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let own = (thread * share).min(mesh.stride)..((thread + 1) * share).min(mesh.stride);
            let (shared, outside, barrier) = (&shared, &outside, &barrier);
            scope.spawn(move || solve_share(mesh, outside, shared, own, barrier, iterations));
        }
    });
    let elements: Vec<State> = (0..mesh.stride).map(|element| shared.get(element).state).collect();
    (0..VARIABLES).flat_map(|v| elements.iter().map(move |state| state[v])).collect()
}

fn solve_share(mesh: &Mesh, outside: &Element, shared: &Shared, own: Range<usize>, barrier: &Barrier, iterations: usize) {
    let mut fluxes = vec![[0.0; VARIABLES]; own.len()];
    for _ in 0..iterations {
        let before: Vec<Element> = own.clone().map(|element| shared.get(element)).collect();
        for stage in 0..STAGES {
            for (flux, element) in fluxes.iter_mut().zip(own.clone()) {
                *flux = flux_into(mesh, outside, shared, element);
            }
            barrier.wait();
            for ((element, before), flux) in own.clone().zip(&before).zip(&fluxes) {
                let step = COURANT / (mesh.areas[element].sqrt() * (before.speed + before.sound));
                let factor = step / (STAGES - stage) as f32;
                let state = std::array::from_fn(|v| before.state[v] + factor * flux[v]);
                shared.set(element, &Element::of(state));
            }
            barrier.wait();
        }
    }
}

/// Returns the sum over all faces of what flows into an element.
fn flux_into(mesh: &Mesh, outside: &Element, shared: &Shared, element: usize) -> State {
    let stride = mesh.stride;
    let here = shared.get(element);
    let mut sum = [0.0; VARIABLES];
    for face in 0..FACES {
        let normal = [0, 1, 2].map(|component| mesh.normals[(3 * face + component) * stride + element]);
        let neighbour = mesh.neighbours[face * stride + element];
        if neighbour == WING {
            for component in 0..3 {
                sum[component + 1] -= here.pressure * normal[component];
            }
            continue;
        }
        let (there, smoothing) = match neighbour {
            FAR_FIELD => (*outside, 0.0),
            _ => (shared.get(neighbour as usize), SMOOTHING),
        };
        let a = through(&here, &normal);
        let b = through(&there, &normal);
        let length = normal.iter().map(|n| n * n).sum::<f32>().sqrt();
        let viscosity = 0.5 * smoothing * length * (here.speed + there.speed + here.sound + there.sound);
        for v in 0..VARIABLES {
            sum[v] -= 0.5 * (a[v] + b[v]) + viscosity * (here.state[v] - there.state[v]);
        }
    }
    sum
}

/// Returns the flux of all variables through a face with this normal.
fn through(e: &Element, normal: &[f32; 3]) -> State {
    let s = &e.state;
    let volume: f32 = e.velocity.iter().zip(normal).map(|(v, n)| v * n).sum();
    [
        s[0] * volume,
        s[1] * volume + e.pressure * normal[0],
        s[2] * volume + e.pressure * normal[1],
        s[3] * volume + e.pressure * normal[2],
        (s[4] + e.pressure) * volume,
    ]
}
