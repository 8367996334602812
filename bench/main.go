// Command bench measures what docs/performance.md states: how long a cluster takes from request to ready and to be gone,
// against the same members made by hand and by Podman; what the idle control plane holds; what placement costs; how fast jobs are run,
// beside Slurm's; what a site at rest costs its machine (noise.go), and members on two nodes their messages (across.go); what a cluster of
// 1,000 members takes (thousand.go); how machines are enrolled, booted and their environments built, beside what one sets up by hand (machines.go, netboot.go);
// and what virtual machines take, beside the same QEMU commands by hand (vm.go).
//
// All sides run in one mount and network namespace of the bench's own, in turn (A B C, C B A, ...), on the same machine in
// the same minutes. It measures only through doors that users have (the API, the scripts) and must never reach into the
// program it measures, but for simulated nodes, whose agents are its own (thousand.go), and guests by hand, which its link sets up (vmhand.go). Results go to out/ as a page, as JSON and as text. Start with run, then lifecycle.go.
//
//	go build -o bin/bench ./bench && sudo bin/bench
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/measure"
)

type options struct {
	nearmetal string
	peers     string
	out       string
	goTool    string
	sizes     []int
	rounds    int
	podman    bool
	// chosen are the parts to measure.
	chosen     choice
	vmPairs    int
	vmMachines int
	images     string
	enrol      int
	cycle      time.Duration
	pairs      int
	// whole are the sizes of clusters of whole machines.
	whole []int
	// devicePatience is how much processor time a side of device placement may take for one answer.
	devicePatience time.Duration
}

func main() {
	var o options
	var sizes, whole, only string
	flag.StringVar(&o.nearmetal, "nearmetal", "bin/nearmetal", "the program to measure")
	flag.StringVar(&o.peers, "peers", "bench/peers", "directory of the peers' scripts")
	flag.StringVar(&o.out, "out", "bench/out", "directory for the results")
	flag.StringVar(&o.goTool, "go", "go", "the go command, for placement's benchmark")
	flag.StringVar(&sizes, "sizes", "1,8,32", "member counts to measure")
	flag.IntVar(&o.rounds, "rounds", 10, "rounds; at least 6 for 95% intervals, an even number to cancel drift")
	flag.BoolVar(&o.podman, "podman", true, "measure Podman too, in part sides")
	flag.StringVar(&only, "only", "", "parts or groups of parts to measure, like jobs,vm; empty: all")
	flag.IntVar(&o.vmPairs, "vm-pairs", 6, "pairs or rounds of each part of virtual machines; at least 6 for 95% intervals")
	flag.IntVar(&o.vmMachines, "vm-machines", 8, "virtual machines at once by each side in parts many, memory and idle")
	flag.StringVar(&o.images, "images", "", "state directory of a site whose built environments are reused")
	flag.IntVar(&o.enrol, "enrol", 1000, "number of machines to enroll, in parts enrolment and cycle")
	flag.DurationVar(&o.cycle, "cycle", 10*time.Minute, "how long clusters come and go in part cycle")
	flag.DurationVar(&o.devicePatience, "device-patience", 10*time.Second, "processor time that each side of part devices may take for one answer; 10s is the limit of Kubernetes' scheduler")
	flag.StringVar(&whole, "whole", "1,2,4", "sizes of the clusters of whole machines, in part whole")
	flag.IntVar(&o.pairs, "pairs", 3, "number of boot pairs")
	if len(os.Args) > 1 && os.Args[1] == messengerCommand {
		if err := runMessenger(os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %v\n", err)
			os.Exit(1)
		}
		return
	}
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "Usage: bench [-only PARTS] [flags]\n\n%s\nFlags:\n", usage())
		flag.PrintDefaults()
	}
	flag.Parse()
	for variable, part := range map[string]func() error{quantaVariable: runQuanta, stormVariable: runStorm, transferVariable: runTransfer, devicesVariable: runDevices} {
		if os.Getenv(variable) != "" {
			if err := part(); err != nil {
				fmt.Fprintf(os.Stderr, "bench: %v\n", err)
				os.Exit(1)
			}
			return
		}
	}
	for _, list := range []struct {
		flag, text string
		into       *[]int
	}{{"sizes", sizes, &o.sizes}, {"whole", whole, &o.whole}} {
		for _, s := range strings.Split(list.text, ",") {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 || n > 1000 {
				fmt.Fprintf(os.Stderr, "bench: -%s %q: %q is no number of members from 1 to 1000\n", list.flag, list.text, s)
				os.Exit(2)
			}
			*list.into = append(*list.into, n)
		}
	}
	var err error
	if o.chosen, err = choose(only); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// longestTemp is the longest path of a folder for temporary files that leaves podman room for its runroot:
