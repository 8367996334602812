//! A mesh of quadrilaterals wound around a body, numbered as irregularly as a mesh generator's output.

use super::{FACES, FAR_FIELD, WING};
use crate::random::Random;

/// Elements of one turn around the body.
const TURN: usize = 256;
/// Elements are renumbered at random within blocks of this many, so that neighbours stay near in memory but in no order.
const SHUFFLED: usize = 64;
/// How far corners lie from a regular grid of unit squares.
const DISTORTION: f32 = 0.2;

/// Arrays of `stride` values per face and component; elements past the mesh repeat its last element.
pub struct Mesh {
    /// Elements, rounded up to whole groups.
    pub stride: usize,
    /// Area of each element.
    pub areas: Vec<f32>,
    /// The element beyond each face, [`WING`] or [`FAR_FIELD`].
    pub neighbours: Vec<i32>,
    /// Outward normals of each face, as long as the face.
    pub normals: Vec<f32>,
}

impl Mesh {
    /// Winds `elements` quadrilaterals in a helix around the body: element i adjoins i - 1 and i + 1 in its turn, and i - TURN and
    /// i + TURN in the turns within and without. The helix is cut open and laid flat, so that one turn is as long as another.
    /// Corner i is shared by the elements i - TURN - 1, i - TURN, i - 1 and i.
    pub fn generate(elements: usize, group: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let stride = elements.div_ceil(group) * group;
        let shifts: Vec<[f32; 2]> = (0..elements + TURN + 1).map(|_| [(); 2].map(|()| random.between(-DISTORTION, DISTORTION))).collect();
        let places = shuffled_places(elements, &mut random);
        let mut mesh =
            Self { stride, areas: vec![0.0; stride], neighbours: vec![0; FACES * stride], normals: vec![0.0; 3 * FACES * stride] };
        for element in 0..elements {
            mesh.place(element, places[element], &shifts, &places);
        }
        let last = places[elements - 1];
        for place in elements..stride {
            mesh.repeat(last, place);
        }
        mesh
    }

    fn place(&mut self, element: usize, place: usize, shifts: &[[f32; 2]], places: &[usize]) {
        let corner = |x: usize, y: usize| -> [f32; 2] {
            let shift = shifts[element + x + y * TURN];
            [x as f32 + shift[0], y as f32 + shift[1]]
        };
        // Counterclockwise, so that the normal of an edge (dx, dy) that points outward is (dy, -dx).
        let corners = [corner(0, 0), corner(1, 0), corner(1, 1), corner(0, 1)];
        let beyond = [element.checked_sub(TURN), Some(element + 1), Some(element + TURN), element.checked_sub(1)];
        let mut twice_area = 0.0;
        for face in 0..FACES {
            let (a, b) = (corners[face], corners[(face + 1) % FACES]);
            twice_area += a[0] * b[1] - a[1] * b[0];
            let normal = [b[1] - a[1], a[0] - b[0], 0.0];
            for (component, value) in normal.into_iter().enumerate() {
                self.normals[(3 * face + component) * self.stride + place] = value;
            }
            self.neighbours[face * self.stride + place] = match beyond[face] {
                None => WING,
                Some(neighbour) => places.get(neighbour).map_or(FAR_FIELD, |place| *place as i32),
            };
        }
        self.areas[place] = twice_area / 2.0;
    }

    fn repeat(&mut self, from: usize, to: usize) {
        self.areas[to] = self.areas[from];
        for face in 0..FACES {
            self.neighbours[face * self.stride + to] = self.neighbours[face * self.stride + from];
        }
        for component in 0..3 * FACES {
            self.normals[component * self.stride + to] = self.normals[component * self.stride + from];
        }
    }
}

/// Returns the place of every element in memory.
fn shuffled_places(elements: usize, random: &mut Random) -> Vec<usize> {
    let mut places: Vec<usize> = (0..elements).collect();
    for block in places.chunks_mut(SHUFFLED) {
        for last in (1..block.len()).rev() {
            block.swap(last, random.below(last as u32 + 1) as usize);
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faces_close_every_element_and_match_across_it() {
        let elements = 1_000;
        let mesh = Mesh::generate(elements, 192, 7);
        let normal = |element: usize, face: usize| -> [f32; 3] {
            [0, 1, 2].map(|component| mesh.normals[(3 * face + component) * mesh.stride + element])
        };
        for element in 0..elements {
            assert!(mesh.areas[element] > 0.2, "element {element}");
            for component in 0..3 {
                let sum: f32 = (0..FACES).map(|face| normal(element, face)[component]).sum();
                assert!(sum.abs() < 1e-5, "element {element} is open by {sum}");
            }
            for face in 0..FACES {
                let neighbour = mesh.neighbours[face * mesh.stride + element];
                if neighbour < 0 {
                    continue;
                }
                let opposite = (face + 2) % FACES;
                let back = mesh.neighbours[opposite * mesh.stride + neighbour as usize];
                assert_eq!(back, element as i32);
                let (here, there) = (normal(element, face), normal(neighbour as usize, opposite));
                for component in 0..3 {
                    assert!((here[component] + there[component]).abs() < 1e-5);
                }
            }
        }
    }
}
