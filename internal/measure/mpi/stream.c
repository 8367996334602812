/*
 * stream: the bandwidth of the memory, all ranks at once.
 *
 *   stream WORDS [REPETITIONS]
 *
 * STREAM's copy and triad (McCalpin, "Memory bandwidth and machine balance in current high performance computers", 1995) over three
 * vectors of so many words of 8 bytes in every rank. Bytes are counted as STREAM does: 16 a word for the copy, 24 for the triad, what a
 * write fetches first not among them. Ranks begin each repetition together. A repetition takes as long as its slowest rank, and the
 * fastest repetition but the first counts. Rank 0 prints one JSON object; a vector with wrong contents ends the program with an error.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define SCALAR 3.0

static double slowest(double mine)
{
	double all;

	MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	return all;
}

int main(int argc, char **argv)
{
	long words = argc > 1 ? atol(argv[1]) : 0;
	int repetitions = argc > 2 ? atoi(argv[2]) : 10;
	double copy = INFINITY, triad = INFINITY, x = 1, z = 0;
	int rank, ranks, wrong = 0, any;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (words < 1 || repetitions < 2) {
		if (rank == 0)
			fprintf(stderr, "usage: stream WORDS [REPETITIONS, 2 at least]\n");
		MPI_Finalize();
		return 2;
	}
	double *restrict a = malloc(words * sizeof *a), *restrict b = malloc(words * sizeof *b), *restrict c = malloc(words * sizeof *c);

	if (!a || !b || !c) {
		fprintf(stderr, "stream: rank %d has no memory for three vectors of %ld words\n", rank, words);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	for (long i = 0; i < words; i++)
		a[i] = 1, b[i] = 2, c[i] = 0;

	for (int r = 0; r < repetitions; r++) {
		double start, took;

		MPI_Barrier(MPI_COMM_WORLD);
		start = MPI_Wtime();
		for (long i = 0; i < words; i++)
			c[i] = a[i];
		took = slowest(MPI_Wtime() - start);
		if (r > 0 && took < copy)
			copy = took;

		MPI_Barrier(MPI_COMM_WORLD);
		start = MPI_Wtime();
		for (long i = 0; i < words; i++)
			a[i] = b[i] + SCALAR * c[i];
		took = slowest(MPI_Wtime() - start);
		if (r > 0 && took < triad)
			triad = took;
		z = x; /* x and z follow what a and c are to be */
		x = 2 + SCALAR * z;
	}
	for (long i = 0; i < words && !wrong; i++)
		wrong = fabs(a[i] - x) > 1e-13 * fabs(x) || fabs(c[i] - z) > 1e-13 * fabs(z) || b[i] != 2;
	MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	if (any) {
		if (wrong)
			fprintf(stderr, "stream: rank %d has wrong vectors\n", rank);
		MPI_Finalize();
		return 1;
	}
	if (rank == 0)
		printf("{\"program\":\"stream\",\"ranks\":%d,\"words\":%ld,\"copy_gb_per_s\":%.4f,\"triad_gb_per_s\":%.4f}\n", ranks, words,
		       16.0 * words / copy / 1e9, 24.0 * words / triad / 1e9);
	MPI_Finalize();
	return 0;
}
