package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/agent"
	"github.com/nearmetal/nearmetal/internal/agent/agenttest"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/measure"
)

const (
	// A cluster of thousandMembers lies on thousandNodes simulated nodes, with as many on each.
	thousandMembers, thousandNodes = 1000, 100
	thousandRounds                 = 3
	// thousandLimit is how long all of it may take.
	thousandLimit = 8 * time.Minute
)

// thousand measures how long the control plane takes for a cluster of 1,000 members, and how much of the server's processor. The server is
// the real program, with its store and its streams. Nodes are agents in this process, which speak to it as real ones do; only what they
// make, members and networks, is pretended.
func thousand(ctx context.Context, o options, log *slog.Logger, text *bytes.Buffer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, thousandLimit)
	defer cancel()
	dir, err := os.MkdirTemp("", "nm") // short, since sockets of members are in it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := startServer(ctx, o.nearmetal, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	nodes := &pretended{}
	defer func() { err = errors.Join(err, nodes.stop()) }()
	for i := range thousandNodes {
		if err := nodes.start(ctx, s, dir, i); err != nil {
			return err
		}
	}
	if err := s.nodesReady(ctx, thousandNodes); err != nil {
		return err
	}
	log.Info("simulated nodes are ready", "nodes", thousandNodes)
	var runs []thousandRun
	for round := range thousandRounds {
		run, err := s.thousandOnce(ctx)
		if err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
		log.Info("made and removed a cluster", "members", thousandMembers, "ready_seconds", run.ready, "gone_seconds", run.gone)
		runs = append(runs, run)
	}
	text.WriteString(thousandText(runs))
	return nil
}

// thousandRun is one cluster's life: seconds until ready and until gone, and the server's processor time in each.
type thousandRun struct {
	ready, gone       float64
	readyCPU, goneCPU float64
	trace             api.Trace
}

// startServer starts `nearmetal server` alone, without a node.
func startServer(ctx context.Context, program, dir string) (*simulatedSite, error) {
	listen, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "server.log"))
	if err != nil {
		return nil, err
	}
	s := &simulatedSite{site: site{log: log, memory: 64 << 20}, listen: listen}
	s.process = exec.Command(program, "server", "--state", dir, "--listen", listen, "--log-level", "warn") //nolint:noctx // ends in order
	s.process.Stdout, s.process.Stderr = log, log
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.process.Start(); err != nil {
		return nil, fmt.Errorf("nearmetal server can't be started (build it first: make build): %w", err)
	}
	if s.client, err = client.New(client.Options{Addr: "unix:" + filepath.Join(dir, config.SocketName)}); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	if err := s.nodesReady(ctx, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("nearmetal server: %w; its log: %s", err, endOf(log.Name())), s.stop())
	}
	return s, nil
}

// simulatedSite is a server whose nodes are pretended.
type simulatedSite struct {
	site
	listen string
}

// thousandOnce makes a cluster and removes it.
func (s *simulatedSite) thousandOnce(ctx context.Context) (thousandRun, error) {
	var r thousandRun
	timed := func(do func() error) (seconds, cpu float64, err error) {
		before, err := processorTime(s.process.Process.Pid)
		if err != nil {
			return 0, 0, err
		}
		start := time.Now()
		if err := do(); err != nil {
			return 0, 0, err
		}
		seconds = time.Since(start).Seconds()
		after, err := processorTime(s.process.Process.Pid)
		return seconds, after - before, err
	}
	var err error
	if r.ready, r.readyCPU, err = timed(func() error { return s.Create(ctx, thousandMembers) }); err != nil {
		return r, fmt.Errorf("create: %w", err)
	}
	if r.gone, r.goneCPU, err = timed(func() error { return s.Delete(ctx) }); err != nil {
		return r, fmt.Errorf("delete: %w", err)
	}
	r.trace, err = s.client.ClusterTrace(ctx, clusterName)
	return r, err
}

// pretended are nodes whose agents run in this process.
type pretended struct {
	ends   []context.CancelFunc
	agents sync.WaitGroup

	mu  sync.Mutex
	err error
}

