// Needleman-Wunsch: global alignment of two sequences, scored tile by tile along anti-diagonals.

#define TILE 16

// Scores one tile of TILE x TILE cells; row 0 and column 0 of `score` are the neighbours' last row and column.
// `similarity` and `score` are square arrays of `width` columns.
DEVICE void score_tile(GLOBAL const int *similarity, GLOBAL int *score, LOCAL_POINTER int *cell, LOCAL_POINTER int *match,
                       int width, int penalty, int tile_x, int tile_y)
{
    const int t = LOCAL_X;
    const int side = TILE + 1;
    const int corner = tile_y * TILE * width + tile_x * TILE;
    for (int row = 0; row < TILE; ++row)
        match[row * TILE + t] = similarity[corner + (row + 1) * width + t + 1];
    cell[t + 1] = score[corner + t + 1];
    cell[(t + 1) * side] = score[corner + (t + 1) * width];
    if (t == 0)
        cell[0] = score[corner];
    BARRIER();
    for (int diagonal = 0; diagonal < 2 * TILE - 1; ++diagonal) {
        const int row = diagonal - t;
        if (row >= 0 && row < TILE) {
            const int above = cell[row * side + t + 1] - penalty;
            const int before = cell[(row + 1) * side + t] - penalty;
            int best = cell[row * side + t] + match[row * TILE + t];
            if (above > best)
                best = above;
            if (before > best)
                best = before;
            cell[(row + 1) * side + t + 1] = best;
        }
        BARRIER();
    }
    for (int row = 0; row < TILE; ++row)
        score[corner + (row + 1) * width + t + 1] = cell[(row + 1) * side + t + 1];
}

// Tiles of anti-diagonal `diagonal` (counted from 1) in the upper left half.
KERNEL(TILE, 1) void nw_upper(GLOBAL const int *similarity, GLOBAL int *score, int width, int penalty, int diagonal)
{
    LOCAL int cell[(TILE + 1) * (TILE + 1)];
    LOCAL int match[TILE * TILE];
    score_tile(similarity, score, cell, match, width, penalty, GROUP_X, diagonal - 1 - GROUP_X);
}

// Tiles of the anti-diagonal with `diagonal` tiles in the lower right half of `tiles` x `tiles`.
KERNEL(TILE, 1) void nw_lower(GLOBAL const int *similarity, GLOBAL int *score, int width, int penalty, int diagonal, int tiles)
{
    LOCAL int cell[(TILE + 1) * (TILE + 1)];
    LOCAL int match[TILE * TILE];
    score_tile(similarity, score, cell, match, width, penalty, GROUP_X + tiles - diagonal, tiles - 1 - GROUP_X);
}
