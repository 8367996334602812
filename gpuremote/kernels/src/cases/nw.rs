//! Global alignment of two random sequences by Needleman and Wunsch (1970), one launch per anti-diagonal of tiles.

use super::{compare_exactly, Case, Deviation, Size};
use crate::api::{Device, Error, Grid};
use crate::program::{self, Program};
use crate::random::Random;

const TILE: usize = 16;
const LETTERS: u32 = 24;
const UPPER: usize = 0;
const LOWER: usize = 1;

/// Two sequences of the same length, a multiple of 16.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    length: usize,
    penalty: i32,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{0} x {0} letters, penalty {1}", self.length, self.penalty)
    }
}

/// Returns the problems of `size`.
pub fn problems(size: Size) -> Vec<Problem> {
    vec![Problem { length: size.pick(128, 2048, 8192), penalty: 10 }]
}

/// Similarities of the sequences' letters and the scores of the latest run.
pub struct Alignment {
    problem: Problem,
    /// (length + 1) x (length + 1); row 0 and column 0 are unused.
    similarity: Vec<i32>,
    /// Row 0 and column 0 hold the penalties of leading gaps, the rest is computed.
    scores: Vec<i32>,
    reference: Option<Vec<i32>>,
}

impl Alignment {
    /// Draws two sequences and a symmetric table of similarities in -4..=11, the range of common substitution matrices.
    pub fn generate(problem: Problem, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let letters = LETTERS as usize;
        let mut table = vec![0; letters * letters];
        for a in 0..letters {
            for b in 0..=a {
                let similarity = random.below(8) as i32 - 4 + if a == b { 8 } else { 0 };
                table[a * letters + b] = similarity;
                table[b * letters + a] = similarity;
            }
        }
        let mut sequence = || -> Vec<usize> { (0..problem.length).map(|_| random.below(LETTERS) as usize).collect() };
        let (down, across) = (sequence(), sequence());
        let width = problem.length + 1;
        let mut similarity = vec![0; width * width];
        for (row, a) in down.iter().enumerate() {
            for (column, b) in across.iter().enumerate() {
                similarity[(row + 1) * width + column + 1] = table[a * letters + b];
            }
        }
        Self { problem, similarity, scores: vec![0; width * width], reference: None }
    }

    fn initial_scores(&self) -> Vec<i32> {
        let width = self.problem.length + 1;
        let mut scores = vec![0; width * width];
        for i in 1..width {
            scores[i] = -(i as i32) * self.problem.penalty;
            scores[i * width] = scores[i];
        }
        scores
    }

    fn compute_reference(&self) -> Vec<i32> {
        let width = self.problem.length + 1;
        let mut scores = self.initial_scores();
        for at in width..width * width {
            if at % width != 0 {
                let matched = scores[at - width - 1] + self.similarity[at];
                let gap = scores[at - 1].max(scores[at - width]) - self.problem.penalty;
                scores[at] = matched.max(gap);
            }
        }
        scores
    }
}

impl Case for Alignment {
    fn problem(&self) -> String {
        self.problem.to_string()
    }

    fn program(&self) -> &'static Program {
        &program::NW
    }

    fn run(&mut self, device: &mut dyn Device) -> Result<(), Error> {
        let width = self.problem.length + 1;
        let tiles = self.problem.length / TILE;
        let penalty = self.problem.penalty;
        self.scores = self.initial_scores();
        let similarity = device.allocate_for::<i32>(width * width)?;
        let scores = device.allocate_for::<i32>(width * width)?;
        device.write_values(similarity, &self.similarity)?;
        device.write_values(scores, &self.scores)?;
        for diagonal in 1..=tiles {
            let arguments = [similarity.into(), scores.into(), width.into(), penalty.into(), diagonal.into()];
            device.launch(UPPER, Grid::line(diagonal, TILE), &arguments)?;
        }
        for diagonal in (1..tiles).rev() {
            let arguments = [similarity.into(), scores.into(), width.into(), penalty.into(), diagonal.into(), tiles.into()];
            device.launch(LOWER, Grid::line(diagonal, TILE), &arguments)?;
        }
        device.read_values(scores, &mut self.scores)?;
        device.free(similarity)?;
        device.free(scores)
    }

    fn check(&mut self) -> Result<Deviation, Error> {
        if self.reference.is_none() {
            self.reference = Some(self.compute_reference());
        }
        compare_exactly(&self.scores, self.reference.as_deref().unwrap_or_default())
    }
}
