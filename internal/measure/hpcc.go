package measure

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"strings"
	"text/template"
	"time"
)

// HPC Challenge is the benchmark suite behind Debian's package hpcc: HPL solves a dense system of linear equations over all ranks,
// STREAM moves vectors through memory, one rank beside the other. The suite can't be told to run these two only, so the size of
// the problem is chosen such that a whole run ends soon (PlanHPCC).

//go:embed mpi/hpcc.sh.tmpl
var hpccScript string

// Names of the metrics taken from HPC Challenge.
const (
	HPLGflops         = "hpl_gflops"
	StreamTriadGBPerS = "stream_triad_gb_per_s"
)

// HPCCMetrics are what is compared of an HPC Challenge run.
func HPCCMetrics() []Metric {
	return []Metric{
		{Name: HPLGflops, Title: "HPL", Unit: "Gflop/s", HigherIsBetter: true},
		{Name: StreamTriadGBPerS, Title: "STREAM triad of hpcc, in caches, per rank", Unit: "GB/s", HigherIsBetter: true},
	}
}

// HPCCAxis is the X axis of HPC Challenge runs: the number of ranks.
func HPCCAxis() Axis { return Axis{Name: "Ranks", Unit: "ranks"} }

// ErrNoHPCC: the benchmark is not installed.
var ErrNoHPCC = errors.New("hpcc, the HPC Challenge benchmark, is not installed; run: apt-get install hpcc")

// FindHPCC tells whether the benchmark is installed on this machine; ErrNoHPCC when it is not. Members of the environment "local"
// have what the machine has.
func FindHPCC() error {
	if _, err := exec.LookPath("hpcc"); err != nil {
		return ErrNoHPCC
	}
	return nil
}

// HPCC is one setting of HPC Challenge. Both sides of a comparison run the same one.
type HPCC struct {
	// N is the order of HPL's matrix, NB the block its columns are dealt out by, P x Q the grid of ranks.
	N, NB, P, Q int
	// Solves is how often HPL solves its system in one run, of which the fastest counts; 0 is once.
	Solves int
}

// Ranks is how many ranks it is for.
func (h HPCC) Ranks() int { return h.P * h.Q }

// solves is Solves with its default.
func (h HPCC) solves() int { return max(1, h.Solves) }

// hpccBlock suits a BLAS without tuning, such as the reference implementation.
const hpccBlock = 80

// What a run takes, measured with 2 ranks over TCP on the loopback interface (an EPYC's cores, reference BLAS): it chooses a size that
// fits a budget and promises nothing. RandomAccess takes most of it; its table is the largest power of two of words that is no
// larger than the matrix, hence the steps.
const (
	hpccFixed      = 2 * time.Second
	hpccPerWord    = 10 * time.Microsecond
	hpccFlopsARank = 1e9
)

// Expected is about how long a run takes.
func (h HPCC) Expected() time.Duration {
	words, table := float64(h.N)*float64(h.N), 1.0
	for 2*table <= words {
		table *= 2
	}
	solve := 2.0 / 3 * words * float64(h.N) / (hpccFlopsARank * float64(h.Ranks()))
	return hpccFixed + time.Duration(table*float64(hpccPerWord)) + time.Duration(float64(h.solves())*solve*float64(time.Second))
}

// PlanHPCC chooses the largest problem for this many ranks that takes about the budget or less and a quarter of the memory a rank has,
// so that the suite's other tests and MPI have room.
func PlanHPCC(ranks int, memoryPerRank int64, budget time.Duration) (HPCC, error) {
	if ranks < 1 {
		return HPCC{}, fmt.Errorf("HPC Challenge needs 1 rank or more, not %d", ranks)
	}
	h := HPCC{NB: hpccBlock, P: 1}
	for p := 2; p*p <= ranks; p++ {
		if ranks%p == 0 {
			h.P = p // as square as it gets, with P <= Q (HPL's tuning.html)
		}
	}
	h.Q = ranks / h.P
	best := HPCC{}
	for h.N = h.NB * h.Q; h.Expected() <= budget && int64(h.N)*int64(h.N)*8/int64(ranks) <= memoryPerRank/4; h.N += h.NB {
		best = h
	}
	if best.N == 0 {
		return HPCC{}, fmt.Errorf("no HPC Challenge problem for %d ranks takes %v or less and fits %d bytes of memory a rank", ranks, budget, memoryPerRank)
	}
	return best, nil
}

