//! The cheapest way from the first to the last row of a grid, stepping straight or diagonally, by dynamic programming.

use super::{compare_exactly, Case, Deviation, Size};
use crate::api::{Device, Error, Grid};
use crate::program::{self, Program};
use crate::random::Random;

const GROUP: usize = 256;

/// A grid; `pyramid_height` is the number of rows per launch.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    columns: usize,
    rows: usize,
    pyramid_height: usize,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x {} cells, {} rows a launch", self.columns, self.rows, self.pyramid_height)
    }
}

/// Returns the problems of `size`.
pub fn problems(size: Size) -> Vec<Problem> {
    let (columns, rows) = size.pick((3_000, 50), (100_000, 100), (400_000, 400));
    vec![Problem { columns, rows, pyramid_height: 20 }]
}

/// Costs of all cells and the totals of the latest run.
pub struct Pathfinder {
    problem: Problem,
    costs: Vec<i32>,
    totals: Vec<i32>,
    reference: Option<Vec<i32>>,
}

impl Pathfinder {
    /// Draws costs in 0..=9.
    pub fn generate(problem: Problem, seed: u64) -> Self {
        let mut random = Random::new(seed);
        Self {
            problem,
            costs: (0..problem.columns * problem.rows).map(|_| random.below(10) as i32).collect(),
            totals: vec![0; problem.columns],
            reference: None,
        }
    }

    fn compute_reference(&self) -> Vec<i32> {
        let columns = self.problem.columns;
        let (first, rest) = self.costs.split_at(columns);
        let mut before = first.to_vec();
        for row in rest.chunks_exact(columns) {
            let after = row.iter().enumerate().map(|(column, cost)| {
                let reachable = &before[column.saturating_sub(1)..columns.min(column + 2)];
                cost + reachable.iter().min().expect("a cell has a cell above")
            });
            before = after.collect();
        }
        before
    }
}

impl Case for Pathfinder {
    fn problem(&self) -> String {
        self.problem.to_string()
    }

    fn program(&self) -> &'static Program {
        &program::PATHFINDER
    }

    fn run(&mut self, device: &mut dyn Device) -> Result<(), Error> {
        let Problem { columns, rows, pyramid_height } = self.problem;
        let (first, rest) = self.costs.split_at(columns);
        let mut source = device.allocate_for::<i32>(columns)?;
        let mut result = device.allocate_for::<i32>(columns)?;
        let wall = device.allocate_for::<i32>(rest.len())?;
        device.write_values(source, first)?;
        device.write_values(wall, rest)?;
        let groups = columns.div_ceil(GROUP - 2 * pyramid_height);
        for first_row in (0..rows - 1).step_by(pyramid_height) {
            let arguments = [
                wall.into(),
                source.into(),
                result.into(),
                pyramid_height.min(rows - 1 - first_row).into(),
                columns.into(),
                first_row.into(),
                pyramid_height.into(),
            ];
            device.launch(0, Grid::line(groups, GROUP), &arguments)?;
            std::mem::swap(&mut source, &mut result);
        }
        device.read_values(source, &mut self.totals)?;
        device.free(wall)?;
        device.free(source)?;
        device.free(result)
    }

    fn check(&mut self) -> Result<Deviation, Error> {
        if self.reference.is_none() {
            self.reference = Some(self.compute_reference());
        }
        compare_exactly(&self.totals, self.reference.as_deref().unwrap_or_default())
    }
}
