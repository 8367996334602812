//! Breadth-first search in a random graph, level by level; after each level the host reads whether there is another.

use super::{compare_exactly, Case, Deviation, Size};
use crate::api::{Device, Error, Grid};
use crate::program::{self, Program};
use crate::random::Random;

const GROUP: usize = 512;
const EXPAND: usize = 0;
const ADVANCE: usize = 1;
/// Edges drawn per node; each counts at both ends, so the mean degree is twice this.
const EDGES_PER_NODE: usize = 3;
const UNREACHED: i32 = -1;

/// The number of nodes of a graph with a mean degree of 6.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    nodes: usize,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} nodes, mean degree {}", self.nodes, 2 * EDGES_PER_NODE)
    }
}

/// Returns the problems of `size`.
pub fn problems(size: Size) -> Vec<Problem> {
    vec![Problem { nodes: size.pick(3_000, 1_000_000, 4_000_000) }]
}

/// A graph as adjacency lists and the levels of the latest run.
pub struct Search {
    problem: Problem,
    first_edge: Vec<i32>,
    edge_count: Vec<i32>,
    edges: Vec<i32>,
    root: usize,
    levels: Vec<i32>,
    reference: Option<Vec<i32>>,
}

impl Search {
    /// Draws undirected edges between any two nodes.
    pub fn generate(problem: Problem, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nodes = problem.nodes;
        let pairs: Vec<(usize, usize)> =
            (0..nodes * EDGES_PER_NODE).map(|i| (i / EDGES_PER_NODE, random.below(nodes as u32) as usize)).collect();
        let mut edge_count = vec![0; nodes];
        for &(a, b) in &pairs {
            edge_count[a] += 1;
            edge_count[b] += 1;
        }
        let mut total = 0;
        let first_edge: Vec<i32> = edge_count
            .iter()
            .map(|count| {
                total += count;
                total - count
            })
            .collect();
        let mut next = first_edge.clone();
        let mut edges = vec![0; 2 * pairs.len()];
        for (a, b) in pairs {
            for (from, to) in [(a, b), (b, a)] {
                edges[next[from] as usize] = to as i32;
                next[from] += 1;
            }
        }
        Self { problem, first_edge, edge_count, edges, root: 0, levels: vec![0; nodes], reference: None }
    }

    fn neighbours(&self, node: usize) -> &[i32] {
        let first = self.first_edge[node] as usize;
        &self.edges[first..first + self.edge_count[node] as usize]
    }

    fn initial_levels(&self) -> Vec<i32> {
        let mut levels = vec![UNREACHED; self.problem.nodes];
        levels[self.root] = 0;
        levels
    }

    fn compute_reference(&self) -> Vec<i32> {
        let mut levels = self.initial_levels();
        let mut frontier = vec![self.root];
        for level in 1.. {
            let mut reached = Vec::new();
            for node in frontier {
                for &neighbour in self.neighbours(node) {
                    let neighbour = neighbour as usize;
                    if levels[neighbour] == UNREACHED {
                        levels[neighbour] = level;
                        reached.push(neighbour);
                    }
                }
            }
            if reached.is_empty() {
                break;
            }
            frontier = reached;
        }
        levels
    }
}

impl Case for Search {
    fn problem(&self) -> String {
        self.problem.to_string()
    }

    fn program(&self) -> &'static Program {
        &program::BFS
    }

    fn run(&mut self, device: &mut dyn Device) -> Result<(), Error> {
        let nodes = self.problem.nodes;
        self.levels = self.initial_levels();
        let mut root_only = vec![0u8; nodes];
        root_only[self.root] = 1;

        let first_edge = device.allocate_for::<i32>(nodes)?;
        let edge_count = device.allocate_for::<i32>(nodes)?;
        let edges = device.allocate_for::<i32>(self.edges.len())?;
        let frontier = device.allocate(nodes)?;
        let reached = device.allocate(nodes)?;
        let visited = device.allocate(nodes)?;
        let levels = device.allocate_for::<i32>(nodes)?;
        let more = device.allocate(1)?;
        device.write_values(first_edge, &self.first_edge)?;
        device.write_values(edge_count, &self.edge_count)?;
        device.write_values(edges, &self.edges)?;
        device.write(frontier, &root_only)?;
        device.write(reached, &vec![0; nodes])?;
        device.write(visited, &root_only)?;
        device.write_values(levels, &self.levels)?;

        let grid = Grid::line(nodes.div_ceil(GROUP), GROUP);
        let expand = [
            first_edge.into(),
            edge_count.into(),
            edges.into(),
            frontier.into(),
            reached.into(),
            visited.into(),
            levels.into(),
            nodes.into(),
        ];
        let advance = [frontier.into(), reached.into(), visited.into(), more.into(), nodes.into()];
        loop {
            let mut flag = [0u8];
            device.write(more, &flag)?;
            device.launch(EXPAND, grid, &expand)?;
            device.launch(ADVANCE, grid, &advance)?;
            device.read(more, &mut flag)?;
            if flag == [0] {
                break;
            }
        }
        device.read_values(levels, &mut self.levels)?;
        for buffer in [first_edge, edge_count, edges, frontier, reached, visited, levels, more] {
            device.free(buffer)?;
        }
        Ok(())
    }

    fn check(&mut self) -> Result<Deviation, Error> {
        if self.reference.is_none() {
            self.reference = Some(self.compute_reference());
        }
        compare_exactly(&self.levels, self.reference.as_deref().unwrap_or_default())
    }
}
