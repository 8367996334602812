/* Two ranks exchange 4 KiB back and forth 100 times; rank 0 says so. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	static char buffer[4096];
	int rank;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int i = 0; i < 100; i++) {
		if (rank == 0)
			MPI_Send(buffer, sizeof buffer, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
		MPI_Recv(buffer, sizeof buffer, MPI_CHAR, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank == 1)
			MPI_Send(buffer, sizeof buffer, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
	}
	if (rank == 0)
		printf("exchanged 100 messages\n");
	MPI_Finalize();
	return 0;
}
