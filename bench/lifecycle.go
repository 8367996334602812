package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// The sides, and the goals of DESIGN: request to ready within 1.3 times the script's, and faster than Podman.
const (
	byHand     = "by hand"
	nearmetal  = "nearmetal"
	podman     = "podman"
	handGoal   = 1 / 1.3
	podmanGoal = 1.0

	createSeconds = "create_seconds"
	deleteSeconds = "delete_seconds"

	memory = 256 << 20
)

// lifecycles measures creating and deleting on all sides in turn, and the memory of the idle control plane before.
func lifecycles(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) ([]measure.Report, error) {
	dev, err := startSite(ctx, o.nearmetal, filepath.Join(work, "state"), 1, max(slices.Max(o.sizes), runtime.NumCPU(), 2*grown), memory)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := dev.stop(); err != nil {
			log.Error("nearmetal dev did not end well", "error", err)
		}
	}()
	room, err := dev.room(ctx)
	if err != nil {
		return nil, err
	}
	fit, out := fitting(o.sizes, room)
	if why := leftOut(out, room, memory); why != "" {
		log.Warn(why)
		fmt.Fprintf(text, "%s.\n\n", why)
	}
	if len(fit) == 0 {
		return nil, nil
	}
	o.sizes = fit
	if err := idle(ctx, dev, text); err != nil {
		return nil, err
	}
	if o.chosen[partLife] {
		begin(o, log, stepLife)
		if err := life(ctx, dev, log, text); err != nil {
			return nil, err
		}
	}
	profile := filepath.Join(work, "seccomp.json")
	if err := seccompProfile(profile); err != nil {
		return nil, err
	}
	sides := map[string]side{
		byHand:    script{path: filepath.Join(o.peers, "byhand.sh"), dir: filepath.Join(work, "byhand"), env: []string{"SECCOMP=" + profile}},
		nearmetal: dev,
	}
	names := []string{byHand, nearmetal}
	if o.podman {
		sides[podman] = script{path: filepath.Join(o.peers, "podman.sh"), dir: filepath.Join(work, "podman"), env: []string{"INDEX=4002"}}
		names = append(names, podman)
	}
	begin(o, log, partSides)
	runs, err := rounds(ctx, o, names, sides, log)
	if err != nil {
		return nil, err
	}
	return lifecycleReports(o, runs, text)
}

// settle is how long a site is left alone before its memory is read.
const settle = 5 * time.Second

func idle(ctx context.Context, dev *site, text *bytes.Buffer) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(settle):
	}
	server, agents, err := dev.idleMemory()
	if err != nil {
		return err
	}
	verdict := "below the goal of 100 MiB"
	if server >= 100<<20 {
		verdict = "NOT below the goal of 100 MiB"
	}
	fmt.Fprintf(text, "Control plane, idle: %.1f MiB resident (server with embedded etcd), %s; node agent: %.1f MiB.\n\n",
		float64(server)/(1<<20), verdict, float64(agents)/(1<<20))
	return nil
}

// rounds runs all sides at all sizes. Round -1 is not counted: it warms up and proves that every side's cluster can be used.
func rounds(ctx context.Context, o options, names []string, sides map[string]side, log *slog.Logger) ([]measure.Run, error) {
	var runs []measure.Run
	schedule := append([][]string{names}, measure.Schedule(names, o.rounds)...)
	for i, order := range schedule {
		for _, name := range order {
			run := measure.Run{Side: name, Pair: i - 1, StartedAt: time.Now()}
			for _, n := range o.sizes {
				point, err := once(ctx, sides[name], n, i == 0)
				if err != nil {
					return nil, fmt.Errorf("%s with %d members: %w", name, n, err)
				}
				run.Points = append(run.Points, point)
			}
			run.DurationSeconds = time.Since(run.StartedAt).Seconds()
			if i > 0 {
				runs = append(runs, run)
			}
			log.Info("ran", "round", i, "of", o.rounds, "side", name, "times", times(run))
		}
	}
	return runs, nil
}

func times(r measure.Run) string {
	parts := make([]string, 0, len(r.Points))
	for _, p := range r.Points {
		parts = append(parts, fmt.Sprintf("%.0f: %.3f s, %.3f s", p.X, p.Values[createSeconds], p.Values[deleteSeconds]))
	}
	return strings.Join(parts, "; ")
}

