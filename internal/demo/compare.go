package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// The sides of the comparisons. The memory side is measured once and compared with nothing.
const (
	hostSide    = "host"
	clusterSide = "cluster"
	memorySide  = "shared memory"
)

// goal is the efficiency container members are built for.
const goal = 0.99

// sides describes the two sides that are compared, and what carries the messages between their ranks.
func sides(cpus []int, transport measure.Transport) []measure.Side {
	host, cluster := "Open MPI btl tcp,self over lo", "Open MPI btl tcp,self over eth0 (veth, and past the bridge)"
	if transport != measure.TransportTCP {
		host, cluster = "through shared memory", "what Open MPI chooses there by itself"
	}
	if transport == measure.TransportUCX {
		host = "what UCX chooses there by itself"
	}
	return []measure.Side{
		{Name: hostSide, Description: fmt.Sprintf("bare processes on CPUs %s; %s", list(cpus), host)},
		{Name: clusterSide, Description: fmt.Sprintf("container members on CPUs %s, one core each, on one node; %s", list(cpus), cluster)},
	}
}

// terms says how two sides are measured: how often, where, and what else the machine does.
func terms(pairs int, cpus []int) string {
	return fmt.Sprintf("%d pairs of host and cluster in turn, both on CPUs %s; load of the machine before: %s", pairs, list(cpus), load())
}

// inTurn measures host and cluster in turn and tells of every pair. Fewer pairs than asked for are left when the machine is too busy.
func (v *visit) inTurn(ctx context.Context, p measure.Pairs, line func(measure.Run) string) ([]measure.Run, error) {
	p.Sides, p.Now = []string{hostSide, clusterSide}, time.Now
	began := p.Now()
	p.Done = func(pair int, runs []measure.Run) {
		runs = slices.Clone(runs)
		slices.SortFunc(runs, func(a, b measure.Run) int { return -strings.Compare(a.Side, b.Side) }) // host first
		parts := make([]string, 0, len(runs))
		for _, r := range runs {
			parts = append(parts, r.Side+" "+line(r))
		}
		v.say("pair %d of %d: %s%s", pair+1, p.Count, strings.Join(parts, "; "), timeLeft(p.Now().Sub(began), pair+1, p.Count))
	}
	runs, err := p.Measure(ctx)
	v.measured += p.Now().Sub(began)
	if err == nil && len(runs) < 2*p.Count {
		v.say("stopped after %d of %d pairs: the time limit of %s has passed; this machine is busy or slow", len(runs)/2, p.Count, p.Patience.Round(time.Second))
	}
	return runs, err
}

// timeLeft says how long the pairs to come take at the pace of those done; nothing where that is too short to matter.
func timeLeft(spent time.Duration, done, of int) string {
	left := spent / time.Duration(done) * time.Duration(of-done)
	switch {
	case left < 30*time.Second:
		return ""
	case left < 2*time.Minute:
		return fmt.Sprintf(" (about %.0f s left)", left.Round(10*time.Second).Seconds())
	default:
		return fmt.Sprintf(" (about %.0f min left)", left.Minutes())
	}
}

// memberCPUs returns the CPU of each rank's member. Between nodes of a site on one machine messages cross a tunnel that no host has,
// so members on two nodes are not measured.
func (v *visit) memberCPUs() ([]int, error) {
	cpus := make([]int, members)
	for _, m := range v.cluster.Status.Members {
		if m.Rank >= members || len(m.CPUs) == 0 {
			return nil, fmt.Errorf("member %s has rank %d and CPUs %v; it should have one core of %d members", m.Name, m.Rank, m.CPUs, members)
		}
		if first := v.cluster.Status.Members[0]; m.Node != first.Node {
			return nil, fmt.Errorf("members %s and %s are on nodes %s and %s; the measurement needs both on one node", first.Name, m.Name, first.Node, m.Node)
		}
		cpus[m.Rank] = m.CPUs[0]
	}
	return cpus, nil
}

// onHost runs a program on the bare host, a rank on each of the CPUs.
func (v *visit) onHost(cpus []int, transport measure.Transport, program string, args ...string) measure.Runner {
	return func(ctx context.Context) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, v.jobWindow())
		defer cancel()
		cmd := measure.HostCommand(ctx, cpus, transport, v.scratch, program, args...)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("on the bare host over %s: %w: %s", transport, err, ending(stderr.String()))
		}
		return append(stdout.Bytes(), stderr.Bytes()...), nil // where MPI says what carried the messages
	}
}

// onCluster runs a program as a job of the cluster, a rank on each member.
func (v *visit) onCluster(transport measure.Transport, program string, args ...string) measure.Runner {
	return func(ctx context.Context) ([]byte, error) {
		var out bytes.Buffer
		request := api.JobRequest{
			Command: append([]string{program}, args...), Ranks: members, Env: transport.Environment("eth0"),
		}
		if err := v.run(ctx, request, &out); err != nil {
			return nil, fmt.Errorf("on the cluster: %w; its output ends with: %s", err, ending(out.String()))
		}
		return out.Bytes(), nil
	}
}

// jobWindow is how long one run of a program may take.
func (v *visit) jobWindow() time.Duration {
	if v.opts.Thorough {
		return thoroughWindow
	}
	return runWindow
}

// ending is the end of what a program printed, for an error.
func ending(text string) string {
	const most = 1000
	text = strings.TrimSpace(text)
	if len(text) > most {
		text = "..." + text[len(text)-most:]
	}
	return text
}

// publish shows what was measured, and writes the report's files anew with all that was measured so far.
func (v *visit) publish(e measure.Experiment, wanted int) error {
	if pairs := countRuns(e, clusterSide); pairs < wanted {
		e.Conditions = append(e.Conditions, measure.Condition{
			Name: "Pairs", Value: fmt.Sprintf("%d of %d; this machine was too busy, or is too slow, for more within the time limit", pairs, wanted),
		})
	}
	report, err := measure.NewReport(e, 0)
	if err != nil {
		return err
	}
	v.reports = append(v.reports, report)
	var table, page, data bytes.Buffer
	err = errors.Join(report.WriteText(&table), measure.WriteJSON(&data, v.reports...),
		measure.WriteHTML(&page, "A container cluster and the bare host, on the same cores", time.Now(), v.reports...))
	if err != nil {
		return err
	}
	v.show(table.String())
	for path, content := range map[string][]byte{v.files.html: page.Bytes(), v.files.json: data.Bytes()} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return fmt.Errorf("the report can't be written: %w", err)
		}
	}
	v.say("report: %s (data: %s)", v.files.html, v.files.json)
	return nil
}

func countRuns(e measure.Experiment, side string) int {
	count := 0
	for _, r := range e.Runs {
		if r.Side == side {
			count++
		}
	}
	return count
}

// isGone tells whether the API said that there is no such cluster.
func isGone(err error) bool {
	var e *client.Error
	return errors.As(err, &e) && e.Status == http.StatusNotFound
}
