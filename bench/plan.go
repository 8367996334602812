package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// step is a part of what the bench does, and about how long it takes on two cores with nothing else to do.
type step struct {
	name string
	took time.Duration
}

// Steps that are no parts by themselves.
const (
	stepImages = "images that machines boot"
	stepLife   = "scaling, healing, lists and watches"
)

const (
	imagesTake = 5 * time.Minute
	lifeTakes  = 5 * time.Minute
)

// roundOf is about how long one side takes for one member of one round: it is made and removed again.
const roundOf = 200 * time.Millisecond

// jobRoundOf is about how long a round of jobs takes on both sides, most of it Slurm's. The first runs twice, to prove that jobs run.
const jobRoundOf = 30 * time.Second

// steps returns what the bench does with these options, in order.
func (o options) steps() (steps []step) {
	if !o.chosen[partBuilds] && len(o.chosen.of(groupMachines))+len(o.chosen.of(groupVM)) > 0 {
		steps = append(steps, step{stepImages, imagesTake})
	}
	for _, p := range allParts() {
		if !o.chosen[p.name] {
			continue
		}
		switch p.name {
		case partSides:
			if o.chosen[partLife] {
				steps = append(steps, step{stepLife, lifeTakes})
			}
			p.took = o.sidesTake()
		case partJobs:
			p.took = time.Duration(o.rounds+2) * jobRoundOf
		}
		steps = append(steps, step{p.name, p.took})
	}
	return steps
}

func (o options) sidesTake() time.Duration {
	sides, members := 2, 0
	if o.podman {
		sides++
	}
	for _, n := range o.sizes {
		members += n
	}
	return time.Duration(sides*members*(o.rounds+1)) * roundOf
}

// announce says in advance what the bench does and about how long it takes.
func announce(o options, log *slog.Logger) {
	steps := o.steps()
	names, total := make([]string, 0, len(steps)), time.Duration(0)
	for _, s := range steps {
		names = append(names, s.name)
		total += s.took
	}
	log.Info(fmt.Sprintf("%d parts, about %s on two quiet cores; a busy computer takes longer; -only chooses parts (make bench BENCH_FLAGS='-only jobs,vm')", len(steps), minutes(total)), "parts", strings.Join(names, ", "))
}

// begin says which part begins, and about how long it and those after it take.
func begin(o options, log *slog.Logger, name string) {
	steps := o.steps()
	at := slices.IndexFunc(steps, func(s step) bool { return s.name == name })
	if at < 0 {
		return
	}
	left := time.Duration(0)
	for _, s := range steps[at:] {
		left += s.took
	}
	log.Info(fmt.Sprintf("part %d of %d: %s", at+1, len(steps), name), "about", minutes(steps[at].took), "left", minutes(left))
}

func minutes(d time.Duration) string {
	return fmt.Sprintf("%d min", max(1, int(d.Round(time.Minute).Minutes())))
}

// fitting splits member counts to measure into those that a machine with this much room can carry, and those to leave out. If none
// fits, the room itself is measured.
func fitting(sizes []int, room int) (fit, out []int) {
	for _, n := range sizes {
		if n <= room {
			fit = append(fit, n)
		} else {
			out = append(out, n)
		}
	}
	if len(fit) == 0 && room > 0 {
		fit = []int{room}
	}
	return fit, out
}

// leftOut says what is not measured and why; "" if everything is.
func leftOut(out []int, room int, memory api.Bytes) string {
	if len(out) == 0 {
		return ""
	}
	numbers := make([]string, 0, len(out))
	for _, n := range out {
		numbers = append(numbers, fmt.Sprint(n))
	}
	return fmt.Sprintf("%s members omitted: this machine has room for %d of %s each", strings.Join(numbers, " and "), room, memory)
}

// room returns how many members of the site's memory fit its first node.
func (s *site) room(ctx context.Context) (int, error) {
	nodes, err := s.client.Nodes(ctx)
	if err != nil {
		return 0, err
	}
	if len(nodes) == 0 {
		return 0, fmt.Errorf("the site has no node")
	}
	return int(nodes[0].Offer.Capacity.MemoryBytes / int64(s.memory)), nil
}

// machinesFor returns how many emulated machines of a rush a computer's memory carries beside the programs that serve them.
func machinesFor(totalBytes int64) int {
	const each, reserve = 2 << 30, 4 << 30
	return int(min(rushMachines, max(0, totalBytes-reserve)/each))
}
