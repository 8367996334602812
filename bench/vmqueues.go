package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
)

const (
	// sharers are the machines that send at once, of so many cores and so much memory each, by so many TCP connections each.
	sharers       = 4
	sharerCores   = 2
	sharerMemory  = 256 << 20
	sharerStreams = 4
	// linkBits is the link's rate: less than these machines send without a bound.
	linkBits = "100mbit"
	// shareSettle is let pass before shareWatch is measured.
	shareSettle, shareWatch = 2 * time.Second, 8 * time.Second
)

// The sides of queues.
const (
	oneQueue   = "one queue each"
	manyQueues = "a queue for each vCPU"
	bothQueues = "two machines of each kind"
)

// sender is the program of a guest that keeps its streams connected and sends what is taken.
func sender() []string {
	stream := fmt.Sprintf("cat /dev/zero >/dev/tcp/%s/%d", linkAddress, linkPort)
	return []string{"/bin/bash", "-c", fmt.Sprintf("for i in $(seq %d); do while :; do (%s) 2>/dev/null; sleep 0.2; done & done; wait", sharerStreams, stream)}
}

// queues compares how four machines share their node's link, with one queue for each and with as many as they have processors. The machines are the
// site's command line by hand, since the site gives every machine a queue for each processor. All are booted, and those of one side send at a time.
func (v *virtual) queues(ctx context.Context) (err error) {
	h, err := v.learnLarger(ctx)
	if err != nil {
		return err
	}
	link, err := layLink(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, link.close()) }()
	var all []*handMachine
	for set, queues := range []int{1, sharerCores} {
		of := *h
		of.first, of.queues, of.program = set*sharers, queues, sender()
		of.places.groups = "" // all are by hand
		run, err := of.startUntil(ctx, sharers, link.connected)
		defer func() { err = errors.Join(err, run.end()) }()
		if err != nil {
			return err
		}
		all = append(all, run.machines...)
	}
	single, multiple := all[:sharers], all[sharers:]
	sides := map[string][]*handMachine{oneQueue: single, manyQueues: multiple, bothQueues: slices.Concat(single[:sharers/2], multiple[:sharers/2])}
	v.log.Info("machines send", "machines", len(all), "load", load())
	for _, rate := range []string{"", linkBits} {
		if err := link.bound(ctx, rate); err != nil {
			return err
		}
		if err := v.shares(ctx, link, rate, sides); err != nil {
			return err
		}
	}
	return nil
}

// shares measures how machines share the link at one rate.
func (v *virtual) shares(ctx context.Context, link *link, rate string, sides map[string][]*handMachine) error {
	names := []string{oneQueue, manyQueues, bothQueues}
	busy, totals, fair, each := load(), map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	var gain []float64
	for round := range v.o.vmPairs {
		order := slices.Clone(names)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, name := range order {
			rates, err := link.take(ctx, sides[name])
			if err != nil {
				return err
			}
			total := 0.0
			for _, r := range rates {
				total += r
			}
			totals[name], fair[name], each[name] = append(totals[name], total), append(fair[name], jain(rates)), append(each[name], rates...)
			if name == bothQueues {
				half := len(rates) / 2
				gain = append(gain, (rates[half]+rates[half+1])/(rates[0]+rates[1]))
			}
			v.log.Info("machines share", "round", round+1, "side", name, "rate", rate, "mbit_s", rates, "jain", jain(rates), "load", load())
		}
	}
	bound := "unbounded"
	if rate != "" {
		bound = "bounded to " + rate
	}
	fmt.Fprintf(v.text, "%d virtual machines of %d cores and %d MiB send through their node's link, %s, by %d TCP connections each, %s, %d rounds of %.0f s in turn, load %s to %s: Mbit/s, median (lowest to highest)\n",
		sharers, sharerCores, sharerMemory>>20, bound, sharerStreams, accelerator(v.hand.args), v.o.vmPairs, shareWatch.Seconds(), busy, load())
	for _, name := range names {
		fmt.Fprintf(v.text, "  %-26s in all %s, each %s, Jain's index %s\n", name, spread(totals[name], 1), spread(each[name], 1), spread(fair[name], 3))
	}
	fmt.Fprintf(v.text, "  a queue for each vCPU / one queue: in all %s, Jain's index %s\n", ratioText(totals[manyQueues], totals[oneQueue]), ratioText(fair[manyQueues], fair[oneQueue]))
	interval := measure.MedianInterval(gain, measure.DefaultLevel)
	fmt.Fprintf(v.text, "  beside each other, those with a queue for each vCPU / those with one queue: %.3f", interval.Value)
	if interval.Bounded() {
		fmt.Fprintf(v.text, " [%.3f, %.3f]", interval.Low, interval.High)
	}
	v.text.WriteString("\n\n")
	return nil
}

// jain is the index of fairness of Jain, Chiu and Hawe (1984): 1 if all get the same, 1/n if one gets everything.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, s := range shares {
		sum, squares = sum+s, squares+s*s
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// learnLarger takes over the command line of a machine with several processors.
func (v *virtual) learnLarger(ctx context.Context) (h *handMachines, err error) {
	request := api.ClusterRequest{Name: clusterName, Size: 1, Cores: sharerCores, Memory: sharerMemory, Stack: api.StackVM, Environment: builtEnvironment}
	if err := v.create(ctx, request); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, v.Delete(ctx)) }()
	cluster, err := v.client.Cluster(ctx, clusterName)
	if err != nil {
		return nil, err
	}
	pids, err := machinesOf(cluster.UID)
	if err != nil {
		return nil, err
	}
	if len(pids) != 1 {
		return nil, fmt.Errorf("processes %v are QEMU of a cluster of one machine", pids)
	}
	return readMachine(ctx, pids[0], cluster.Status.Members[0].CPUs, filepath.Join(v.work, "vm-by-hand-larger"))
}
