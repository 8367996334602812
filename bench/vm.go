package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// The parts of the group vm.
const (
	partStarts     = "starts"
	partMany       = "many"
	partSaves      = "saves"
	partMigrations = "migrations"
	partMemory     = "memory"
	partIdle       = "idle"
	partQueues     = "queues"
	partHomes      = "homes"
)

const (
	// vmMemory is what each machine has, vmNodeCores how many slots the site's node has: machines share cores where there are fewer, on both sides alike.
	vmMemory    = 384 << 20
	vmNodeCores = 8
	// startGoal is what a create may take of the time of the same QEMU command by hand, as an efficiency.
	startGoal = 1 / 1.2
	// vmLimit is for what never ends: no side gives up because the computer is busy.
	vmLimit = 30 * time.Minute
)

// withoutMachines says why virtual machines are not measured; "" if nothing is missing.
func withoutMachines() string {
	var absent []string
	for _, name := range []string{"libvirtd", "virsh", "qemu-system-x86_64", "taskset", "tc"} {
		if _, err := exec.LookPath(name); err != nil {
			absent = append(absent, name)
		}
	}
	if len(absent) == 0 {
		return ""
	}
	return fmt.Sprintf("virtual machines omitted: not installed: %s; setup/install.sh run guest installs them", strings.Join(absent, ", "))
}

// virtual is a site that has machines, and what it takes to start the same ones by hand.
type virtual struct {
	*site
	o    options
	work string
	hand *handMachines
	log  *slog.Logger
	text *bytes.Buffer
	// resting are machines of both sides for the parts memory and idle.
	resting *resting
}

// virtualMachines measures the machines of a site beside those that the same QEMU commands start without it.
func virtualMachines(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) (err error) {
	parts := o.chosen.of(groupVM)
	if len(parts) == 0 {
		return nil
	}
	if why := withoutMachines(); why != "" {
		log.Warn(why)
		fmt.Fprintf(text, "%s.\n\n", why)
		return nil
	}
	if err := layBridge(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeBridge()) }()
	// A machine moves between two nodes; all else is on one.
	one := slices.DeleteFunc(slices.Clone(parts), func(part string) bool { return part == partMigrations })
	two := slices.DeleteFunc(slices.Clone(parts), func(part string) bool { return part != partMigrations })
	for nodes, parts := range [][]string{1: one, 2: two} {
		if len(parts) == 0 {
			continue
		}
		v := &virtual{o: o, work: filepath.Join(work, fmt.Sprintf("vm%d", nodes)), log: log, text: text}
		if err := v.measure(ctx, nodes, parts); err != nil {
			return err
		}
	}
	return nil
}

// measure starts a site of so many nodes, measures parts on it, and stops it.
func (v *virtual) measure(ctx context.Context, nodes int, parts []string) (err error) {
	state := filepath.Join(v.work, "state")
	if err := os.Mkdir(v.work, 0o711); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", os.Getenv(imagesVariable), state).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	if v.site, err = startDev(ctx, v.o, state, "--nodes", fmt.Sprint(nodes), "--node-cores", fmt.Sprint(vmNodeCores)); err != nil {
		return err
	}
	rest := context.WithoutCancel(ctx)
	defer func() { err = errors.Join(err, v.endRest(rest), v.removeRest(rest), v.stop(), os.RemoveAll(v.work)) }()
	if err := v.nodesReady(ctx, nodes); err != nil {
		return err
	}
	if err := v.learn(ctx, filepath.Join(v.work, "by-hand")); err != nil {
		return fmt.Errorf("the first machine: %w; the site's last output: %s", err, endOf(v.site.log.Name()))
	}
	run := map[string]func(context.Context) error{
		partStarts: v.starts, partMany: v.many, partSaves: v.saves, partMigrations: v.migrations,
		partMemory: v.memory, partIdle: v.idle, partQueues: v.queues, partHomes: v.homes,
	}
	for _, part := range parts {
		if part != partMemory && part != partIdle {
			if err := v.endRest(ctx); err != nil {
				return err
			}
		}
		begin(v.o, v.log, part)
		if err := run[part](ctx); err != nil {
			return fmt.Errorf("virtual machines: %s: %w; the site's last output: %s", part, err, endOf(v.site.log.Name()))
		}
	}
	return nil
}

