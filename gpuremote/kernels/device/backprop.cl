// Back propagation: one training step of a layered network; the host adds partial sums and handles the small output layer.

#define HIDDEN 16

// Sums 16 inputs x 16 weights per group, for each hidden unit. `inputs` and `weights` start with the bias unit.
// `weights` has HIDDEN + 1 columns; column 0 is unused. `partial` has one row of HIDDEN sums per group.
KERNEL(HIDDEN, HIDDEN) void backprop_forward(GLOBAL const float *inputs, GLOBAL float *weights, GLOBAL float *partial)
{
    LOCAL float product[HIDDEN][HIDDEN];
    const int tx = LOCAL_X;
    const int ty = LOCAL_Y;
    const int input = GROUP_X * HIDDEN + ty + 1;
    product[ty][tx] = weights[input * (HIDDEN + 1) + tx + 1] * inputs[input];
    BARRIER();
    for (int step = HIDDEN / 2; step > 0; step /= 2) {
        if (ty < step)
            product[ty][tx] += product[ty + step][tx];
        BARRIER();
    }
    if (ty == 0)
        partial[GROUP_X * HIDDEN + tx] = product[0][tx];
}

// Adjusts weights by the delta rule with momentum; `previous` holds the last change of every weight.
KERNEL(HIDDEN, HIDDEN) void backprop_adjust(GLOBAL const float *delta, GLOBAL const float *inputs, GLOBAL float *weights,
                                            GLOBAL float *previous, float rate, float momentum)
{
    const int tx = LOCAL_X;
    const int input = GROUP_X * HIDDEN + LOCAL_Y + 1;
    const int at = input * (HIDDEN + 1) + tx + 1;
    const float change = rate * delta[tx + 1] * inputs[input] + momentum * previous[at];
    weights[at] += change;
    previous[at] = change;
    if (GROUP_X == 0 && LOCAL_Y == 0) {
        // One work-item per hidden unit also adjusts its bias weight, whose input is 1.
        const float bias_change = rate * delta[tx + 1] + momentum * previous[tx + 1];
        weights[tx + 1] += bias_change;
        previous[tx + 1] = bias_change;
    }
}
