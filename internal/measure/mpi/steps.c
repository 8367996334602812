/*
 * steps: all ranks compute pi together, in steps, and go on where an earlier attempt stopped.
 *
 *   steps STEPS MILLISECONDS_PER_STEP
 *
 * A step is one slice of the integral of 4 / (1 + x^2) from 0 to 1, by the midpoint rule, its points dealt out to the ranks. After each
 * step rank 0 writes how far it has come and the sum so far to the file steps.state in the working directory, so that nothing
 * but the step under way is lost when the job is; a new file takes the old one's place at once. A step takes at least the time given.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STATE "steps.state"
#define POINTS 1000000

static void load(int *done, double *sum)
{
	FILE *f = fopen(STATE, "r");

	*done = 0;
	*sum = 0;
	if (f == NULL)
		return;
	if (fscanf(f, "%d %la", done, sum) != 2)
		*done = 0, *sum = 0;
	fclose(f);
}

static int save(int done, double sum)
{
	FILE *f = fopen(STATE ".new", "w");

	if (f == NULL)
		return -1;
	fprintf(f, "%d %a\n", done, sum);
	if (fclose(f) != 0)
		return -1;
	return rename(STATE ".new", STATE);
}

static void wait_until(double end)
{
	double left = end - MPI_Wtime();
	struct timespec t;

	if (left <= 0)
		return;
	t.tv_sec = (time_t)left;
	t.tv_nsec = (long)((left - (double)t.tv_sec) * 1e9);
	nanosleep(&t, NULL);
}

int main(int argc, char **argv)
{
	int rank, ranks, done, steps = argc > 1 ? atoi(argv[1]) : 0;
	double sum, all, seconds = argc > 2 ? atof(argv[2]) / 1000 : 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (steps < 1) {
		fprintf(stderr, "usage: steps STEPS MILLISECONDS_PER_STEP\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	if (rank == 0)
		load(&done, &sum);
	MPI_Bcast(&done, 1, MPI_INT, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf(done ? "%d ranks go on after step %d of %d\n" : "%d ranks begin\n", ranks, done, steps), fflush(stdout);

	for (int step = done; step < steps; step++) {
		double end = MPI_Wtime() + seconds, part = 0;

		for (int i = rank; i < POINTS; i += ranks) {
			double x = (step + (i + 0.5) / POINTS) / steps;

			part += 4 / (1 + x * x) / POINTS / steps;
		}
		wait_until(end);
		MPI_Reduce(&part, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
		if (rank != 0)
			continue;
		sum += all;
		if (save(step + 1, sum) != 0) {
			perror(STATE);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
		printf("step %d of %d\n", step + 1, steps);
		fflush(stdout);
	}
	if (rank == 0)
		printf("pi is %.10f, off by %.0e\n", sum, fabs(sum - acos(-1)));
	MPI_Finalize();
	return 0;
}
