// HotSpot: temperatures of a chip from its power map, several time steps per launch (a pyramid of ghost cells).

#define TILE 16

// Advances temperatures by `steps` explicit Euler steps. `border` is the number of ghost cells at each side of a tile.
// `step_over_capacity` is in K/W per step; resistances are given as inverses in W/K.
KERNEL(TILE, TILE) void hotspot_steps(GLOBAL const float *power, GLOBAL const float *source, GLOBAL float *result, int steps, int columns,
                                      int rows, int border, float step_over_capacity, float inverse_rx, float inverse_ry,
                                      float inverse_rz, float ambient)
{
    LOCAL float temperature[TILE][TILE];
    const int tx = LOCAL_X;
    const int ty = LOCAL_Y;
    const int column = GROUP_X * (TILE - 2 * border) - border + tx;
    const int row = GROUP_Y * (TILE - 2 * border) - border + ty;
    const int inside = column >= 0 && column < columns && row >= 0 && row < rows;
    float watts = 0.0f;
    if (inside) {
        temperature[ty][tx] = source[row * columns + column];
        watts = power[row * columns + column];
    }
    BARRIER();
    for (int step = 0; step < steps; ++step) {
        const int valid = inside && tx > step && tx < TILE - 1 - step && ty > step && ty < TILE - 1 - step;
        float next = 0.0f;
        if (valid) {
            // The chip's edge is adiabatic: a cell there is its own neighbour.
            const float here = temperature[ty][tx];
            const float north = temperature[row > 0 ? ty - 1 : ty][tx];
            const float south = temperature[row < rows - 1 ? ty + 1 : ty][tx];
            const float west = temperature[ty][column > 0 ? tx - 1 : tx];
            const float east = temperature[ty][column < columns - 1 ? tx + 1 : tx];
            next = here + step_over_capacity * (watts + (south + north - 2.0f * here) * inverse_ry +
                                                (east + west - 2.0f * here) * inverse_rx + (ambient - here) * inverse_rz);
        }
        BARRIER();
        if (valid)
            temperature[ty][tx] = next;
        BARRIER();
    }
    if (inside && tx >= border && tx < TILE - border && ty >= border && ty < TILE - border)
        result[row * columns + column] = temperature[ty][tx];
}
