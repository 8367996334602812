// Breadth-first search: every node of the frontier reaches its neighbours, one level per pair of launches.

#define GROUP 512

KERNEL(GROUP, 1) void bfs_expand(GLOBAL const int *first_edge, GLOBAL const int *edge_count, GLOBAL const int *edges,
                                 GLOBAL unsigned char *frontier, GLOBAL unsigned char *reached,
                                 GLOBAL const unsigned char *visited, GLOBAL int *level, int nodes)
{
    const int node = GROUP_X * GROUP + LOCAL_X;
    if (node >= nodes || !frontier[node])
        return;
    frontier[node] = 0;
    const int first = first_edge[node];
    const int end = first + edge_count[node];
    const int next_level = level[node] + 1;
    for (int edge = first; edge < end; ++edge) {
        const int neighbour = edges[edge];
        if (!visited[neighbour]) {
            // Several nodes may reach this neighbour; all of them write the same value.
            level[neighbour] = next_level;
            reached[neighbour] = 1;
        }
    }
}

KERNEL(GROUP, 1) void bfs_advance(GLOBAL unsigned char *frontier, GLOBAL unsigned char *reached, GLOBAL unsigned char *visited,
                                  GLOBAL unsigned char *more, int nodes)
{
    const int node = GROUP_X * GROUP + LOCAL_X;
    if (node >= nodes || !reached[node])
        return;
    frontier[node] = 1;
    visited[node] = 1;
    reached[node] = 0;
    *more = 1;
}
