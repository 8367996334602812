package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// The sides of the comparison. Reference is measured once and compared with nothing.
const (
	hostSide    = "host"
	clusterSide = "cluster"
	memorySide  = "shared memory"
)

// goal is the efficiency container members are built for.
const goal = 0.99

// measure runs the ping-pong on both sides in turn and reports.
func (v *visit) measure(ctx context.Context) error {
	program, err := v.install(v.programs.PingPong)
	if err != nil {
		return err
	}
	cpus, err := v.memberCPUs()
	if err != nil {
		return err
	}
	e := v.experiment(cpus)
	sides := map[string]func(context.Context) ([]byte, error){
		hostSide:    func(ctx context.Context) ([]byte, error) { return v.onHost(ctx, cpus, measure.TransportTCP) },
		memorySide:  func(ctx context.Context) ([]byte, error) { return v.onHost(ctx, cpus, measure.TransportSharedMemory) },
		clusterSide: func(ctx context.Context) ([]byte, error) { return v.onCluster(ctx, program) },
	}
	what := fmt.Sprintf("measuring ping-pong, %d pairs of host and cluster in turn on CPUs %s", v.opts.Pairs, list(cpus))
	err = v.step(what, func() error {
		for pair, order := range measure.Schedule([]string{hostSide, clusterSide}, v.opts.Pairs) {
			for _, side := range order {
				run, output, err := timed(ctx, side, pair, sides[side])
				if err != nil {
					return err
				}
				e.Runs = append(e.Runs, run)
				if len(e.Runs) == 1 {
					e.Conditions = append(e.Conditions, measure.Condition{Name: "MPI", Value: mpiVersion(output)})
				}
			}
			v.say("pair %d of %d: %s", pair+1, v.opts.Pairs, headline(e.Runs[len(e.Runs)-2:]))
		}
		run, _, err := timed(ctx, memorySide, 0, sides[memorySide])
		e.Runs = append(e.Runs, run)
		return err
	})
	if err != nil {
		return err
	}
	return v.publish(e)
}

// memberCPUs returns the CPU of each rank's member.
func (v *visit) memberCPUs() ([]int, error) {
	cpus := make([]int, members)
	for _, m := range v.cluster.Status.Members {
		if m.Rank >= members || len(m.CPUs) == 0 {
			return nil, fmt.Errorf("member %s has rank %d and CPUs %v; it should have one core of %d members", m.Name, m.Rank, m.CPUs, members)
		}
		cpus[m.Rank] = m.CPUs[0]
	}
	return cpus, nil
}

func (v *visit) arguments() []string {
	return []string{strconv.Itoa(v.milliseconds())}
}

func (v *visit) milliseconds() int {
	if v.opts.SizeMilliseconds > 0 {
		return v.opts.SizeMilliseconds
	}
	return 100
}

func (v *visit) onHost(ctx context.Context, cpus []int, transport measure.Transport) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, jobWindow)
	defer cancel()
	cmd := measure.HostCommand(ctx, cpus, transport, v.scratch, v.programs.PingPong, v.arguments()...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("the ping-pong on the bare host over %s: %w: %s", transport, err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

func (v *visit) onCluster(ctx context.Context, program string) ([]byte, error) {
	var out bytes.Buffer
	request := api.JobRequest{
		Command: append([]string{program}, v.arguments()...), Ranks: members, Env: measure.TransportTCP.Environment("eth0"),
	}
	if err := v.run(ctx, request, &out); err != nil {
		return nil, fmt.Errorf("the ping-pong on the cluster: %w; it printed: %s", err, strings.TrimSpace(out.String()))
	}
	return out.Bytes(), nil
}

func timed(ctx context.Context, side string, pair int, run func(context.Context) ([]byte, error)) (measure.Run, []byte, error) {
	start := time.Now()
	output, err := run(ctx)
	if err != nil {
		return measure.Run{}, nil, err
	}
	points, err := measure.ParsePoints(output, measure.LatencyUS, measure.BandwidthMBPerS)
	if err != nil {
		return measure.Run{}, nil, fmt.Errorf("%s, pair %d: %w", side, pair+1, err)
	}
	return measure.Run{Side: side, Pair: pair, StartedAt: start, DurationSeconds: time.Since(start).Seconds(), Points: points}, output, nil
}

// headline says what a pair measured at the smallest and the largest size.
func headline(runs []measure.Run) string {
	runs = slices.Clone(runs)
	slices.SortFunc(runs, func(a, b measure.Run) int { return -strings.Compare(a.Side, b.Side) }) // host first
	parts := make([]string, 0, len(runs))
	for _, r := range runs {
		first, last := r.Points[0], r.Points[len(r.Points)-1]
		parts = append(parts, fmt.Sprintf("%s %.1f µs, %.0f MB/s", r.Side, first.Values[measure.LatencyUS], last.Values[measure.BandwidthMBPerS]))
	}
	return strings.Join(parts, "; ")
}

// publish writes the table and the report's files.
func (v *visit) publish(e measure.Experiment) error {
	report, err := measure.NewReport(e, 0)
	if err != nil {
		return err
	}
	var table, page, data bytes.Buffer
	if err := errors.Join(report.WriteText(&table), measure.WriteHTML(&page, e.Title, time.Now(), report), report.WriteJSON(&data)); err != nil {
		return err
	}
	v.show(table.String())
	for path, content := range map[string][]byte{v.report.html: page.Bytes(), v.report.json: data.Bytes()} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return fmt.Errorf("the report can't be written: %w", err)
		}
	}
	v.say("report: %s (data: %s)", v.report.html, v.report.json)
	return nil
}

// isGone tells whether the API said that there is no such cluster.
func isGone(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Status == http.StatusNotFound
}
