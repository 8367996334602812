//! The kernels of `nearmetal-gpu-kernels`, whose device sources are in `kernels/device`.
//!
//! They work on whole launches. Each mirrors what its source says about tiles and ghost cells only as far as results depend on it.

use super::{Body, Launch};
use crate::abi::*;
use std::thread;
use std::time::Duration;

/// Name, sizes of the parameters in bytes, and implementation.
pub const KERNELS: &[(&str, &[usize], Body)] = &[
    ("backprop_forward", &[8, 8, 8], backprop_forward),
    ("backprop_adjust", &[8, 8, 8, 8, 4, 4], backprop_adjust),
    ("bfs_expand", &[8, 8, 8, 8, 8, 8, 8, 4], bfs_expand),
    ("bfs_advance", &[8, 8, 8, 8, 4], bfs_advance),
    ("cfd_initialize", &[8, 8, 4], cfd_initialize),
    ("cfd_step_factor", &[8, 8, 8, 4], cfd_step_factor),
    ("cfd_flux", &[8, 8, 8, 8, 8, 4], cfd_flux),
    ("cfd_time_step", &[8, 8, 8, 8, 4, 4], cfd_time_step),
    ("hotspot_steps", &[8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 4], hotspot_steps),
    ("lud_diagonal", &[8, 4, 4], lud_diagonal),
    ("lud_perimeter", &[8, 4, 4], lud_perimeter),
    ("lud_internal", &[8, 4, 4], lud_internal),
    ("micro_empty", &[8], |_| Ok(())),
    ("micro_compute", &[8, 4, 4], micro_compute),
    ("nn_distance", &[8, 8, 4, 4, 4], nn_distance),
    ("nw_upper", &[8, 8, 4, 4, 4], nw_upper),
    ("nw_lower", &[8, 8, 4, 4, 4, 4], nw_lower),
    ("pathfinder_rows", &[8, 8, 8, 4, 4, 4, 4], pathfinder_rows),
];

type Outcome = Result<(), CUresult>;

/// Units of the hidden layer, the side of a tile, and the order of a block: 16 in all of these programs.
const TILE: usize = 16;

fn groups(launch: &Launch) -> usize {
    launch.grid[0] as usize
}

fn count(launch: &Launch, index: usize) -> usize {
    launch.parameter::<i32>(index).max(0) as usize
}

/// The index of a weight to hidden unit `unit` from input unit `input`; column 0 is unused.
fn weight(input: usize, unit: usize) -> usize {
    input * (TILE + 1) + unit + 1
}

fn backprop_forward(launch: &Launch) -> Outcome {
    let inputs = groups(launch) * TILE;
    let units = launch.values::<f32>(0, inputs + 1)?;
    let weights = launch.values::<f32>(1, (inputs + 1) * (TILE + 1))?;
    let partial = launch.values::<f32>(2, inputs)?;
    for group in 0..groups(launch) {
        for unit in 0..TILE {
            let members = (1..=TILE).map(|member| group * TILE + member);
            partial[group * TILE + unit] = members.map(|input| weights[weight(input, unit)] * units[input]).sum();
        }
    }
    Ok(())
}

fn backprop_adjust(launch: &Launch) -> Outcome {
    let inputs = groups(launch) * TILE;
    let delta = launch.values::<f32>(0, TILE + 1)?;
    let units = launch.values::<f32>(1, inputs + 1)?;
    let weights = launch.values::<f32>(2, (inputs + 1) * (TILE + 1))?;
    let previous = launch.values::<f32>(3, (inputs + 1) * (TILE + 1))?;
    let (rate, momentum): (f32, f32) = (launch.parameter(4), launch.parameter(5));
    for (input, strength) in units.iter().enumerate() {
        // The bias has strength 1, whatever its unit holds.
        let strength = if input == 0 { 1.0 } else { *strength };
        for unit in 0..TILE {
            let at = weight(input, unit);
            previous[at] = rate * delta[unit + 1] * strength + momentum * previous[at];
            weights[at] += previous[at];
        }
    }
    Ok(())
}