// once makes and deletes one cluster.
func once(ctx context.Context, s side, members int, check bool) (point measure.Point, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	defer func() {
		if err != nil { // what was made must not stay
			_ = s.Delete(context.WithoutCancel(ctx))
		}
	}()
	start := time.Now()
	if err := s.Create(ctx, members); err != nil {
		return measure.Point{}, fmt.Errorf("create: %w", err)
	}
	created := time.Since(start)
	if check {
		if err := s.Check(ctx, members); err != nil {
			return measure.Point{}, err
		}
	}
	start = time.Now()
	if err := s.Delete(ctx); err != nil {
		return measure.Point{}, fmt.Errorf("delete: %w", err)
	}
	deleted := time.Since(start)
	return measure.Point{X: float64(members), Values: map[string]float64{createSeconds: created.Seconds(), deleteSeconds: deleted.Seconds()}}, nil
}

// lifecycleReports compares with the script, and with Podman.
func lifecycleReports(o options, runs []measure.Run, text *bytes.Buffer) ([]measure.Report, error) {
	against := []string{byHand}
	if o.podman {
		against = append(against, podman)
	}
	reports := make([]measure.Report, 0, len(against))
	for _, base := range against {
		r, err := measure.NewReport(experiment(o, base, runs), 0)
		if err != nil {
			return nil, err
		}
		if err := r.WriteText(text); err != nil {
			return nil, err
		}
		text.WriteString("\n")
		reports = append(reports, r)
	}
	return reports, nil
}

func experiment(o options, base string, runs []measure.Run) measure.Experiment {
	goal := map[string]float64{byHand: handGoal, podman: podmanGoal}[base]
	e := measure.Experiment{
		Title: fmt.Sprintf("Request to ready, and to gone: Nearmetal and members made by %s", strings.TrimPrefix(base, "by ")),
		Summary: "Clusters of members with one core each are made and deleted in turn by all sides. Ready means that SSH answers on every " +
			"member and the hostfile is there; gone means that nothing of them is left. All sides make the same members: namespaces, " +
			"read-only root from the machine's own /usr, core, memory limit, private network, SSH certificates, shared home; an MPI launch " +
			"over all members proved it before the first round.",
		Axis: measure.Axis{Name: "Members", Unit: "members"},
		Metrics: []measure.Metric{
			{Name: createSeconds, Title: "Create to ready", Unit: "s"}, {Name: deleteSeconds, Title: "Delete", Unit: "s"},
		},
		Sides:      []measure.Side{{Name: base, Description: descriptions[base]}, {Name: nearmetal, Description: descriptions[nearmetal]}},
		Conditions: conditions(),
	}
	if cores := runtime.NumCPU(); slices.Max(o.sizes) > cores {
		e.Oversubscribed = fmt.Sprintf("clusters of more than %d members share the machine's %d cores, on all sides alike.", cores, cores)
		e.OversubscribedFrom = float64(cores) + 1
	}
	for _, n := range o.sizes {
		e.Highlights = append(e.Highlights, measure.Highlight{Metric: createSeconds, Side: nearmetal, X: float64(n), Goal: goal})
	}
	for _, r := range runs {
		if r.Side == base || r.Side == nearmetal {
			e.Runs = append(e.Runs, r)
		}
	}
	return e
}

var descriptions = map[string]string{
	byHand:    "bench/peers/byhand.sh: crun, ip, nft, ssh-keygen, sshd by a shell script, members in parallel, no control plane",
	nearmetal: "nearmetal dev with one node, through its API: POST and the watch until ready; DELETE and the watch until gone",
	podman:    "bench/peers/podman.sh: podman run --rootfs with the same mounts, in parallel",
}

func conditions() []measure.Condition {
	var kernel unix.Utsname
	_ = unix.Uname(&kernel)
	load, _ := os.ReadFile("/proc/loadavg")
	list := []measure.Condition{
		{Name: "Machine", Value: fmt.Sprintf("%d CPUs, %s memory", runtime.NumCPU(), totalMemory())},
		{Name: "Kernel", Value: string(bytes.TrimRight(kernel.Release[:], "\x00"))},
		{Name: "Load after", Value: strings.TrimSpace(string(load))},
	}
	for _, command := range [][]string{{"crun", "--version"}, {"podman", "--version"}} {
		if out, err := exec.Command(command[0], command[1:]...).Output(); err == nil {
			first, _, _ := strings.Cut(string(out), "\n")
			list = append(list, measure.Condition{Name: command[0], Value: first})
		}
	}
	return list
}

// totalBytes is the memory of this machine, 0 if it can't be read.
func totalBytes() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

func totalMemory() string {
	return fmt.Sprintf("%.1f GiB", float64(totalBytes())/float64(api.Bytes(1<<30)))
}