// removeRest deletes the cluster if a part left it behind.
func (v *virtual) removeRest(ctx context.Context) error {
	if err := v.Delete(ctx); err != nil && !gone(err) {
		return err
	}
	return nil
}

// Create makes a cluster of virtual machines, and returns once it is ready: SSH answers on each.
func (v *virtual) Create(ctx context.Context, members int) error {
	return v.create(ctx, api.ClusterRequest{Name: clusterName, Size: members, Cores: 1, Memory: vmMemory, Stack: api.StackVM, Environment: builtEnvironment})
}

func (v *virtual) create(ctx context.Context, request api.ClusterRequest) error {
	ctx, cancel := context.WithTimeout(ctx, vmLimit)
	defer cancel()
	if _, err := v.client.CreateCluster(ctx, request); err != nil {
		return err
	}
	return v.reach(ctx, api.ClusterReady)
}

// learn starts a machine by the site, and takes over what it is made of: files, and QEMU's command line.
func (v *virtual) learn(ctx context.Context, dir string) error {
	if err := v.Create(ctx, 1); err != nil {
		return err
	}
	cluster, err := v.client.Cluster(ctx, clusterName)
	if err != nil {
		return err
	}
	pids, err := machinesOf(cluster.UID)
	if err != nil {
		return err
	}
	if len(pids) != 1 {
		return fmt.Errorf("processes %v are QEMU of a cluster of one machine", pids)
	}
	if v.hand, err = readMachine(ctx, pids[0], cluster.Status.Members[0].CPUs, dir); err != nil {
		return err
	}
	return v.Delete(ctx)
}

// starts compares one create to ready with the same QEMU command to SSH's first word, in turn.
func (v *virtual) starts(ctx context.Context) error {
	agent, err := v.agentOf("n1")
	if err != nil {
		return err
	}
	busy, processor := load(), map[string][]float64{}
	sides := map[string]func() (float64, error){
		byHand: func() (seconds float64, err error) {
			begun := time.Now()
			machines, err := v.hand.start(ctx, 1)
			defer func() { err = errors.Join(err, machines.end()) }()
			if err != nil {
				return 0, err
			}
			seconds = time.Since(begun).Seconds()
			used, err := processorTimeOf(machines.pids())
			processor[byHand] = append(processor[byHand], used)
			return seconds, err
		},
		nearmetal: func() (seconds float64, err error) {
			site := []int{v.process.Process.Pid, agent}
			before, err := processorTimeOf(site)
			if err != nil {
				return 0, err
			}
			begun := time.Now()
			if err := v.Create(ctx, 1); err != nil {
				return 0, err
			}
			seconds = time.Since(begun).Seconds()
			defer func() { err = errors.Join(err, v.Delete(ctx)) }()
			cluster, err := v.client.Cluster(ctx, clusterName)
			if err != nil {
				return 0, err
			}
			machines, err := machinesOf(cluster.UID)
			if err != nil {
				return 0, err
			}
			all := slices.Concat(site, machines)
			for kind, pids := range helpersOf(agent, machines) {
				if kind != kindAgent {
					all = append(all, pids...)
				}
			}
			used, err := processorTimeOf(all)
			processor[nearmetal] = append(processor[nearmetal], used-before)
			return seconds, err
		},
	}
	times, err := v.inTurn(partStarts, v.o.vmPairs, sides)
	if err != nil {
		return err
	}
	fmt.Fprintf(v.text, "One virtual machine of 1 core and %d MiB, %s, %d pairs, load %s to %s\n", vmMemory>>20, accelerator(v.hand.args), v.o.vmPairs, busy, load())
	v.compare("request to ready (SSH answers)", times, startGoal)
	v.compare("processor time until then, of QEMU and of all that the site runs", processor, startGoal)
	v.text.WriteString("\n")
	return nil
}

// inTurn measures pairs of both sides in seconds, in alternating order.
func (v *virtual) inTurn(what string, pairs int, sides map[string]func() (float64, error)) (map[string][]float64, error) {
	times := map[string][]float64{}
	for pair, order := range measure.Schedule([]string{byHand, nearmetal}, pairs) {
		for _, side := range order {
			seconds, err := sides[side]()
			if err != nil {
				return nil, fmt.Errorf("pair %d, %s: %w", pair+1, side, err)
			}
			times[side] = append(times[side], seconds)
			v.log.Info("machines", "part", what, "pair", pair+1, "side", side, "seconds", seconds, "load", load())
		}
	}
	return times, nil
}