fn bfs_expand(launch: &Launch) -> Outcome {
    let nodes = launch.threads(launch.parameter(7));
    let first_edge = launch.values::<i32>(0, nodes)?;
    let edge_count = launch.values::<i32>(1, nodes)?;
    let edge_total = first_edge.last().zip(edge_count.last()).map_or(0, |(first, count)| first + count);
    let edges = launch.values::<i32>(2, edge_total as usize)?;
    let frontier = launch.values::<u8>(3, nodes)?;
    let reached = launch.values::<u8>(4, nodes)?;
    let visited = launch.values::<u8>(5, nodes)?;
    let levels = launch.values::<i32>(6, nodes)?;
    for node in 0..nodes {
        if std::mem::take(&mut frontier[node]) == 0 {
            continue;
        }
        let first = first_edge[node] as usize;
        for &neighbour in &edges[first..first + edge_count[node] as usize] {
            let neighbour = neighbour as usize;
            if visited[neighbour] == 0 {
                levels[neighbour] = levels[node] + 1;
                reached[neighbour] = 1;
            }
        }
    }
    Ok(())
}

fn bfs_advance(launch: &Launch) -> Outcome {
    let nodes = launch.threads(launch.parameter(4));
    let frontier = launch.values::<u8>(0, nodes)?;
    let reached = launch.values::<u8>(1, nodes)?;
    let visited = launch.values::<u8>(2, nodes)?;
    let more = launch.values::<u8>(3, 1)?;
    for node in 0..nodes {
        if std::mem::take(&mut reached[node]) != 0 {
            frontier[node] = 1;
            visited[node] = 1;
            more[0] = 1;
        }
    }
    Ok(())
}

/// Variables of the Euler equations: density, momentum in x, y and z, and energy density.
type State = [f32; 5];

const GAMMA: f32 = 1.4;

struct Flow {
    velocity: [f32; 3],
    speed: f32,
    pressure: f32,
    sound: f32,
}

impl Flow {
    fn of(s: &State) -> Self {
        let velocity = [s[1] / s[0], s[2] / s[0], s[3] / s[0]];
        let speed_squared: f32 = velocity.iter().map(|v| v * v).sum();
        let pressure = (GAMMA - 1.0) * (s[4] - 0.5 * s[0] * speed_squared);
        Self { velocity, speed: speed_squared.sqrt(), pressure, sound: (GAMMA * pressure / s[0]).sqrt() }
    }

    /// Flux of all variables of `s` through a face with this normal.
    fn through(&self, s: &State, normal: [f32; 3]) -> State {
        let volume: f32 = self.velocity.iter().zip(normal).map(|(v, n)| v * n).sum();
        let [nx, ny, nz] = normal.map(|n| n * self.pressure);
        [s[0] * volume, s[1] * volume + nx, s[2] * volume + ny, s[3] * volume + nz, (s[4] + self.pressure) * volume]
    }
}

fn state(variables: &[f32], stride: usize, element: usize) -> State {
    std::array::from_fn(|v| variables[element + v * stride])
}

fn cfd_initialize(launch: &Launch) -> Outcome {
    let stride = count(launch, 2);
    let variables = launch.values::<f32>(0, 5 * stride)?;
    let far_field = launch.values::<f32>(1, 5)?;
    variables.chunks_exact_mut(stride).zip(far_field).for_each(|(values, value)| values.fill(*value));
    Ok(())
}

fn cfd_step_factor(launch: &Launch) -> Outcome {
    let stride = count(launch, 3);
    let variables = launch.values::<f32>(0, 5 * stride)?;
    let areas = launch.values::<f32>(1, stride)?;
    let factors = launch.values::<f32>(2, stride)?;
    for element in 0..stride {
        let flow = Flow::of(&state(variables, stride, element));
        factors[element] = 0.5 / (areas[element].sqrt() * (flow.speed + flow.sound));
    }
    Ok(())
}

