// Pathfinder: the cheapest way down a grid, several rows per launch in a group's local memory (a pyramid of ghost columns).

#define GROUP 256

// Advances `result` by `rows` rows of `wall` from `first_row`. `border` is the number of ghost columns at each side of a group.
KERNEL(GROUP, 1) void pathfinder_rows(GLOBAL const int *wall, GLOBAL const int *source, GLOBAL int *result, int rows, int columns,
                                      int first_row, int border)
{
    LOCAL int before[GROUP];
    const int t = LOCAL_X;
    const int column = GROUP_X * (GROUP - 2 * border) - border + t;
    const int inside = column >= 0 && column < columns;
    if (inside)
        before[t] = source[column];
    BARRIER();
    for (int row = 0; row < rows; ++row) {
        const int valid = inside && t > row && t < GROUP - 1 - row;
        int cheapest = 0;
        if (valid) {
            cheapest = before[t];
            if (column > 0 && before[t - 1] < cheapest)
                cheapest = before[t - 1];
            if (column < columns - 1 && before[t + 1] < cheapest)
                cheapest = before[t + 1];
            cheapest += wall[(first_row + row) * columns + column];
        }
        BARRIER();
        if (valid)
            before[t] = cheapest;
        BARRIER();
    }
    if (inside && t >= border && t < GROUP - border)
        result[column] = before[t];
}
