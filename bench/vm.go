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

// The parts of -vm.
const (
	partStarts = "starts"
	partMany   = "many"
	partSaves  = "saves"
	partHomes  = "homes"
)

const (
	// vmMemory is what each machine has, vmNodeCores how many slots the site's node has: machines share cores where there are fewer, on both sides alike.
	vmMemory    = 384 << 20
	vmNodeCores = 8
	// manyMachines are started at once in the part of that name.
	manyMachines = 8
	// startGoal is what a create may take of the time of the same QEMU command by hand, as an efficiency.
	startGoal = 1 / 1.2
	// vmLimit is how long one step of a machine's life may take, or of as many as there are in one part.
	vmLimit = 5 * time.Minute
)

// vmParts are those of -vm.
func (o options) vmParts() ([]string, error) {
	var parts []string
	for part := range strings.SplitSeq(o.vm, ",") {
		switch part {
		case "":
		case partStarts, partMany, partSaves, partHomes:
			parts = append(parts, part)
		default:
			return nil, fmt.Errorf("-vm %q: unknown part %q; the parts are %s, %s, %s and %s", o.vm, part, partStarts, partMany, partSaves, partHomes)
		}
	}
	return parts, nil
}

// withoutMachines says why virtual machines are not measured; "" if nothing is missing.
func withoutMachines() string {
	var absent []string
	for _, name := range []string{"libvirtd", "virsh", "qemu-system-x86_64", "taskset", "nsenter"} {
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
}

// virtualMachines measures the machines of a site beside those that the same QEMU commands start without it.
func virtualMachines(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) (err error) {
	parts, err := o.vmParts()
	if err != nil || len(parts) == 0 {
		return err
	}
	if why := withoutMachines(); why != "" {
		log.Warn(why)
		fmt.Fprintf(text, "%s.\n\n", why)
		return nil
	}
	dir := filepath.Join(work, "vm")
	if out, err := exec.CommandContext(ctx, "cp", "-a", os.Getenv(imagesVariable), dir).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	dev, err := startDev(ctx, o, dir, "--node-cores", fmt.Sprint(vmNodeCores))
	if err != nil {
		return err
	}
	v := &virtual{site: dev, o: o, work: work, log: log, text: text}
	defer func() { err = errors.Join(err, v.removeRest(context.WithoutCancel(ctx)), dev.stop()) }()
	if err := v.learn(ctx, filepath.Join(work, "vm-by-hand")); err != nil {
		return fmt.Errorf("the first machine: %w; the site said: %s", err, endOf(dev.log.Name()))
	}
	defer func() { err = errors.Join(err, v.hand.close()) }()
	for _, part := range parts {
		begin(o, log, stepVM+part)
		run := map[string]func(context.Context) error{partStarts: v.starts, partMany: v.many, partSaves: v.saves, partHomes: v.homes}[part]
		if err := run(ctx); err != nil {
			return fmt.Errorf("virtual machines: %s: %w; the site said: %s", part, err, endOf(dev.log.Name()))
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
	if v.hand, err = learnMachine(ctx, pids[0], cluster.Status.Members[0].CPUs, dir); err != nil {
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

// many starts machines at once by each side, and reads what they take of their host while nothing is asked of them.
func (v *virtual) many(ctx context.Context) error {
	room, err := v.machinesThatFit(ctx)
	if err != nil {
		return err
	}
	busy, costs := load(), map[string]idleCost{}
	sides := map[string]func() (float64, error){
		byHand: func() (seconds float64, err error) {
			begun := time.Now()
			machines, err := v.hand.start(ctx, room)
			seconds = time.Since(begun).Seconds()
			defer func() { err = errors.Join(err, machines.end()) }()
			if err == nil {
				costs[byHand], err = watchIdle(ctx, machines.pids(), nil)
			}
			return seconds, err
		},
		nearmetal: func() (seconds float64, err error) {
			agent, err := v.agentOf("n1")
			if err != nil {
				return 0, err
			}
			without, err := memoryOf(agent, 0)
			if err != nil {
				return 0, err
			}
			begun := time.Now()
			err = v.Create(ctx, room)
			seconds = time.Since(begun).Seconds()
			defer func() { err = errors.Join(err, v.Delete(context.WithoutCancel(ctx))) }()
			if err != nil {
				return seconds, err
			}
			cluster, err := v.client.Cluster(ctx, clusterName)
			if err != nil {
				return seconds, err
			}
			pids, err := machinesOf(cluster.UID)
			if err != nil {
				return seconds, err
			}
			cost, err := watchIdle(ctx, pids, helpersOf(agent, pids))
			cost.agentBefore = without.proportional
			costs[nearmetal] = cost
			return seconds, err
		},
	}
	times, err := v.inTurn(partMany, 1, sides)
	if err != nil {
		return err
	}
	fmt.Fprintf(v.text, "%d virtual machines of 1 core and %d MiB at once, %s, once, load %s to %s\n", room, vmMemory>>20, accelerator(v.hand.args), busy, load())
	v.compare("request to ready (SSH answers on all)", times, startGoal)
	for _, side := range []string{byHand, nearmetal} {
		v.text.WriteString(costs[side].text(side))
	}
	v.text.WriteString("\n")
	return nil
}

// machinesThatFit returns how many machines are started at once: as many as were wished, unless the computer's memory carries fewer beside what else is on it.
func (v *virtual) machinesThatFit(ctx context.Context) (int, error) {
	free, err := availableBytes()
	if err != nil {
		return 0, err
	}
	const reserve = 192 << 20 // QEMU's own, and what a site counts for it
	n := min(manyMachines, vmNodeCores, int(free/2/(vmMemory+reserve)))
	if n < 1 {
		return 0, fmt.Errorf("%d MiB of memory are free, too few for a machine of %d", free>>20, vmMemory>>20)
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
