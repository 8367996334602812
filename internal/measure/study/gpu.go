package study

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/measure"
)

// Kernels are the classic kernels that a study of GPUs runs, by name.
var Kernels = []string{"backprop", "bfs", "cfd", "hotspot", "lud", "nn", "nw", "pathfinder"}

// The ways to a GPU. The first is what the others are compared with.
const (
	local   = "local"
	memory  = "shared memory"
	tcp     = "TCP"
	network = "network"
)

// GPU is a study of one GPU by several ways: the same kernels with the machine's own driver, by a server on the machine, and in a member of a cluster.
type GPU struct {
	// Out is the directory of the results. Runs that are there count, if they are of the same study.
	Out string
	// Programs is the folder with the programs of remote GPUs.
	Programs string
	// API is opencl or cuda, Size one of the kernels' sizes.
	API, Size string
	// Kernels are those to run; none: all.
	Kernels []string
	Rounds  int
	// Member is a member of a cluster with a remote GPU, as people name it, and InMember runs a shell script there and returns what it prints. nil: no way
	// is by the network.
	Member   string
	InMember func(ctx context.Context, script string) ([]byte, error)
	// Expected is what the member's GPU was expected to cost when it was chosen, in times of a local one, 0 where nothing was; nil: there is no member.
	Expected func(ctx context.Context) (float64, error)
	// Say tells of progress.
	Say func(format string, args ...any)
}

// Validate returns what is wrong with a study.
func (s GPU) Validate() error {
	var errs []error
	if s.API != "opencl" && s.API != "cuda" {
		errs = append(errs, fmt.Errorf("%q is no API of GPUs: write opencl or cuda", s.API))
	}
	if sizes := []string{"test", "published", "large"}; !slices.Contains(sizes, s.Size) {
		errs = append(errs, fmt.Errorf("%q is no size: write %s", s.Size, strings.Join(sizes, ", ")))
	}
	for i, k := range s.Kernels {
		if !slices.Contains(Kernels, k) {
			errs = append(errs, fmt.Errorf("%q is none of the kernels %s", k, strings.Join(Kernels, ", ")))
		} else if slices.Contains(s.Kernels[:i], k) {
			errs = append(errs, fmt.Errorf("kernel %s is named twice", k))
		}
	}
	if s.Rounds < 2 {
		errs = append(errs, fmt.Errorf("%d rounds: an interval needs at least 2, better 6", s.Rounds))
	}
	return errors.Join(errs...)
}

// gpuHead tells studies of GPUs apart.
type gpuHead struct {
	Study   string   `json:"study"`
	API     string   `json:"api"`
	Size    string   `json:"size"`
	Kernels []string `json:"kernels"`
	Rounds  int      `json:"rounds"`
	Member  string   `json:"member,omitempty"`
}

// gpuRun is one run of a kernel by one way: its problems, and each call of the API.
type gpuRun struct {
	Side      string       `json:"side"`
	Pair      int          `json:"pair"`
	Kernel    string       `json:"kernel"`
	StartedAt time.Time    `json:"started_at"`
	Seconds   float64      `json:"duration_seconds"`
	Device    string       `json:"device"`
	Host      string       `json:"host"`
	Problems  []gpuProblem `json:"problems"`
	// OthersCPUSeconds are what all other processes of this machine computed meanwhile; of a run in a member, its own processes, too.
	OthersCPUSeconds float64 `json:"others_cpu_s"`
	// ServerAddress is the server that a run in a member used.
	ServerAddress string `json:"server_address,omitempty"`
}

// Run runs the study, or what is left of it, and writes runs.jsonl, report.json, report.html and report.txt into Out. It returns the report.
func (s GPU) Run(ctx context.Context) (measure.Report, error) {
	if err := s.Validate(); err != nil {
		return measure.Report{}, err
	}
	if len(s.Kernels) == 0 {
		s.Kernels = Kernels
	}
	if err := os.MkdirAll(s.Out, 0o755); err != nil {
		return measure.Report{}, err
	}
	record, err := openRecord[gpuRun](s.Out, gpuHead{Study: "gpu", API: s.API, Size: s.Size, Kernels: s.Kernels, Rounds: s.Rounds, Member: s.Member})
	if err != nil {
		return measure.Report{}, err
	}
	if err := errors.Join(s.measureMissing(ctx, record), record.close()); err != nil {
		return measure.Report{}, err
	}
	expected := 0.0
	if s.Expected != nil {
		if expected, err = s.Expected(ctx); err != nil {
			return measure.Report{}, fmt.Errorf("what was expected of the GPU of %s: %w", s.Member, err)
		}
	}
	return s.report(record.runs, expected)
}

func (s GPU) sides() []string {
	sides := []string{local, memory, tcp}
	if s.InMember != nil {
		sides = append(sides, network)
	}
	return sides
}

// measureMissing does all runs that the record lacks. The ways take turns at each kernel, so that what changes on the machine meanwhile meets all.
func (s GPU) measureMissing(ctx context.Context, record *record[gpuRun]) error {
	var w *gpuWays
	defer func() {
		if w != nil {
			w.close()
		}
	}()
	all, done := s.Rounds*len(s.sides())*len(s.Kernels), 0
	for pair, order := range measure.Schedule(s.sides(), s.Rounds) {
		for _, kernel := range s.Kernels {
			for _, side := range order {
				done++
				if record.has(func(r gpuRun) bool { return r.Side == side && r.Pair == pair && r.Kernel == kernel }) {
					continue
				}
				if w == nil {
					var err error
					s.Say("starting a GPU server on this machine")
					if w, err = s.openWays(ctx); err != nil {
						return err
					}
				}
				run, err := w.run(ctx, side, kernel)
				if err == nil {
					err = alike(record.runs, run)
				}
				if err != nil {
					return fmt.Errorf("round %d of %d, %s, by %s: %w", pair+1, s.Rounds, kernel, side, err)
				}
				run.Pair = pair
				if err := record.add(run); err != nil {
					return err
				}
				s.Say("run %d of %d: %s", done, all, run.line())
			}
		}
	}
	return nil
}

// alike refuses a run that can't be compared with those before it: of another device, of another machine, or of other problems.
func alike(before []gpuRun, run gpuRun) error {
	for _, b := range before {
		switch {
		case (b.Side == network) != (run.Side == network):
		case b.Device != run.Device || b.Host != run.Host:
			return fmt.Errorf("it ran on %q of %q, and runs by %s on %q of %q; measure one device at a time, each in a directory of its own", run.Device, run.Host, b.Side, b.Device, b.Host)
		}
		if b.Kernel == run.Kernel && !slices.EqualFunc(b.Problems, run.Problems, func(a, b gpuProblem) bool { return a.Problem == b.Problem }) {
			return fmt.Errorf("its problems are not those by %s: the programs of remote GPUs are of another version", b.Side)
		}
	}
	return nil
}

// line is a run for people.
func (r gpuRun) line() string {
	said := fmt.Sprintf("%s by %s:", r.Kernel, r.Side)
	for _, p := range r.Problems {
		said += fmt.Sprintf(" %.3g ms,", p.WorkSeconds*1e3)
	}
	return said[:len(said)-1]
}
