// CFD: the three-dimensional Euler equations for compressible flow on an unstructured mesh, by finite volumes.
//
// Variables are density, momentum (3) and energy density, each an array of `stride` values. Every element has four neighbours.

#define GROUP 192
#define NEIGHBOURS 4
#define WING (-1)
#define FAR_FIELD (-2)
#define GAMMA 1.4f
#define SMOOTHING 0.2f
#define COURANT 0.5f

typedef struct {
    float density, mx, my, mz, energy;
} State;

typedef struct {
    float vx, vy, vz, speed_squared, pressure, sound;
} Derived;

DEVICE State load_state(GLOBAL const float *variables, int stride, int element)
{
    State s;
    s.density = variables[element];
    s.mx = variables[element + stride];
    s.my = variables[element + 2 * stride];
    s.mz = variables[element + 3 * stride];
    s.energy = variables[element + 4 * stride];
    return s;
}

DEVICE Derived derive(State s)
{
    Derived d;
    d.vx = s.mx / s.density;
    d.vy = s.my / s.density;
    d.vz = s.mz / s.density;
    d.speed_squared = d.vx * d.vx + d.vy * d.vy + d.vz * d.vz;
    d.pressure = (GAMMA - 1.0f) * (s.energy - 0.5f * s.density * d.speed_squared);
    d.sound = SQRT(GAMMA * d.pressure / s.density);
    return d;
}

// The flux of all five variables through a face with normal (nx, ny, nz), whose length is the face's area.
DEVICE State face_flux(State s, Derived d, float nx, float ny, float nz)
{
    State f;
    const float through = d.vx * nx + d.vy * ny + d.vz * nz;
    f.density = s.density * through;
    f.mx = s.mx * through + d.pressure * nx;
    f.my = s.my * through + d.pressure * ny;
    f.mz = s.mz * through + d.pressure * nz;
    f.energy = (s.energy + d.pressure) * through;
    return f;
}

KERNEL(GROUP, 1) void cfd_initialize(GLOBAL float *variables, GLOBAL const float *far_field, int stride)
{
    const int element = GROUP_X * GROUP + LOCAL_X;
    for (int v = 0; v < 5; ++v)
        variables[element + v * stride] = far_field[v];
}

KERNEL(GROUP, 1) void cfd_step_factor(GLOBAL const float *variables, GLOBAL const float *areas, GLOBAL float *factors, int stride)
{
    const int element = GROUP_X * GROUP + LOCAL_X;
    const Derived d = derive(load_state(variables, stride, element));
    factors[element] = COURANT / (SQRT(areas[element]) * (SQRT(d.speed_squared) + d.sound));
}

// `neighbours` and the three components of `normals` are arrays of `stride` values for each of the four faces.
KERNEL(GROUP, 1) void cfd_flux(GLOBAL const int *neighbours, GLOBAL const float *normals, GLOBAL const float *variables,
                               GLOBAL const float *far_field, GLOBAL float *fluxes, int stride)
{
    const int element = GROUP_X * GROUP + LOCAL_X;
    const State here = load_state(variables, stride, element);
    const Derived derived = derive(here);
    const State outside = load_state(far_field, 1, 0);
    State sum = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (int face = 0; face < NEIGHBOURS; ++face) {
        const int neighbour = neighbours[element + face * stride];
        const float nx = normals[element + (3 * face) * stride];
        const float ny = normals[element + (3 * face + 1) * stride];
        const float nz = normals[element + (3 * face + 2) * stride];
        if (neighbour == WING) {
            sum.mx -= derived.pressure * nx;
            sum.my -= derived.pressure * ny;
            sum.mz -= derived.pressure * nz;
            continue;
        }
        const int beyond_mesh = neighbour == FAR_FIELD;
        const State there = beyond_mesh ? outside : load_state(variables, stride, neighbour);
        const Derived other = derive(there);
        const State a = face_flux(here, derived, nx, ny, nz);
        const State b = face_flux(there, other, nx, ny, nz);
        // Central differences need artificial viscosity, proportional to the largest wave speed.
        const float length = SQRT(nx * nx + ny * ny + nz * nz);
        const float speeds = SQRT(derived.speed_squared) + SQRT(other.speed_squared) + derived.sound + other.sound;
        const float viscosity = beyond_mesh ? 0.0f : 0.5f * SMOOTHING * length * speeds;
        sum.density -= 0.5f * (a.density + b.density) + viscosity * (here.density - there.density);
        sum.mx -= 0.5f * (a.mx + b.mx) + viscosity * (here.mx - there.mx);
        sum.my -= 0.5f * (a.my + b.my) + viscosity * (here.my - there.my);
        sum.mz -= 0.5f * (a.mz + b.mz) + viscosity * (here.mz - there.mz);
        sum.energy -= 0.5f * (a.energy + b.energy) + viscosity * (here.energy - there.energy);
    }
    fluxes[element] = sum.density;
    fluxes[element + stride] = sum.mx;
    fluxes[element + 2 * stride] = sum.my;
    fluxes[element + 3 * stride] = sum.mz;
    fluxes[element + 4 * stride] = sum.energy;
}

// One of three Runge-Kutta stages; `divisor` is 3, 2, 1.
KERNEL(GROUP, 1) void cfd_time_step(GLOBAL const float *before, GLOBAL float *variables, GLOBAL const float *factors,
                                    GLOBAL const float *fluxes, int stride, float divisor)
{
    const int element = GROUP_X * GROUP + LOCAL_X;
    const float factor = factors[element] / divisor;
    for (int v = 0; v < 5; ++v)
        variables[element + v * stride] = before[element + v * stride] + factor * fluxes[element + v * stride];
}
