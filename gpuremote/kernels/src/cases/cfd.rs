//! Compressible flow around a body by the Euler equations on an unstructured mesh (Corrigan et al., AIAA 2009-4001).

use super::{compare_changes, Case, Deviation, Size};
use crate::api::{Device, Error, Grid};
use crate::program::{self, Program};

mod mesh;
mod reference;

use mesh::Mesh;

const GROUP: usize = 192;
const INITIALIZE: usize = 0;
const STEP_FACTOR: usize = 1;
const FLUX: usize = 2;
const TIME_STEP: usize = 3;
const STAGES: usize = 3;
const VARIABLES: usize = 5;
const FACES: usize = 4;
const WING: i32 = -1;
const FAR_FIELD: i32 = -2;
const GAMMA: f32 = 1.4;
const SMOOTHING: f32 = 0.2;
const COURANT: f32 = 0.5;
const MACH: f32 = 1.2;
const TOLERANCE: f64 = 1e-3;

/// A mesh and the number of time steps.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    elements: usize,
    iterations: usize,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} elements, {} iterations", self.elements, self.iterations)
    }
}

/// Returns the problems of `size`.
pub fn problems(size: Size) -> Vec<Problem> {
    let (elements, iterations) = size.pick((2_000, 20), (97_046, 2_000), (4 * 97_046, 2_000));
    vec![Problem { elements, iterations }]
}

/// A mesh and the variables of the latest run.
pub struct Flow {
    problem: Problem,
    mesh: Mesh,
    far_field: [f32; VARIABLES],
    variables: Vec<f32>,
    reference: Option<Vec<f32>>,
}

impl Flow {
    /// Generates a mesh in undisturbed flow along x.
    pub fn generate(problem: Problem, seed: u64) -> Self {
        let mesh = Mesh::generate(problem.elements, GROUP, seed);
        // Density 1.4 and pressure 1 make the speed of sound 1.
        let pressure = 1.0;
        let speed = MACH * (GAMMA * pressure / GAMMA).sqrt();
        let energy = pressure / (GAMMA - 1.0) + 0.5 * GAMMA * speed * speed;
        Self {
            problem,
            variables: vec![0.0; VARIABLES * mesh.stride],
            mesh,
            far_field: [GAMMA, GAMMA * speed, 0.0, 0.0, energy],
            reference: None,
        }
    }

    fn undisturbed(&self) -> Vec<f32> {
        let stride = self.mesh.stride;
        self.far_field.iter().flat_map(|value| std::iter::repeat_n(*value, stride)).collect()
    }
}

impl Case for Flow {
    fn problem(&self) -> String {
        self.problem.to_string()
    }

    fn program(&self) -> &'static Program {
        &program::CFD
    }

    fn run(&mut self, device: &mut dyn Device) -> Result<(), Error> {
        let stride = self.mesh.stride;
        let grid = Grid::line(stride / GROUP, GROUP);
        let far_field = device.allocate_for::<f32>(VARIABLES)?;
        device.write_values(far_field, &self.far_field)?;
        let areas = device.allocate_for::<f32>(stride)?;
        device.write_values(areas, &self.mesh.areas)?;
        let neighbours = device.allocate_for::<i32>(FACES * stride)?;
        device.write_values(neighbours, &self.mesh.neighbours)?;
        let normals = device.allocate_for::<f32>(3 * FACES * stride)?;
        device.write_values(normals, &self.mesh.normals)?;
        let variables = device.allocate_for::<f32>(VARIABLES * stride)?;
        let before = device.allocate_for::<f32>(VARIABLES * stride)?;
        let fluxes = device.allocate_for::<f32>(VARIABLES * stride)?;
        let factors = device.allocate_for::<f32>(stride)?;
        for buffer in [variables, before, fluxes] {
            device.launch(INITIALIZE, grid, &[buffer.into(), far_field.into(), stride.into()])?;
        }
        device.finish()?;

        let step_factor = [variables.into(), areas.into(), factors.into(), stride.into()];
        let flux = [neighbours.into(), normals.into(), variables.into(), far_field.into(), fluxes.into(), stride.into()];
        for _ in 0..self.problem.iterations {
            device.copy(variables, before)?;
            device.launch(STEP_FACTOR, grid, &step_factor)?;
            for stage in 0..STAGES {
                device.launch(FLUX, grid, &flux)?;
                let time_step =
                    [before.into(), variables.into(), factors.into(), fluxes.into(), stride.into(), ((STAGES - stage) as f32).into()];
                device.launch(TIME_STEP, grid, &time_step)?;
            }
        }
        device.finish()?;
        device.read_values(variables, &mut self.variables)?;
        for buffer in [far_field, areas, neighbours, normals, variables, before, fluxes, factors] {
            device.free(buffer)?;
        }
        Ok(())
    }

    fn check(&mut self) -> Result<Deviation, Error> {
        let undisturbed = self.undisturbed();
        if self.reference.is_none() {
            self.reference = Some(reference::solve(&self.mesh, &self.far_field, self.problem.iterations));
        }
        let reference = self.reference.as_deref().unwrap_or_default();
        compare_changes(&self.variables, reference, &undisturbed, TOLERANCE)
    }
}