// start enrolls a node and starts its agent.
func (p *pretended) start(ctx context.Context, s *simulatedSite, dir string, number int) error {
	name := fmt.Sprintf("n%03d", number)
	record := api.NodeRecord{
		Name: name, Underlay: fmt.Sprintf("198.18.%d.%d", number/250, number%250+1), AgentVersion: "bench",
		Capacity: api.NodeCapacity{MemoryBytes: 8 << 30, NUMANodes: []api.NUMANode{{MemoryBytes: 8 << 30}}},
	}
	for slot := range thousandMembers / thousandNodes {
		record.Capacity.Cores = append(record.Capacity.Cores, api.Core{Slot: slot, CPU: slot})
	}
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	p.ends = append(p.ends, end)
	members, networks := agenttest.Pretended(ctx)
	cfg := agent.Config{
		Node: record, StateDir: filepath.Join(dir, name), HomeDir: filepath.Join(dir, "home"), Fabric: networks,
		Drivers: []driver.Driver{members},
		Inspect: func(context.Context) []api.EnvironmentOnNode {
			return []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackContainer}, OK: true}}
		},
		Log: slog.New(slog.DiscardHandler),
	}
	if err := os.MkdirAll(cfg.StateDir, 0o711); err != nil {
		return err
	}
	known, err := agent.OpenCredentials(ctx, config.Agent{StateDir: dir, Server: s.listen, Name: name}, cfg.StateDir, cfg.Log)
	if err != nil {
		return fmt.Errorf("enrolling simulated node %s: %w", name, err)
	}
	known.Use(&cfg)
	p.agents.Go(func() {
		if err := agent.Run(ctx, cfg); err != nil && !errors.Is(err, context.Canceled) {
			p.mu.Lock()
			p.err = errors.Join(p.err, fmt.Errorf("simulated node %s: %w", name, err))
			p.mu.Unlock()
		}
	})
	return nil
}

// stop ends all agents and returns what went wrong with any.
func (p *pretended) stop() error {
	for _, end := range p.ends {
		end()
	}
	p.agents.Wait()
	return p.err
}

// thousandText tells what came out, and the stages of the last round.
func thousandText(runs []thousandRun) string {
	var b strings.Builder
	column := func(of func(thousandRun) float64) string {
		values := make([]float64, len(runs))
		for i, r := range runs {
			values[i] = of(r)
		}
		return fmt.Sprintf("%.2f s (%.2f to %.2f)", measure.Median(values), measure.Quantile(values, 0), measure.Quantile(values, 1))
	}
	fmt.Fprintf(&b, "A cluster of %d members on %d simulated nodes, real server and streams, %d rounds on %s at load %s; the nodes' agents take processor time, too\n",
		thousandMembers, thousandNodes, len(runs), coresOf(), load())
	fmt.Fprintf(&b, "  request to ready %s, of which the server computes %s\n", column(func(r thousandRun) float64 { return r.ready }),
		column(func(r thousandRun) float64 { return r.readyCPU }))
	fmt.Fprintf(&b, "  delete to gone   %s, of which the server computes %s\n", column(func(r thousandRun) float64 { return r.gone }),
		column(func(r thousandRun) float64 { return r.goneCPU }))
	b.WriteString("  stages of the last round, in seconds: number, first begin, last end, median and longest\n")
	for _, stage := range stagesOf(runs[len(runs)-1].trace) {
		fmt.Fprintf(&b, "    %-20s %5d %8.3f %8.3f %8.3f %8.3f\n", stage.name, len(stage.seconds), stage.begin, stage.end,
			measure.Median(stage.seconds), measure.Quantile(stage.seconds, 1))
	}
	if failed, first := failuresOf(runs[len(runs)-1].trace); failed > 0 {
		fmt.Fprintf(&b, "  %d stages failed and were repeated, such as: %s\n", failed, first)
	}
	b.WriteString("\n")
	return b.String()
}

// failuresOf counts the spans that failed, and describes the first.
func failuresOf(t api.Trace) (failed int, first string) {
	for _, span := range t.Spans {
		if span.Failure == "" {
			continue
		}
		if failed++; failed == 1 {
			first = fmt.Sprintf("%s of %s on %s: %s", span.Name, span.Member, span.Node, span.Failure)
		}
	}
	return failed, first
}

// stage is what all spans of one name say; begin and end are in seconds since its root began.
type stage struct {
	name       string
	begin, end float64
	seconds    []float64
}

// stagesOf sums a trace up by the names of its spans below each root, in the order of their beginnings.
func stagesOf(t api.Trace) []stage {
	byID := map[string]api.TraceSpan{}
	for _, span := range t.Spans {
		byID[span.ID] = span
	}
	stages := map[string]*stage{}
	for _, span := range t.Spans {
		root, path := span, span.Name
		for depth := 0; root.Parent != "" && depth < 10; depth++ {
			parent, ok := byID[root.Parent]
			if !ok {
				break
			}
			root, path = parent, parent.Name+"/"+path
		}
		begin := span.Began.Sub(root.Began).Seconds()
		s := stages[path]
		if s == nil {
			s = &stage{name: path, begin: begin}
			stages[path] = s
		}
		s.begin, s.end = min(s.begin, begin), max(s.end, begin+span.Seconds)
		s.seconds = append(s.seconds, span.Seconds)
	}
	var all []stage
	for _, name := range slices.Sorted(maps.Keys(stages)) {
		all = append(all, *stages[name])
	}
	return all
}