// /nearmetal-bench-0123456789/podman/run.
const longestTemp = 12

func run(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return errors.New("needs root, for namespaces and containers; run it with sudo")
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if _, err := exec.LookPath(podman); o.podman && o.chosen[partSides] && err != nil {
		log.Warn("Podman omitted: not installed; setup/install.sh bench installs it")
		o.podman = false
	}
	if os.Getenv(insideVariable) == "" {
		if dir := os.TempDir(); o.chosen[partSides] && o.podman && len(dir) > longestTemp {
			return fmt.Errorf("the temporary folder %s has too long a path for podman, which adds 50 characters for its own folder; set TMPDIR=/tmp, or use -podman=false", dir)
		}
		announce(o, log)
		buildDevicePeers(ctx, o, log)
		cleanup, err := buildOutside(ctx, o)
		if err != nil {
			return err
		}
		defer cleanup()
		return enter(ctx)
	}
	if err := furnish(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "nearmetal-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := os.Chmod(work, 0o711); err != nil {
		return err
	}

	text := &bytes.Buffer{}
	reports, err := measureAll(ctx, o, work, log, text)
	// What was measured before a part failed is kept.
	return errors.Join(err, publish(o, reports, text))
}

// measureAll measures the chosen parts; after an error it returns what it has.
func measureAll(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) ([]measure.Report, error) {
	if len(o.chosen.of(groupNetboot)) > 0 {
		if err := networkBoot(ctx, o, work, log, text); err != nil {
			return nil, err
		}
	}
	if err := machines(ctx, o, work, log, text); err != nil {
		return nil, err
	}
	if err := virtualMachines(ctx, o, work, log, text); err != nil {
		return nil, err
	}
	return clusters(ctx, o, work, log, text)
}

// clusters measures all that is about clusters.
func clusters(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) (reports []measure.Report, err error) {
	if o.chosen[partSides] {
		if reports, err = lifecycles(ctx, o, work, log, text); err != nil {
			return reports, err
		}
	}
	run := map[string]func() error{
		partLife:     func() error { return loseNode(ctx, o, work, log, text) },
		partNoise:    func() error { return noise(ctx, o, work, log, text) },
		partAcross:   func() error { return across(ctx, o, work, log, text) },
		partThousand: func() error { return thousand(ctx, o, log, text) },
		partJobs: func() error {
			of, err := jobs(ctx, o, work, log, text)
			reports = append(reports, of...)
			return err
		},
		partPlacement: func() error { return planningCost(ctx, o, text) },
		partDevices:   func() error { return placeDevices(o, log, text) },
		partNetworks:  func() error { return tenantNetworks(ctx, o, text) },
		partFabrics:   func() error { return fabrics(ctx, o, log, text) },
		partVolumes:   func() error { return volumes(ctx, o, work, log, text) },
		partCaches:    func() error { return caches(ctx, o, work, log, text) },
		partGPU:       func() error { return remoteGPUs(ctx, o, work, log, text) },
	}
	for _, name := range o.chosen.of(groupClusters) {
		if run[name] == nil {
			continue
		}
		begin(o, log, name)
		if err := run[name](); err != nil {
			return reports, fmt.Errorf("%s: %w", name, err)
		}
	}
	return reports, nil
}

// publish writes the page, the data and the text, and the text to standard output.
func publish(o options, reports []measure.Report, text *bytes.Buffer) error {
	var page, data bytes.Buffer
	if err := measure.WriteHTML(&page, "Nearmetal: life times of clusters, and jobs", time.Now(), reports...); err != nil {
		return err
	}
	for i, r := range reports {
		if i > 0 {
			data.WriteString("\n")
		}
		if err := r.WriteJSON(&data); err != nil {
			return err
		}
	}
	for name, content := range map[string][]byte{"bench.html": page.Bytes(), "bench.json": data.Bytes(), "bench.txt": text.Bytes()} {
		if err := os.WriteFile(filepath.Join(o.out, name), content, 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("%s\nresults: %s\n", text, filepath.Join(o.out, "bench.html"))
	return nil
}