// compare writes both sides' times and the ratios of their pairs; goal is an efficiency, 0 without one.
func (v *virtual) compare(what string, times map[string][]float64, goal float64) {
	var ratios, efficiencies []float64
	for i, hand := range times[byHand] {
		own := times[nearmetal][i]
		ratios, efficiencies = append(ratios, own/hand), append(efficiencies, hand/own)
	}
	interval := measure.MedianInterval(ratios, measure.DefaultLevel)
	fmt.Fprintf(v.text, "  %s: by hand %s s, nearmetal %s s, nearmetal / by hand %.2f", what, spread(times[byHand], 2), spread(times[nearmetal], 2), interval.Value)
	if interval.Bounded() {
		fmt.Fprintf(v.text, " [%.2f, %.2f]", interval.Low, interval.High)
	}
	if goal > 0 {
		fmt.Fprintf(v.text, "; at most %.1f times as long: %s", 1/goal, measure.GoalText(efficiencies, goal))
	}
	v.text.WriteString("\n")
}

// many starts machines at once by each side, in turn.
func (v *virtual) many(ctx context.Context) error {
	count, err := v.machinesThatFit(ctx, 1)
	if err != nil {
		return err
	}
	busy := load()
	times, err := v.inTurn(partMany, v.o.vmPairs, map[string]func() (float64, error){
		byHand: func() (seconds float64, err error) {
			begun := time.Now()
			machines, err := v.hand.start(ctx, count)
			seconds = time.Since(begun).Seconds()
			return seconds, errors.Join(err, machines.end())
		},
		nearmetal: func() (seconds float64, err error) {
			begun := time.Now()
			err = v.Create(ctx, count)
			seconds = time.Since(begun).Seconds()
			if err != nil {
				return 0, err
			}
			return seconds, errors.Join(v.onTheSameCPUs(ctx, count), v.Delete(ctx))
		},
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(v.text, "%d virtual machines of 1 core and %d MiB at once, %s, %d pairs, load %s to %s\n", count, vmMemory>>20, accelerator(v.hand.args), v.o.vmPairs, busy, load())
	v.compare("request to ready (SSH answers on all)", times, startGoal)
	v.text.WriteString("\n")
	return nil
}

// onTheSameCPUs reports machines of the site that have other CPUs than as many by hand.
func (v *virtual) onTheSameCPUs(ctx context.Context, count int) error {
	cluster, err := v.client.Cluster(ctx, clusterName)
	if err != nil {
		return err
	}
	var own, hand []string
	for n, m := range cluster.Status.Members {
		own = append(own, strings.Trim(strings.Join(strings.Fields(fmt.Sprint(m.CPUs)), ","), "[]"))
		hand = append(hand, v.hand.places.cpus(n))
	}
	slices.Sort(own)
	slices.Sort(hand)
	if len(own) != count || !slices.Equal(own, hand) {
		return fmt.Errorf("the sides are not alike: %d machines of the site run on CPUs %v, those by hand on CPUs %v", len(own), own, hand)
	}
	return nil
}

// machinesThatFit returns how many machines each of so many sides has at once: as many as were wished, unless the computer's memory carries fewer.
func (v *virtual) machinesThatFit(ctx context.Context, sides int) (int, error) {
	free, err := availableBytes()
	if err != nil {
		return 0, err
	}
	const reserve = 192 << 20 // QEMU's own, and what a site counts for it
	n := min(v.o.vmMachines, vmNodeCores, int(free/2/int64(sides)/(vmMemory+reserve)))
	if n < 1 {
		return 0, fmt.Errorf("%d MiB of memory are free, too few for a machine of %d by each side", free>>20, vmMemory>>20)
	}
	return n, ctx.Err()
}

// accelerator says how a QEMU command has processors.
func accelerator(args []string) string {
	if i := slices.Index(args, "-accel"); i >= 0 && i+1 < len(args) {
		name, _, _ := strings.Cut(args[i+1], ",")
		return "accelerator " + name
	}
	return "accelerator unknown"
}
