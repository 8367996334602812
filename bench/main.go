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
	placement bool
	life      bool
	noise     bool
	across    bool
	thousand  bool
	jobs      bool
	clusters  bool
	sides     bool
	netboot   string
	machines  string
	vm        string
	vmPairs   int
	images    string
	enrol     int
	pairs     int
}

func main() {
	var o options
	var sizes string
	flag.StringVar(&o.nearmetal, "nearmetal", "bin/nearmetal", "the program to measure")
	flag.StringVar(&o.peers, "peers", "bench/peers", "directory of the peers' scripts")
	flag.StringVar(&o.out, "out", "bench/out", "directory for the results")
	flag.StringVar(&o.goTool, "go", "go", "the go command, for placement's benchmark")
	flag.StringVar(&sizes, "sizes", "1,8,32", "member counts to measure")
	flag.IntVar(&o.rounds, "rounds", 10, "rounds; at least 6 for 95% intervals, an even number to cancel drift")
	flag.BoolVar(&o.podman, "podman", true, "measure podman too")
	flag.BoolVar(&o.placement, "placement", true, "measure placement and admission too")
	flag.BoolVar(&o.life, "life", true, "measure scaling, healing, lists and watches too")
	flag.BoolVar(&o.noise, "noise", true, "measure the noise of an idle site too")
	flag.BoolVar(&o.across, "across", true, "measure TCP between members on two nodes too, beside bare processes over the same link")
	flag.BoolVar(&o.thousand, "thousand", true, "measure a cluster of 1,000 members on simulated nodes too")
	flag.BoolVar(&o.jobs, "jobs", true, "measure jobs beside Slurm's too")
	flag.BoolVar(&o.sides, "sides", true, "measure how long clusters take to be made and removed, beside the other sides, and what life says too")
	flag.BoolVar(&o.clusters, "clusters", true, "measure the life of clusters (required by sides, life, noise, across, thousand, jobs and placement)")
	flag.StringVar(&o.netboot, "netboot", "dhcp,transfers,storms", "parts of network boot to measure; empty: none")
	flag.StringVar(&o.machines, "machines", "builds,boots,rush,enrolment", "parts of machines and their environments to measure; empty: none")
	flag.StringVar(&o.vm, "vm", "starts,many,saves,homes", "parts of virtual machines to measure; empty: none")
	flag.IntVar(&o.vmPairs, "vm-pairs", 6, "pairs of virtual machines; at least 6 for 95% intervals")
	flag.StringVar(&o.images, "images", "", "state directory of a site whose built environments are reused")
	flag.IntVar(&o.enrol, "enrol", 1000, "number of machines to enroll")
	flag.IntVar(&o.pairs, "pairs", 3, "number of boot pairs")
	if len(os.Args) > 1 && os.Args[1] == messengerCommand {
		if err := runMessenger(os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %v\n", err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	for variable, part := range map[string]func() error{quantaVariable: runQuanta, stormVariable: runStorm, transferVariable: runTransfer} {
		if os.Getenv(variable) != "" {
			if err := part(); err != nil {
				fmt.Fprintf(os.Stderr, "bench: %v\n", err)
				os.Exit(1)
			}
			return
		}
	}
	for _, s := range strings.Split(sizes, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 1000 {
			fmt.Fprintf(os.Stderr, "bench: -sizes %q: %q is no number of members from 1 to 1000\n", sizes, s)
			os.Exit(2)
		}
		o.sizes = append(o.sizes, n)
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
	if os.Getenv(insideVariable) == "" {
		if dir := os.TempDir(); o.clusters && o.podman && len(dir) > longestTemp {
			return fmt.Errorf("the temporary folder %s has too long a path for podman, which adds 50 characters for its own folder; set TMPDIR=/tmp, or use -podman=false", dir)
		}
		if err := announce(o, log); err != nil {
			return err
		}
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
	if o.netboot != "" {
		if err := networkBoot(ctx, o, work, log, text); err != nil {
			return err
		}
	}
	if err := machines(ctx, o, work, log, text); err != nil {
		return err
	}
	if err := virtualMachines(ctx, o, work, log, text); err != nil {
		return err
	}
	if !o.clusters {
		return publish(o, nil, text)
	}
	reports, err := clusters(ctx, o, work, log, text)
	if err != nil {
		return err
	}
	return publish(o, reports, text)
}

// clusters measures all that is about clusters.
func clusters(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) (reports []measure.Report, err error) {
	if o.sides {
		if reports, err = lifecycles(ctx, o, work, log, text); err != nil {
			return nil, err
		}
	}
	for _, part := range []struct {
		on   bool
		name string
		do   func() error
	}{
		{o.life, stepSilent, func() error { return loseNode(ctx, o, work, log, text) }},
		{o.noise, stepNoise, func() error { return noise(ctx, o, work, log, text) }},
		{o.across, stepAcross, func() error { return across(ctx, o, work, log, text) }},
		{o.thousand, stepThousand, func() error { return thousand(ctx, o, log, text) }},
		{o.jobs, stepJobs, func() error {
			of, err := jobs(ctx, o, work, log, text)
			reports = append(reports, of...)
			return err
		}},
		{o.placement, stepPlacement, func() error { return planningCost(ctx, o, text) }},
	} {
		if !part.on {
			continue
		}
		begin(o, log, part.name)
		if err := part.do(); err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
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
