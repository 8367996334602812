//! Device programs: one source each, as OpenCL C text and as PTX compiled by the build script.

/// A device program in both of its forms.
#[derive(Debug)]
pub struct Program {
    /// The program's name, as in `device/NAME.cl`.
    pub name: &'static str,
    /// OpenCL C: the portable macros, then the source.
    pub opencl: &'static str,
    /// PTX with a terminating NUL, as `cuModuleLoadData` expects.
    pub ptx: &'static str,
    /// Names of its kernels; [`crate::api::Device::launch`] takes an index into this list.
    pub kernels: &'static [&'static str],
}

macro_rules! program {
    ($(#[$doc:meta])* $constant:ident, $name:literal, [$($kernel:literal),+]) => {
        $(#[$doc])*
        pub static $constant: Program = Program {
            name: $name,
            opencl: concat!(
                include_str!("../device/portable.h"),
                include_str!(concat!("../device/", $name, ".cl"))
            ),
            ptx: concat!(include_str!(concat!(env!("OUT_DIR"), "/", $name, ".ptx")), "\0"),
            kernels: &[$($kernel),+],
        };
    };
}

program!(
    /// Training of a layered network.
    BACKPROP, "backprop", ["backprop_forward", "backprop_adjust"]
);
program!(
    /// Breadth-first search.
    BFS, "bfs", ["bfs_expand", "bfs_advance"]
);
program!(
    /// Euler equations on an unstructured mesh.
    CFD, "cfd", ["cfd_initialize", "cfd_step_factor", "cfd_flux", "cfd_time_step"]
);
program!(
    /// Temperatures of a chip.
    HOTSPOT, "hotspot", ["hotspot_steps"]
);
program!(
    /// LU decomposition.
    LUD, "lud", ["lud_diagonal", "lud_perimeter", "lud_internal"]
);
program!(
    /// An empty kernel and one of pure arithmetic.
    MICRO, "micro", ["micro_empty", "micro_compute"]
);
program!(
    /// Distances from a point.
    NN, "nn", ["nn_distance"]
);
program!(
    /// Global alignment of two sequences.
    NW, "nw", ["nw_upper", "nw_lower"]
);
program!(
    /// The cheapest way down a grid.
    PATHFINDER, "pathfinder", ["pathfinder_rows"]
);
