// Kernels of the measurements that need no algorithm.

KERNEL(1, 1) void micro_empty(GLOBAL int *unused)
{
    (void)unused;
}

// `rounds` dependent multiply-adds per work-item. The condition never holds, but no compiler can know that.
KERNEL(256, 1) void micro_compute(GLOBAL float *sink, int rounds, float factor)
{
    float value = (float)(LOCAL_X + 1);
    for (int round = 0; round < rounds; ++round)
        value = value * factor + 0.5f;
    if (value == -1.0f)
        sink[0] = value;
}
