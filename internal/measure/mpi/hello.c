/*
 * hello: every rank says who and where it is. Rank 0 prints all lines in rank order, so that the output is the same every time.
 */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
	char name[MPI_MAX_PROCESSOR_NAME] = "";
	int rank, size, length;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Get_processor_name(name, &length);

	if (rank != 0) {
		MPI_Send(name, sizeof name, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
	} else {
		for (int i = 0; i < size; i++) {
			if (i > 0)
				MPI_Recv(name, sizeof name, MPI_CHAR, i, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			printf("Hello from rank %d of %d on %s\n", i, size, name);
		}
	}
	MPI_Finalize();
	return 0;
}
