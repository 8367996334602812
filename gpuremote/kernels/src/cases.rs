//! The kernels with their problem sizes. A case owns its input, runs through any [`Device`] and checks what it read back.

use crate::api::{Device, Error};
use crate::program::Program;

pub mod backprop;
pub mod bfs;
pub mod cfd;
pub mod hotspot;
pub mod lud;
pub mod nn;
pub mod nw;
pub mod pathfinder;

/// How large the problems are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Small enough for a CPU and for continuous integration.
    Test,
    /// The sizes that papers on GPU virtualization report.
    Published,
    /// 4 to 16 times the work of `Published`.
    Large,
}

impl Size {
    /// All sizes, smallest first.
    pub const ALL: [Size; 3] = [Size::Test, Size::Published, Size::Large];

    /// Returns the name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Published => "published",
            Self::Large => "large",
        }
    }

    /// Returns the value that belongs to this size.
    fn pick<T>(self, test: T, published: T, large: T) -> T {
        match self {
            Self::Test => test,
            Self::Published => published,
            Self::Large => large,
        }
    }
}

/// How far a result may be from its reference, and how far it is.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Deviation {
    /// Norm of the difference divided by the norm of the reference; 0 for a result of integers.
    pub relative: f64,
    /// The largest relative difference that passes.
    pub tolerance: f64,
}

/// A program with its input.
pub trait Case {
    /// Returns the problem size in words, with units.
    fn problem(&self) -> String;
    /// Returns the device program.
    fn program(&self) -> &'static Program;
    /// Runs the loaded program from the first allocation to the last free and keeps the result.
    fn run(&mut self, device: &mut dyn Device) -> Result<(), Error>;
    /// Compares the latest result with the reference on the CPU; [`Error::WrongResult`] says what differs.
    fn check(&mut self) -> Result<Deviation, Error>;
}

/// A kernel by name.
pub struct Kernel {
    /// The name on the command line.
    pub name: &'static str,
    /// What it computes, in one line.
    pub summary: &'static str,
    /// Problems of each size, in words.
    problems: fn(Size) -> Vec<String>,
    /// Generates the inputs of each size.
    cases: fn(Size, u64) -> Vec<Box<dyn Case>>,
}

impl Kernel {
    /// Returns the problems of `size` in words.
    pub fn problems(&self, size: Size) -> Vec<String> {
        (self.problems)(size)
    }

    /// Generates inputs from `seed`.
    pub fn cases(&self, size: Size, seed: u64) -> Vec<Box<dyn Case>> {
        (self.cases)(size, seed)
    }
}

macro_rules! kernel {
    ($name:literal, $summary:literal, $module:ident :: $case:ident) => {
        Kernel {
            name: $name,
            summary: $summary,
            problems: |size| $module::problems(size).iter().map(ToString::to_string).collect(),
            cases: |size, seed| {
                $module::problems(size)
                    .into_iter()
                    .map(|problem| Box::new($module::$case::generate(problem, seed)) as Box<dyn Case>)
                    .collect()
            },
        }
    };
}

/// All kernels, by name.
pub static KERNELS: &[Kernel] = &[
    kernel!("backprop", "one training step of a layered network", backprop::Training),
    kernel!("bfs", "breadth-first search in a random graph", bfs::Search),
    kernel!("cfd", "compressible flow on an unstructured mesh", cfd::Flow),
    kernel!("hotspot", "temperatures of a chip over time", hotspot::Hotspot),
    kernel!("lud", "LU decomposition of a dense matrix", lud::Decomposition),
    kernel!("nn", "distances from a point, nearest selected on the host", nn::NearestNeighbours),
    kernel!("nw", "global alignment of two sequences", nw::Alignment),
    kernel!("pathfinder", "the cheapest way down a grid", pathfinder::Pathfinder),
];

/// Returns the Euclidean norm.
fn norm(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Compares floating-point results by the norm of their difference, relative to the norm of the reference.
fn compare(result: &[f32], reference: &[f32], tolerance: f64) -> Result<Deviation, Error> {
    compare_to_scale(result, reference, norm(reference.iter().map(|want| f64::from(*want))), tolerance)
}

/// Compares how results differ from `initial`, of which they may be only a small change.
fn compare_changes(result: &[f32], reference: &[f32], initial: &[f32], tolerance: f64) -> Result<Deviation, Error> {
    let changes = reference.iter().zip(initial);
    let scale = norm(changes.map(|(want, before)| f64::from(*want) - f64::from(*before)));
    compare_to_scale(result, reference, scale, tolerance)
}

fn compare_to_scale(result: &[f32], reference: &[f32], scale: f64, tolerance: f64) -> Result<Deviation, Error> {
    assert_eq!(result.len(), reference.len());
    let pairs = result.iter().zip(reference);
    let relative = norm(pairs.map(|(got, want)| f64::from(*got) - f64::from(*want))) / scale;
    // Written so that NaN fails.
    if relative <= tolerance {
        return Ok(Deviation { relative, tolerance });
    }
    let worst = (0..result.len())
        .find(|&i| !result[i].is_finite())
        .or_else(|| {
            (0..result.len()).max_by(|&a, &b| {
                let distance = |i: usize| (result[i] - reference[i]).abs();
                distance(a).total_cmp(&distance(b))
            })
        })
        .unwrap_or(0);
    Err(Error::WrongResult(format!(
        "relative difference {relative:.3e} exceeds {tolerance:.0e}; for example value {worst} of {} is {}, want {}",
        result.len(),
        result[worst],
        reference[worst]
    )))
}

/// Compares integer results exactly.
fn compare_exactly(result: &[i32], reference: &[i32]) -> Result<Deviation, Error> {
    assert_eq!(result.len(), reference.len());
    let wrong = result.iter().zip(reference).filter(|(got, want)| got != want).count();
    if let Some(first) = (0..result.len()).find(|&i| result[i] != reference[i]) {
        return Err(Error::WrongResult(format!(
            "{wrong} of {} values differ; value {first} is {}, want {}",
            result.len(),
            result[first],
            reference[first]
        )));
    }
    Ok(Deviation { relative: 0.0, tolerance: 0.0 })
}
