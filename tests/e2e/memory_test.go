package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// exchange sends 64 messages of 1 MiB from rank 0 to rank 1.
const exchange = `#include <mpi.h>
#include <stdlib.h>
int main(int argc, char **argv) {
	int rank;
	char *buffer = calloc(1, 1 << 20);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int i = 0; i < 64; i++)
		if (rank == 0)
			MPI_Send(buffer, 1 << 20, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
		else
			MPI_Recv(buffer, 1 << 20, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Finalize();
}`

// TestRanksOnOneNodeExchangeMessagesThroughMemory counts what comes over the members' network: nearly nothing where they share memory, and
// all of it where they do not, without a flag of mpirun in either case.
func TestRanksOnOneNodeExchangeMessagesThroughMemory(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "exchange.c"), filepath.Join(dir, "exchange")
	if err := os.WriteFile(source, []byte(exchange), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mpicc", "-O1", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("mpicc: %v: %s", err, out)
	}
	s := startSite(t, 1)
	for _, tt := range []struct {
		flag        string
		least, most int
	}{
		{"--share-memory", 0, 4 << 20}, // what mpirun itself says to its daemons
		{"--share-memory=false", 64 << 20, 1 << 40},
	} {
		s.must("cluster", "create", "c1", "--size", "2", "--cores", "1", "--memory", "512MiB", tt.flag)
		s.must("cp", binary, "c1:exchange")
		received := func() int {
			n := 0
			printed := s.must("run", "c1", "-n", "2", "--", "cat", "/sys/class/net/eth0/statistics/rx_bytes")
			for field := range strings.FieldsSeq(openMPIWarning.ReplaceAllString(printed, "")) {
				one, err := strconv.Atoi(field)
				if err != nil {
					t.Fatal(err)
				}
				n += one
			}
			return n
		}
		before := received()
		s.must("run", "c1", "-n", "2", "--", "./exchange")
		if got := received() - before; got < tt.least || got > tt.most {
			t.Errorf("%s: %d bytes came over the network while 64 MiB were sent, want %d to %d", tt.flag, got, tt.least, tt.most)
		}
		s.must("cluster", "delete", "c1", "--yes")
	}
}