// hplMargin is how much longer than asked for a planned problem takes by the pace of the trial: a larger matrix is solved at a somewhat
// higher rate.
const hplMargin = 1.4

// PlanHPL chooses a problem whose solution takes at least so long by the pace of a trial, as far as a rank's memory allows; it is solved once.
// The time grows with the cube of the order (HPL's operation count is 2/3 N^3).
func PlanHPL(trial HPCCResult, memoryPerRank int64, atLeast time.Duration) (HPCC, error) {
	if !(trial.HPLSeconds > 0) {
		return HPCC{}, fmt.Errorf("the trial says that HPL took %v s", trial.HPLSeconds)
	}
	h := trial.Setting
	h.Solves = 1
	blocks := math.Cbrt(hplMargin*atLeast.Seconds()/trial.HPLSeconds) * float64(h.N) / float64(h.NB)
	// Half of a rank's memory, because the suite's other tests take as much again.
	most := math.Sqrt(float64(memoryPerRank)/2*float64(h.Ranks())/8) / float64(h.NB)
	h.N = h.NB * max(1, int(math.Min(math.Ceil(blocks), math.Floor(most))))
	return h, nil
}

// Input is the file hpccinf.txt of this setting (README of HPC Challenge, "Runtime Configuration").
func (h HPCC) Input() []byte {
	var b bytes.Buffer
	for _, line := range []string{
		"HPLinpack benchmark input file", "written by nearmetal", "hpccoutf.txt output file name (ignored)", "8 device out (ignored)",
		fmt.Sprintf("%d # of problems sizes (N)", h.solves()), strings.Repeat(fmt.Sprintf("%d ", h.N), h.solves()) + "Ns", "1 # of NBs", fmt.Sprintf("%d NBs", h.NB),
		"0 PMAP process mapping (0=Row-,1=Column-major)", "1 # of process grids (P x Q)", fmt.Sprintf("%d Ps", h.P), fmt.Sprintf("%d Qs", h.Q),
		fmt.Sprintf("%.1f threshold", hplThreshold), "1 # of panel fact", "2 PFACTs (0=left, 1=Crout, 2=Right)",
		"1 # of recursive stopping criterium", "4 NBMINs (>= 1)", "1 # of panels in recursion", "2 NDIVs",
		"1 # of recursive panel fact.", "1 RFACTs (0=left, 1=Crout, 2=Right)",
		"1 # of broadcast", "1 BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)", "1 # of lookahead depth", "1 DEPTHs (>=0)",
		"2 SWAP (0=bin-exch,1=long,2=mix)", "64 swapping threshold", "0 L1 in (0=transposed,1=no-transposed) form",
		"0 U in (0=transposed,1=no-transposed) form", "1 Equilibration (0=no,1=yes)", "8 memory alignment in double (> 0)",
		"##### This line (no. 32) is ignored #####",
		"0 Number of additional problem sizes for PTRANS", "1200 values of N", "0 number of additional blocking sizes for PTRANS", "40 values of NB",
	} {
		b.WriteString(line + "\n")
	}
	return b.Bytes()
}

// Script is a program for mpirun to start as every rank, on either side: it runs hpcc with this setting in a directory of its own and
// prints what the benchmark wrote, which ParseHPCC reads. Put it into an executable file that all ranks can read.
func (h HPCC) Script() ([]byte, error) {
	t, err := template.New("hpcc").Parse(hpccScript)
	if err != nil {
		return nil, fmt.Errorf("the template of HPC Challenge's script is broken: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, strings.TrimSuffix(string(h.Input()), "\n")); err != nil {
		return nil, fmt.Errorf("HPC Challenge's script can't be written: %w", err)
	}
	return b.Bytes(), nil
}
