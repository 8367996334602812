//! LU decomposition of a dense matrix without pivoting: three launches per block of 16 columns.

use super::{Case, Deviation, Size};
use crate::api::{Device, Error, Grid};
use crate::program::{self, Program};
use crate::random::Random;

const BLOCK: usize = 16;
const DIAGONAL: usize = 0;
const PERIMETER: usize = 1;
const INTERNAL: usize = 2;
const TOLERANCE: f64 = 1e-5;
/// Vectors of the check. A wrong factor passes one only if it maps the vector to almost the right image.
const PROBES: usize = 4;

/// The order of the matrix, a multiple of 16.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    order: usize,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{0} x {0} matrix", self.order)
    }
}

/// Returns the problems of `size`.
pub fn problems(size: Size) -> Vec<Problem> {
    vec![Problem { order: size.pick(512, 2048, 4096) }]
}

/// A matrix and the factors of the latest run, both in one array.
pub struct Decomposition {
    problem: Problem,
    matrix: Vec<f32>,
    factors: Vec<f32>,
    probe_seed: u64,
}

impl Decomposition {
    /// Draws a matrix that needs no pivoting: its diagonal is several times the norm of the rest, about sqrt(4/3 order).
    pub fn generate(problem: Problem, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let order = problem.order;
        let mut matrix: Vec<f32> = (0..order * order).map(|_| random.between(-1.0, 1.0)).collect();
        let diagonal = 4.0 * (order as f32).sqrt();
        for i in 0..order {
            matrix[i * order + i] += diagonal;
        }
        Self { problem, factors: vec![0.0; matrix.len()], matrix, probe_seed: random.bits() }
    }

    /// Returns `rows` of `matrix` times `vector`, where `columns` are the columns of a row that count.
    fn times(&self, matrix: &[f32], vector: &[f64], columns: impl Fn(usize) -> std::ops::Range<usize>) -> Vec<f64> {
        let rows = matrix.chunks_exact(self.problem.order);
        rows.enumerate()
            .map(|(row, values)| {
                let range = columns(row);
                let pairs = values[range.clone()].iter().zip(&vector[range]);
                pairs.map(|(a, b)| f64::from(*a) * b).sum()
            })
            .collect()
    }

    /// Returns | L U x - A x | / | (A - D) x | for a random vector x, where D is A's diagonal: D alone would hide errors elsewhere.
    fn residual(&self, random: &mut Random) -> f64 {
        let order = self.problem.order;
        let x: Vec<f64> = (0..order).map(|_| f64::from(random.between(-1.0, 1.0))).collect();
        let want = self.times(&self.matrix, &x, |_| 0..order);
        let ux = self.times(&self.factors, &x, |row| row..order);
        let mut got = self.times(&self.factors, &ux, |row| 0..row);
        let (mut difference, mut norm) = (0.0, 0.0);
        for row in 0..order {
            got[row] += ux[row];
            difference += (got[row] - want[row]).powi(2);
            let diagonal = f64::from(self.matrix[row * order + row]) * x[row];
            norm += (want[row] - diagonal).powi(2);
        }
        (difference / norm).sqrt()
    }
}

impl Case for Decomposition {
    fn problem(&self) -> String {
        self.problem.to_string()
    }

    fn program(&self) -> &'static Program {
        &program::LUD
    }

    fn run(&mut self, device: &mut dyn Device) -> Result<(), Error> {
        let order = self.problem.order;
        let matrix = device.allocate_for::<f32>(order * order)?;
        device.write_values(matrix, &self.matrix)?;
        for offset in (0..order).step_by(BLOCK) {
            let arguments = [matrix.into(), order.into(), offset.into()];
            device.launch(DIAGONAL, Grid::line(1, BLOCK), &arguments)?;
            let blocks = (order - offset) / BLOCK - 1;
            if blocks > 0 {
                device.launch(PERIMETER, Grid::line(blocks, 2 * BLOCK), &arguments)?;
                device.launch(INTERNAL, Grid::plane(blocks, blocks, BLOCK), &arguments)?;
            }
        }
        device.finish()?;
        device.read_values(matrix, &mut self.factors)?;
        device.free(matrix)
    }

    /// Checks that the factors' product is the matrix, by products with random vectors (Freivalds, 1977). The factors are unique,
    /// and the check costs N^2 rather than N^3 operations.
    fn check(&mut self) -> Result<Deviation, Error> {
        let mut random = Random::new(self.probe_seed);
        let residuals: Vec<f64> = (0..PROBES).map(|_| self.residual(&mut random)).collect();
        let relative = residuals.iter().copied().max_by(f64::total_cmp).unwrap_or(f64::NAN);
        // Written so that NaN, which counts as the greatest number here, fails.
        if relative <= TOLERANCE {
            return Ok(Deviation { relative, tolerance: TOLERANCE });
        }
        Err(Error::WrongResult(format!(
            "the factors' product differs from the matrix: relative residual {relative:.3e}, at most {TOLERANCE:.0e} pass"
        )))
    }
}