fn cfd_flux(launch: &Launch) -> Outcome {
    let stride = count(launch, 5);
    let neighbours = launch.values::<i32>(0, 4 * stride)?;
    let normals = launch.values::<f32>(1, 12 * stride)?;
    let variables = launch.values::<f32>(2, 5 * stride)?;
    let far_field = launch.values::<f32>(3, 5)?;
    let fluxes = launch.values::<f32>(4, 5 * stride)?;
    for element in 0..stride {
        let here = state(variables, stride, element);
        let flow = Flow::of(&here);
        let mut sum = [0.0; 5];
        for face in 0..4 {
            let normal = [0, 1, 2].map(|component| normals[element + (3 * face + component) * stride]);
            let (there, smoothing) = match neighbours[element + face * stride] {
                // A wall passes nothing and pushes back.
                -1 => {
                    (0..3).for_each(|component| sum[component + 1] -= flow.pressure * normal[component]);
                    continue;
                }
                -2 => (state(far_field, 1, 0), 0.0),
                neighbour => (state(variables, stride, neighbour as usize), 0.2),
            };
            let other = Flow::of(&there);
            let (a, b) = (flow.through(&here, normal), other.through(&there, normal));
            let length = normal.iter().map(|n| n * n).sum::<f32>().sqrt();
            let viscosity = 0.5 * smoothing * length * (flow.speed + other.speed + flow.sound + other.sound);
            (0..5).for_each(|v| sum[v] -= 0.5 * (a[v] + b[v]) + viscosity * (here[v] - there[v]));
        }
        (0..5).for_each(|v| fluxes[element + v * stride] = sum[v]);
    }
    Ok(())
}

fn cfd_time_step(launch: &Launch) -> Outcome {
    let stride = count(launch, 4);
    let before = launch.values::<f32>(0, 5 * stride)?;
    let variables = launch.values::<f32>(1, 5 * stride)?;
    let factors = launch.values::<f32>(2, stride)?;
    let fluxes = launch.values::<f32>(3, 5 * stride)?;
    let divisor: f32 = launch.parameter(5);
    for at in 0..5 * stride {
        variables[at] = before[at] + factors[at % stride] / divisor * fluxes[at];
    }
    Ok(())
}

fn hotspot_steps(launch: &Launch) -> Outcome {
    let (columns, rows) = (count(launch, 4), count(launch, 5));
    let power = launch.values::<f32>(0, columns * rows)?;
    let result = launch.values::<f32>(2, columns * rows)?;
    let mut before = launch.values::<f32>(1, columns * rows)?.to_vec();
    let [step, inverse_rx, inverse_ry, inverse_rz, ambient] = [7, 8, 9, 10, 11].map(|index| launch.parameter::<f32>(index));
    for _ in 0..count(launch, 3) {
        for at in 0..columns * rows {
            let (row, column) = (at / columns, at % columns);
            let here = before[at];
            let north = before[if row > 0 { at - columns } else { at }];
            let south = before[if row < rows - 1 { at + columns } else { at }];
            let west = before[if column > 0 { at - 1 } else { at }];
            let east = before[if column < columns - 1 { at + 1 } else { at }];
            let lateral = (south + north - 2.0 * here) * inverse_ry + (east + west - 2.0 * here) * inverse_rx;
            result[at] = here + step * (power[at] + lateral + (ambient - here) * inverse_rz);
        }
        before.copy_from_slice(result);
    }
    Ok(())
}

/// Index of an element of the matrix, relative to the diagonal block at `offset`.
fn element(size: usize, offset: usize, row: usize, column: usize) -> usize {
    (offset + row) * size + offset + column
}

fn lud_diagonal(launch: &Launch) -> Outcome {
    let (size, offset) = (count(launch, 1), count(launch, 2));
    let matrix = launch.values::<f32>(0, size * size)?;
    let at = |row, column| element(size, offset, row, column);
    for k in 0..TILE {
        for row in k + 1..TILE {
            let factor = matrix[at(row, k)] / matrix[at(k, k)];
            matrix[at(row, k)] = factor;
            (k + 1..TILE).for_each(|column| matrix[at(row, column)] -= factor * matrix[at(k, column)]);
        }
    }
    Ok(())
}

