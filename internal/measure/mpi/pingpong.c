/*
 * pingpong: latency and bandwidth between ranks 0 and 1 by message size.
 *
 *   pingpong [MILLISECONDS_PER_SIZE [LARGEST_BYTES]]
 *
 * A message goes to rank 1 and back; half the round trip is the latency, size / latency the bandwidth (1 MB = 1e6 bytes), as
 * in the OSU and Intel benchmarks. Per size: a warm-up, from whose pace the number of round trips is chosen to fill the time,
 * then REPETITIONS timed loops; the median loop counts. Buffers are touched before and reused, so page faults are not in it.
 * Rank 0 prints a header and then one JSON object a line.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPETITIONS 5
#define SMALLEST 8
#define LARGEST (4 << 20)

static double loop(char *buffer, int bytes, long trips, int rank)
{
	double start = MPI_Wtime();

	for (long i = 0; i < trips; i++) {
		if (rank == 0) {
			MPI_Send(buffer, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
			MPI_Recv(buffer, bytes, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else {
			MPI_Recv(buffer, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(buffer, bytes, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
		}
	}
	return (MPI_Wtime() - start) / trips;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* warm_up returns how many round trips fill the given time; both ranks get rank 0's answer. */
static long warm_up(char *buffer, int bytes, double seconds, int rank)
{
	long trips = 4;
	double each = loop(buffer, bytes, trips, rank);

	MPI_Bcast(&each, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
	trips = (long)(seconds / 5 / each) + 1;
	each = loop(buffer, bytes, trips, rank);
	MPI_Bcast(&each, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
	trips = (long)(seconds / each);
	return trips < 4 ? 4 : trips;
}

static void header(int rank)
{
	char name[2][MPI_MAX_PROCESSOR_NAME] = { "", "" };
	char version[MPI_MAX_LIBRARY_VERSION_STRING];
	int length;

	MPI_Get_processor_name(name[0], &length);
	if (rank == 1) {
		MPI_Send(name[0], MPI_MAX_PROCESSOR_NAME, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
		return;
	}
	MPI_Recv(name[1], MPI_MAX_PROCESSOR_NAME, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Get_library_version(version, &length);
	version[strcspn(version, ",\n\"\\")] = '\0';
	printf("{\"program\":\"pingpong\",\"mpi\":\"%s\",\"processors\":[\"%s\",\"%s\"]}\n", version, name[0], name[1]);
}

int main(int argc, char **argv)
{
	double seconds = (argc > 1 ? atof(argv[1]) : 100) / 1000 / REPETITIONS;
	long largest = argc > 2 ? atol(argv[2]) : LARGEST;
	int rank, size;
	char *buffer;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (size != 2 || seconds <= 0 || largest < SMALLEST || largest > (1L << 30)) {
		if (rank == 0)
			fprintf(stderr, "pingpong: needs exactly 2 ranks (got %d), a positive time and a size of %d bytes to 1 GiB\n", size, SMALLEST);
		MPI_Finalize();
		return 2;
	}
	buffer = malloc(largest);
	if (!buffer) {
		fprintf(stderr, "pingpong: no memory for a buffer of %ld bytes\n", largest);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	memset(buffer, 1, largest);
	header(rank);

	for (long bytes = SMALLEST; bytes <= largest; bytes *= 2) {
		long trips = warm_up(buffer, bytes, seconds, rank);
		double half[REPETITIONS];

		for (int i = 0; i < REPETITIONS; i++) {
			MPI_Barrier(MPI_COMM_WORLD);
			half[i] = loop(buffer, bytes, trips, rank) / 2;
		}
		qsort(half, REPETITIONS, sizeof half[0], ascending);
		if (rank == 0) {
			double median = half[REPETITIONS / 2];

			printf("{\"bytes\":%ld,\"latency_us\":%.4f,\"bandwidth_mb_per_s\":%.4f,\"fastest_us\":%.4f,\"slowest_us\":%.4f,\"round_trips\":%ld}\n",
			       bytes, median * 1e6, bytes / median / 1e6, half[0] * 1e6, half[REPETITIONS - 1] * 1e6, trips);
			fflush(stdout);
		}
	}
	free(buffer);
	MPI_Finalize();
	return 0;
}
