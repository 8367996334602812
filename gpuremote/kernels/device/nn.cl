// Nearest neighbours: the distance of every record from one point; the host selects the nearest.

KERNEL(256, 1) void nn_distance(GLOBAL const float *location, GLOBAL float *distance, int records, float latitude, float longitude)
{
    const int record = GROUP_X * 256 + LOCAL_X;
    if (record >= records)
        return;
    const float north = latitude - location[2 * record];
    const float east = longitude - location[2 * record + 1];
    distance[record] = SQRT(north * north + east * east);
}
