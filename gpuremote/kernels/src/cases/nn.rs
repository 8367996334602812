//! Nearest neighbours of a point among records with a latitude and a longitude.

use super::{compare, Case, Deviation, Size};
use crate::api::{Device, Error, Grid};
use crate::program::{self, Program};
use crate::random::Random;

const GROUP: usize = 256;
const NEAREST: usize = 10;
const TOLERANCE: f64 = 1e-6;

/// The number of records; the published set has 42,764.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    records: usize,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} records", self.records)
    }
}

/// Returns the problems of `size`.
pub fn problems(size: Size) -> Vec<Problem> {
    vec![Problem { records: size.pick(3_000, 42_764, 16 * 42_764) }]
}

/// Records, the point and the result of the latest run.
pub struct NearestNeighbours {
    problem: Problem,
    /// Latitude and longitude of every record, in degrees.
    locations: Vec<f32>,
    latitude: f32,
    longitude: f32,
    distances: Vec<f32>,
    nearest: Vec<usize>,
}

impl NearestNeighbours {
    /// Scatters records over the tropics, as storm tracks are.
    pub fn generate(problem: Problem, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let locations = (0..problem.records).flat_map(|_| [random.between(7.0, 64.0), random.between(0.0, 359.0)]).collect();
        Self { problem, locations, latitude: 30.0, longitude: 90.0, distances: vec![0.0; problem.records], nearest: Vec::new() }
    }

    /// Selects the nearest records one after the other, as the published host code does.
    fn select(distances: &[f32]) -> Vec<usize> {
        let mut distances = distances.to_vec();
        (0..NEAREST.min(distances.len()))
            .map(|_| {
                let nearest = (0..distances.len()).min_by(|&a, &b| distances[a].total_cmp(&distances[b])).expect("there are records");
                distances[nearest] = f32::INFINITY;
                nearest
            })
            .collect()
    }
}

impl Case for NearestNeighbours {
    fn problem(&self) -> String {
        self.problem.to_string()
    }

    fn program(&self) -> &'static Program {
        &program::NN
    }

    fn run(&mut self, device: &mut dyn Device) -> Result<(), Error> {
        let records = self.problem.records;
        let locations = device.allocate_for::<f32>(2 * records)?;
        let distances = device.allocate_for::<f32>(records)?;
        device.write_values(locations, &self.locations)?;
        let arguments = [locations.into(), distances.into(), records.into(), self.latitude.into(), self.longitude.into()];
        device.launch(0, Grid::line(records.div_ceil(GROUP), GROUP), &arguments)?;
        device.finish()?;
        device.read_values(distances, &mut self.distances)?;
        self.nearest = Self::select(&self.distances);
        device.free(locations)?;
        device.free(distances)
    }

    fn check(&mut self) -> Result<Deviation, Error> {
        let reference: Vec<f32> = self.locations.chunks_exact(2).map(|at| (self.latitude - at[0]).hypot(self.longitude - at[1])).collect();
        let deviation = compare(&self.distances, &reference, TOLERANCE)?;
        // Two records at nearly the same distance may change places, so distances are compared, not indices.
        for (rank, (&got, want)) in self.nearest.iter().zip(Self::select(&reference)).enumerate() {
            let (got, want) = (reference[got], reference[want]);
            if f64::from((got - want).abs()) > TOLERANCE * f64::from(want) {
                return Err(Error::WrongResult(format!("neighbour {} is at distance {got}, want {want}", rank + 1)));
            }
        }
        Ok(deviation)
    }
}
