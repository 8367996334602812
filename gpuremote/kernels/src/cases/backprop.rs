//! One training step of a network with one hidden layer by back propagation. The device handles the large input layer.

use super::{compare_changes, Case, Deviation, Size};
use crate::api::{Device, Error, Grid};
use crate::program::{self, Program};
use crate::random::Random;

const FORWARD: usize = 0;
const ADJUST: usize = 1;
const HIDDEN: usize = 16;
/// Columns of a weight array: the hidden units and an unused column 0, where a bias would be.
const WIDTH: usize = HIDDEN + 1;
const RATE: f32 = 0.3;
const MOMENTUM: f32 = 0.3;
const TARGET: f32 = 0.1;
const TOLERANCE: f64 = 1e-4;

/// The number of input units, a multiple of 16.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    inputs: usize,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} input, {HIDDEN} hidden, 1 output unit", self.inputs)
    }
}

/// Returns the problems of `size`.
pub fn problems(size: Size) -> Vec<Problem> {
    vec![Problem { inputs: size.pick(2_048, 65_536, 16 * 65_536) }]
}

/// A network before the step, and its input weights after the latest run's step.
pub struct Training {
    problem: Problem,
    /// Unit 0 is the bias.
    inputs: Vec<f32>,
    /// (inputs + 1) x WIDTH, row 0 for the bias.
    input_weights: Vec<f32>,
    /// The latest change of every input weight.
    previous: Vec<f32>,
    /// WIDTH weights to the output unit, the bias first.
    output_weights: Vec<f32>,
    adjusted: Vec<f32>,
    reference: Option<Vec<f32>>,
}

/// The logistic function.
fn squash(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

impl Training {
    /// Draws a network whose hidden units' sums stay in the steep part of the logistic function.
    pub fn generate(problem: Problem, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut inputs: Vec<f32> = (0..=problem.inputs).map(|_| random.between(0.0, 1.0)).collect();
        inputs[0] = 1.0;
        let scale = 1.0 / (problem.inputs as f32).sqrt();
        let weights = (problem.inputs + 1) * WIDTH;
        Self {
            problem,
            inputs,
            input_weights: (0..weights).map(|_| random.between(-scale, scale)).collect(),
            previous: (0..weights).map(|_| random.between(-scale, scale)).collect(),
            output_weights: (0..WIDTH).map(|_| random.between(-1.0, 1.0)).collect(),
            adjusted: vec![0.0; weights],
            reference: None,
        }
    }

    /// Returns the error of every hidden unit (unit 0 unused) from the sums of their inputs, by way of the output unit.
    fn hidden_errors(&self, sums: &[f32; HIDDEN]) -> [f32; WIDTH] {
        let hidden = sums.map(squash);
        let mut output = self.output_weights[0];
        for (unit, weight) in hidden.iter().zip(&self.output_weights[1..]) {
            output += unit * weight;
        }
        let output = squash(output);
        let output_error = output * (1.0 - output) * (TARGET - output);
        let mut errors = [0.0; WIDTH];
        for unit in 0..HIDDEN {
            errors[unit + 1] = hidden[unit] * (1.0 - hidden[unit]) * output_error * self.output_weights[unit + 1];
        }
        errors
    }

    fn compute_reference(&self) -> Vec<f32> {
        let mut sums = [0.0f64; HIDDEN];
        for (input, weights) in self.inputs.iter().zip(self.input_weights.chunks_exact(WIDTH)) {
            for (sum, weight) in sums.iter_mut().zip(&weights[1..]) {
                *sum += f64::from(*input) * f64::from(*weight);
            }
        }
        let errors = self.hidden_errors(&sums.map(|sum| sum as f32));
        let mut adjusted = self.input_weights.clone();
        for (input, unit) in self.inputs.iter().enumerate() {
            for (column, error) in errors.iter().enumerate().skip(1) {
                let at = input * WIDTH + column;
                adjusted[at] += RATE * error * unit + MOMENTUM * self.previous[at];
            }
        }
        adjusted
    }
}

impl Case for Training {
    fn problem(&self) -> String {
        self.problem.to_string()
    }

    fn program(&self) -> &'static Program {
        &program::BACKPROP
    }

    fn run(&mut self, device: &mut dyn Device) -> Result<(), Error> {
        let groups = self.problem.inputs / HIDDEN;
        let grid = Grid::plane(groups, 1, HIDDEN);
        let inputs = device.allocate_for::<f32>(self.inputs.len())?;
        let weights = device.allocate_for::<f32>(self.input_weights.len())?;
        let partial = device.allocate_for::<f32>(groups * HIDDEN)?;
        device.write_values(inputs, &self.inputs)?;
        device.write_values(weights, &self.input_weights)?;
        device.launch(FORWARD, grid, &[inputs.into(), weights.into(), partial.into()])?;
        device.finish()?;
        let mut partial_sums = vec![0.0f32; groups * HIDDEN];
        device.read_values(partial, &mut partial_sums)?;

        let mut sums = [0.0f32; HIDDEN];
        for group in partial_sums.chunks_exact(HIDDEN) {
            for (sum, part) in sums.iter_mut().zip(group) {
                *sum += part;
            }
        }
        for (sum, bias) in sums.iter_mut().zip(&self.input_weights[1..WIDTH]) {
            *sum += bias;
        }
        let errors = self.hidden_errors(&sums);

        let delta = device.allocate_for::<f32>(WIDTH)?;
        let previous = device.allocate_for::<f32>(self.previous.len())?;
        device.write_values(delta, &errors)?;
        device.write_values(previous, &self.previous)?;
        device.write_values(weights, &self.input_weights)?;
        let arguments = [delta.into(), inputs.into(), weights.into(), previous.into(), RATE.into(), MOMENTUM.into()];
        device.launch(ADJUST, grid, &arguments)?;
        // The published program also copies the unchanged input units back.
        let mut returned_inputs = vec![0.0f32; self.inputs.len()];
        device.read_values(inputs, &mut returned_inputs)?;
        device.read_values(weights, &mut self.adjusted)?;
        for buffer in [inputs, weights, partial, delta, previous] {
            device.free(buffer)?;
        }
        Ok(())
    }

    fn check(&mut self) -> Result<Deviation, Error> {
        if self.reference.is_none() {
            self.reference = Some(self.compute_reference());
        }
        compare_changes(&self.adjusted, self.reference.as_deref().unwrap_or_default(), &self.input_weights, TOLERANCE)
    }
}
