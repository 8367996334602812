package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/measure"
)

const (
	// idleSettle is how long machines are left alone before they are watched, in so many windows.
	idleSettle  = 20 * time.Second
	idleWindow  = 10 * time.Second
	idleWindows = 6
)

// resting are machines of both sides that run at the same time and do nothing, so that whatever else the computer does meets both.
type resting struct {
	hand *handRun
	// qemus are by side, and helpers are the processes that serve the site's machines, by kind.
	qemus   map[string][]int
	helpers map[string][]int
	// before is the memory of these kinds without machines.
	before map[string]int64
}

// rest returns the resting machines, and starts them at first.
func (v *virtual) rest(ctx context.Context) (*resting, error) {
	if v.resting != nil {
		return v.resting, nil
	}
	count, err := v.machinesThatFit(ctx, 2)
	if err != nil {
		return nil, err
	}
	agent, err := v.agentOf("n1")
	if err != nil {
		return nil, err
	}
	r := &resting{qemus: map[string][]int{}, before: map[string]int64{}}
	for kind, pids := range helpersOf(agent, nil) {
		for _, pid := range pids {
			m, err := memoryOf(pid, 0)
			if err != nil {
				return nil, err
			}
			r.before[kind] += m.proportional
		}
	}
	v.resting = r
	if r.hand, err = v.hand.start(ctx, count); err != nil {
		return nil, err
	}
	if err := v.Create(ctx, count); err != nil {
		return nil, err
	}
	cluster, err := v.client.Cluster(ctx, clusterName)
	if err != nil {
		return nil, err
	}
	r.qemus[byHand] = r.hand.pids()
	if r.qemus[nearmetal], err = machinesOf(cluster.UID); err != nil {
		return nil, err
	}
	if len(r.qemus[nearmetal]) != count {
		return nil, fmt.Errorf("processes %v are QEMU of a cluster of %d machines", r.qemus[nearmetal], count)
	}
	r.helpers = helpersOf(agent, r.qemus[nearmetal])
	v.log.Info("machines rest", "by hand", count, "nearmetal", count, "load", load())
	return r, wait(ctx, idleSettle)
}

// endRest ends the resting machines, if there are any.
func (v *virtual) endRest(ctx context.Context) error {
	r := v.resting
	if r == nil {
		return nil
	}
	v.resting = nil
	err := v.Delete(ctx)
	if gone(err) {
		err = nil
	}
	if r.hand != nil {
		err = errors.Join(err, r.hand.end())
	}
	return err
}

// kinds are the site's helpers in the order in which they are shown.
func (r *resting) kinds() (kinds []string) {
	for _, kind := range []string{kindLibvirt, kindHome, kindAgent} {
		if len(r.helpers[kind]) > 0 {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// idle compares the processor time of machines that do nothing.
func (v *virtual) idle(ctx context.Context) error {
	r, err := v.rest(ctx)
	if err != nil {
		return err
	}
	busy, all := load(), map[string][]int{byHand: r.qemus[byHand], nearmetal: r.qemus[nearmetal]}
	for kind, pids := range r.helpers {
		all[kind] = pids
	}
	percent := map[string][]float64{}
	for range idleWindows {
		begun := time.Now()
		before, err := processorTimes(all)
		if err != nil {
			return err
		}
		if err := wait(ctx, idleWindow); err != nil {
			return err
		}
		after, err := processorTimes(all)
		if err != nil {
			return err
		}
		took := time.Since(begun).Seconds()
		for kind := range all {
			percent[kind] = append(percent[kind], 100*(after[kind]-before[kind])/took/float64(len(r.qemus[nearmetal])))
		}
	}
	n := len(r.qemus[nearmetal])
	fmt.Fprintf(v.text, "%d idle virtual machines of 1 core and %d MiB by each side at once, %s, %d windows of %.0f s, load %s to %s: %% of a core for each machine, median (lowest to highest)\n",
		n, vmMemory>>20, accelerator(v.hand.args), idleWindows, idleWindow.Seconds(), busy, load())
	fmt.Fprintf(v.text, "  QEMU: by hand %s, nearmetal %s, nearmetal / by hand %s\n", spread(percent[byHand], 2), spread(percent[nearmetal], 2), ratioText(percent[nearmetal], percent[byHand]))
	withHelpers := slices.Clone(percent[nearmetal])
	var words []string
	for _, kind := range r.kinds() {
		words = append(words, kind+" "+spread(percent[kind], 2))
		for i := range withHelpers {
			withHelpers[i] += percent[kind][i]
		}
	}
	fmt.Fprintf(v.text, "  what serves the site's: %s\n", strings.Join(words, ", "))
	fmt.Fprintf(v.text, "  in all: by hand %s, nearmetal %s, nearmetal / by hand %s\n\n", spread(percent[byHand], 2), spread(withHelpers, 2), ratioText(withHelpers, percent[byHand]))
	return nil
}

// memory compares what machines hold of the host's memory beyond what their guests have touched of theirs.
func (v *virtual) memory(ctx context.Context) error {
	r, err := v.rest(ctx)
	if err != nil {
		return err
	}
	own, guests := map[string][]float64{}, map[string][]float64{}
	for side, pids := range r.qemus {
		for _, pid := range pids {
			m, err := memoryOf(pid, vmMemory)
			if err != nil {
				return err
			}
			own[side], guests[side] = append(own[side], mib(m.proportional)), append(guests[side], mib(m.guest))
		}
	}
	n := float64(len(r.qemus[nearmetal]))
	var helpers float64
	var words []string
	for _, kind := range r.kinds() {
		held := int64(0)
		for _, pid := range r.helpers[kind] {
			m, err := memoryOf(pid, 0)
			if err != nil {
				return err
			}
			held += m.proportional
		}
		each := mib(held-r.before[kind]) / n
		helpers += each
		words = append(words, fmt.Sprintf("%s %.1f (%.1f in all before)", kind, each, mib(r.before[kind])))
	}
	all := slices.Clone(own[nearmetal])
	for i := range all {
		all[i] += helpers
	}
	fmt.Fprintf(v.text, "Memory of %.0f virtual machines of %d MiB by each side at once, %s, load %s: PSS in MiB beyond what the guest has touched, for each machine, median (lowest to highest)\n",
		n, vmMemory>>20, accelerator(v.hand.args), load())
	fmt.Fprintf(v.text, "  touched by the guest: by hand %s, nearmetal %s\n", spread(guests[byHand], 0), spread(guests[nearmetal], 0))
	fmt.Fprintf(v.text, "  QEMU: by hand %s, nearmetal %s, nearmetal / by hand %.2f\n", spread(own[byHand], 1), spread(own[nearmetal], 1), measure.Median(own[nearmetal])/measure.Median(own[byHand]))
	fmt.Fprintf(v.text, "  what serves the site's, growth over the site without machines: %s\n", strings.Join(words, ", "))
	fmt.Fprintf(v.text, "  in all: by hand %s, nearmetal %s, nearmetal / by hand %.2f\n\n", spread(own[byHand], 1), spread(all, 1), measure.Median(all)/measure.Median(own[byHand]))
	return nil
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