fn lud_perimeter(launch: &Launch) -> Outcome {
    let (size, offset) = (count(launch, 1), count(launch, 2));
    let matrix = launch.values::<f32>(0, size * size)?;
    let at = |row, column| element(size, offset, row, column);
    for far in TILE..size - offset {
        for near in 0..TILE {
            for k in 0..near {
                matrix[at(near, far)] -= matrix[at(near, k)] * matrix[at(k, far)];
                matrix[at(far, near)] -= matrix[at(far, k)] * matrix[at(k, near)];
            }
            matrix[at(far, near)] /= matrix[at(near, near)];
        }
    }
    Ok(())
}

fn lud_internal(launch: &Launch) -> Outcome {
    let (size, offset) = (count(launch, 1), count(launch, 2));
    let matrix = launch.values::<f32>(0, size * size)?;
    let at = |row, column| element(size, offset, row, column);
    for row in TILE..size - offset {
        for k in 0..TILE {
            let factor = matrix[at(row, k)];
            (TILE..size - offset).for_each(|column| matrix[at(row, column)] -= factor * matrix[at(k, column)]);
        }
    }
    Ok(())
}

/// Takes 10 ns for each round, about as long as a GPU does with the default number of groups.
fn micro_compute(launch: &Launch) -> Outcome {
    thread::sleep(Duration::from_nanos(10 * count(launch, 1) as u64));
    Ok(())
}

fn nn_distance(launch: &Launch) -> Outcome {
    let records = launch.threads(launch.parameter(2));
    let locations = launch.values::<f32>(0, 2 * records)?;
    let distances = launch.values::<f32>(1, records)?;
    let (latitude, longitude): (f32, f32) = (launch.parameter(3), launch.parameter(4));
    for (distance, at) in distances.iter_mut().zip(locations.chunks_exact(2)) {
        let (north, east) = (latitude - at[0], longitude - at[1]);
        *distance = (north * north + east * east).sqrt();
    }
    Ok(())
}

fn nw_upper(launch: &Launch) -> Outcome {
    let diagonal = count(launch, 4);
    (0..groups(launch)).try_for_each(|group| score_tile(launch, group, diagonal - 1 - group))
}

fn nw_lower(launch: &Launch) -> Outcome {
    let (diagonal, tiles) = (count(launch, 4), count(launch, 5));
    (0..groups(launch)).try_for_each(|group| score_tile(launch, group + tiles - diagonal, tiles - 1 - group))
}

fn score_tile(launch: &Launch, tile_x: usize, tile_y: usize) -> Outcome {
    let width = count(launch, 2);
    let similarity = launch.values::<i32>(0, width * width)?;
    let scores = launch.values::<i32>(1, width * width)?;
    let penalty: i32 = launch.parameter(3);
    for row in tile_y * TILE + 1..=(tile_y + 1) * TILE {
        for at in row * width + tile_x * TILE + 1..=row * width + (tile_x + 1) * TILE {
            let gap = scores[at - 1].max(scores[at - width]) - penalty;
            scores[at] = gap.max(scores[at - width - 1] + similarity[at]);
        }
    }
    Ok(())
}

fn pathfinder_rows(launch: &Launch) -> Outcome {
    let (rows, columns, first_row) = (count(launch, 3), count(launch, 4), count(launch, 5));
    let wall = launch.values::<i32>(0, (first_row + rows) * columns)?;
    let mut before = launch.values::<i32>(1, columns)?.to_vec();
    let result = launch.values::<i32>(2, columns)?;
    for costs in wall.chunks_exact(columns).skip(first_row) {
        for (column, cost) in costs.iter().enumerate() {
            let reachable = &before[column.saturating_sub(1)..columns.min(column + 2)];
            result[column] = cost + reachable.iter().min().copied().unwrap_or(0);
        }
        before.copy_from_slice(result);
    }
    Ok(())
}
