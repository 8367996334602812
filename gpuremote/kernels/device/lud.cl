// LU decomposition without pivoting, in place, by blocks: the diagonal block, its row and column of blocks, then the rest.

#define BLOCK 16

KERNEL(BLOCK, 1) void lud_diagonal(GLOBAL float *matrix, int size, int offset)
{
    LOCAL float block[BLOCK][BLOCK];
    const int t = LOCAL_X;
    const int corner = offset * size + offset;
    for (int row = 0; row < BLOCK; ++row)
        block[row][t] = matrix[corner + row * size + t];
    BARRIER();
    for (int k = 0; k < BLOCK - 1; ++k) {
        if (t > k) {
            const float factor = block[t][k] / block[k][k];
            block[t][k] = factor;
            for (int column = k + 1; column < BLOCK; ++column)
                block[t][column] -= factor * block[k][column];
        }
        BARRIER();
    }
    for (int row = 0; row < BLOCK; ++row)
        matrix[corner + row * size + t] = block[row][t];
}

// Work-items 0 to 15 solve one column each of a block to the right of the diagonal, 16 to 31 one row each of a block below.
KERNEL(2 * BLOCK, 1) void lud_perimeter(GLOBAL float *matrix, int size, int offset)
{
    LOCAL float diagonal[BLOCK][BLOCK];
    LOCAL float right[BLOCK][BLOCK];
    LOCAL float below[BLOCK][BLOCK];
    const int t = LOCAL_X % BLOCK;
    const int solves_right = LOCAL_X < BLOCK;
    const int distance = (GROUP_X + 1) * BLOCK;
    const int corner = offset * size + offset;
    const int right_corner = corner + distance;
    const int below_corner = corner + distance * size;
    for (int row = 0; row < BLOCK; ++row) {
        if (solves_right) {
            diagonal[row][t] = matrix[corner + row * size + t];
            right[row][t] = matrix[right_corner + row * size + t];
        } else {
            below[row][t] = matrix[below_corner + row * size + t];
        }
    }
    BARRIER();
    if (solves_right) {
        for (int row = 1; row < BLOCK; ++row) {
            float value = right[row][t];
            for (int k = 0; k < row; ++k)
                value -= diagonal[row][k] * right[k][t];
            right[row][t] = value;
        }
    } else {
        for (int column = 0; column < BLOCK; ++column) {
            float value = below[t][column];
            for (int k = 0; k < column; ++k)
                value -= below[t][k] * diagonal[k][column];
            below[t][column] = value / diagonal[column][column];
        }
    }
    BARRIER();
    for (int row = 0; row < BLOCK; ++row) {
        if (solves_right)
            matrix[right_corner + row * size + t] = right[row][t];
        else
            matrix[below_corner + row * size + t] = below[row][t];
    }
}

KERNEL(BLOCK, BLOCK) void lud_internal(GLOBAL float *matrix, int size, int offset)
{
    LOCAL float left[BLOCK][BLOCK];
    LOCAL float upper[BLOCK][BLOCK];
    const int tx = LOCAL_X;
    const int ty = LOCAL_Y;
    const int row = offset + (GROUP_Y + 1) * BLOCK + ty;
    const int column = offset + (GROUP_X + 1) * BLOCK + tx;
    left[ty][tx] = matrix[row * size + offset + tx];
    upper[ty][tx] = matrix[(offset + ty) * size + column];
    BARRIER();
    float sum = 0.0f;
    for (int k = 0; k < BLOCK; ++k)
        sum += left[ty][k] * upper[k][tx];
    matrix[row * size + column] -= sum;
}
