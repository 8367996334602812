//! Temperatures of a chip over time by the thermal model of HotSpot (Huang et al., IEEE Transactions on VLSI Systems, 2006).

use super::{compare_changes, Case, Deviation, Size};
use crate::api::{Device, Error, Grid};
use crate::program::{self, Program};
use crate::random::Random;

const TILE: usize = 16;
const TOLERANCE: f64 = 1e-4;

const CHIP_THICKNESS_M: f32 = 0.0005;
const CHIP_SIDE_M: f32 = 0.016;
/// Silicon's heat capacity in J/(m^3 K).
const HEAT_CAPACITY: f32 = 1.75e6;
/// Silicon's thermal conductivity in W/(m K).
const CONDUCTIVITY: f32 = 100.0;
/// The share of the chip's thickness that takes part in the lumped model.
const CAPACITY_FIT: f32 = 0.5;
/// The greatest power density in W/m^2.
const POWER_DENSITY: f32 = 3.0e6;
/// The temperature change per step, in K, which sets the time step.
const PRECISION_K: f32 = 0.001;
const AMBIENT_C: f32 = 80.0;
/// The largest share of a cell's temperature difference that one step may pass to one neighbour.
const LARGEST_SHARE: f32 = 0.2;

/// A square grid; `pyramid_height` is the number of time steps per launch.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    side: usize,
    steps: usize,
    pyramid_height: usize,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{0} x {0} cells, {1} steps, {2} a launch", self.side, self.steps, self.pyramid_height)
    }
}

/// Returns the problems of `size`.
pub fn problems(size: Size) -> Vec<Problem> {
    let sides = size.pick(vec![64], vec![512, 1024], vec![4096]);
    sides.into_iter().map(|side| Problem { side, steps: size.pick(7, 60, 60), pyramid_height: 2 }).collect()
}

/// The coefficients of one explicit Euler step.
struct Coefficients {
    step_over_capacity: f32,
    inverse_rx: f32,
    inverse_ry: f32,
    inverse_rz: f32,
}

impl Coefficients {
    fn of(side: usize) -> Self {
        let cell_m = CHIP_SIDE_M / side as f32;
        let capacity = CAPACITY_FIT * HEAT_CAPACITY * CHIP_THICKNESS_M * cell_m * cell_m;
        let lateral = 1.0 / (2.0 * CONDUCTIVITY * CHIP_THICKNESS_M);
        let vertical = CHIP_THICKNESS_M / (CONDUCTIVITY * cell_m * cell_m);
        let steepest = POWER_DENSITY / (CAPACITY_FIT * CHIP_THICKNESS_M * HEAT_CAPACITY);
        // Small cells need a smaller step than the precision does, or the explicit scheme is unstable.
        let step_s = (PRECISION_K / steepest).min(LARGEST_SHARE * capacity * lateral);
        Self { step_over_capacity: step_s / capacity, inverse_rx: 1.0 / lateral, inverse_ry: 1.0 / lateral, inverse_rz: 1.0 / vertical }
    }
}

/// Initial temperatures, powers and the temperatures of the latest run.
pub struct Hotspot {
    problem: Problem,
    initial: Vec<f32>,
    power: Vec<f32>,
    temperatures: Vec<f32>,
    reference: Option<Vec<f32>>,
}

impl Hotspot {
    /// Draws temperatures of 323 to 343 (the published inputs are in this range) and powers of up to 10 mW per cell.
    pub fn generate(problem: Problem, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let cells = problem.side * problem.side;
        Self {
            problem,
            initial: (0..cells).map(|_| random.between(323.0, 343.0)).collect(),
            power: (0..cells).map(|_| random.between(0.0, 0.01)).collect(),
            temperatures: vec![0.0; cells],
            reference: None,
        }
    }

    fn compute_reference(&self) -> Vec<f32> {
        let side = self.problem.side;
        let c = Coefficients::of(side);
        let mut before = self.initial.clone();
        let mut after = vec![0.0; side * side];
        for _ in 0..self.problem.steps {
            for row in 0..side {
                let north = row.saturating_sub(1) * side;
                let south = (row + 1).min(side - 1) * side;
                for column in 0..side {
                    let at = row * side + column;
                    let here = before[at];
                    let west = before[row * side + column.saturating_sub(1)];
                    let east = before[row * side + (column + 1).min(side - 1)];
                    let vertical = before[south + column] + before[north + column] - 2.0 * here;
                    let watts = self.power[at]
                        + vertical * c.inverse_ry
                        + (east + west - 2.0 * here) * c.inverse_rx
                        + (AMBIENT_C - here) * c.inverse_rz;
                    after[at] = here + c.step_over_capacity * watts;
                }
            }
            std::mem::swap(&mut before, &mut after);
        }
        before
    }
}

impl Case for Hotspot {
    fn problem(&self) -> String {
        self.problem.to_string()
    }

    fn program(&self) -> &'static Program {
        &program::HOTSPOT
    }

    fn run(&mut self, device: &mut dyn Device) -> Result<(), Error> {
        let Problem { side, steps, pyramid_height } = self.problem;
        let c = Coefficients::of(side);
        let cells = side * side;
        let mut source = device.allocate_for::<f32>(cells)?;
        let mut result = device.allocate_for::<f32>(cells)?;
        let power = device.allocate_for::<f32>(cells)?;
        device.write_values(source, &self.initial)?;
        device.write_values(power, &self.power)?;
        let tiles = side.div_ceil(TILE - 2 * pyramid_height);
        for done in (0..steps).step_by(pyramid_height) {
            let arguments = [
                power.into(),
                source.into(),
                result.into(),
                pyramid_height.min(steps - done).into(),
                side.into(),
                side.into(),
                pyramid_height.into(),
                c.step_over_capacity.into(),
                c.inverse_rx.into(),
                c.inverse_ry.into(),
                c.inverse_rz.into(),
                AMBIENT_C.into(),
            ];
            device.launch(0, Grid::plane(tiles, tiles, TILE), &arguments)?;
            std::mem::swap(&mut source, &mut result);
        }
        device.read_values(source, &mut self.temperatures)?;
        device.free(power)?;
        device.free(source)?;
        device.free(result)
    }

    fn check(&mut self) -> Result<Deviation, Error> {
        if self.reference.is_none() {
            self.reference = Some(self.compute_reference());
        }
        compare_changes(&self.temperatures, self.reference.as_deref().unwrap_or_default(), &self.initial, TOLERANCE)
    }
}
