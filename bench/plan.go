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

// Steps that no flag names.
const (
	stepImages    = "images that machines boot"
	stepLife      = "scaling, healing, lists and watches"
	stepSides     = "clusters by all sides in turn"
	stepSilent    = "silent nodes"
	stepNoise     = "noise of an idle site"
	stepAcross    = "TCP between two nodes"
	stepThousand  = "a cluster of 1,000 members on simulated nodes"
	stepJobs      = "jobs beside Slurm's"
	stepPlacement = "cost of placement"
	// stepVM is followed by the part of -vm.
	stepVM = "virtual machines: "
)

// usual is about how long each part takes.
var usual = map[string]time.Duration{
	partBuilds: 10 * time.Minute, partBoots: 10 * time.Minute, partRush: 8 * time.Minute, partEnrolment: 5 * time.Minute,
	"dhcp": 2 * time.Minute, "transfers": 3 * time.Minute, "storms": 4 * time.Minute,
	stepVM + partStarts: 4 * time.Minute, stepVM + partMany: 6 * time.Minute, stepVM + partSaves: 3 * time.Minute, stepVM + partHomes: 3 * time.Minute,
	stepImages: 5 * time.Minute, stepLife: 5 * time.Minute, stepSilent: 2 * time.Minute, stepNoise: 4 * time.Minute, stepAcross: 2 * time.Minute, stepThousand: time.Minute, stepPlacement: 2 * time.Minute,
}

// roundOf is about how long one side takes for one member of one round: it is made and removed again.
const roundOf = 200 * time.Millisecond

// jobRoundOf is about how long a round of jobs takes on both sides, most of it Slurm's. The first runs twice, to prove that jobs run.
const jobRoundOf = 30 * time.Second

// steps returns what the bench does with these options, in order.
func (o options) steps() ([]step, error) {
	parts, err := o.parts()
	if err != nil {
		return nil, err
	}
	virtual, err := o.vmParts()
	if err != nil {
		return nil, err
	}
	var names []string
	switch {
	case slices.Contains(parts, partBuilds):
		names = append(names, partBuilds)
	case len(parts)+len(virtual) > 0:
		names = append(names, stepImages)
	}
	if o.netboot != "" {
		names = append(names, strings.Split(o.netboot, ",")...)
	}
	names = append(names, slices.DeleteFunc(slices.Clone(parts), func(part string) bool { return part == partBuilds })...)
	for _, part := range virtual {
		names = append(names, stepVM+part)
	}
	if o.clusters {
		for _, s := range []struct {
			name string
			on   bool
		}{{stepLife, o.life && o.sides}, {stepSides, o.sides}, {stepSilent, o.life}, {stepNoise, o.noise}, {stepAcross, o.across}, {stepThousand, o.thousand}, {stepJobs, o.jobs}, {stepPlacement, o.placement}} {
			if s.on {
				names = append(names, s.name)
			}
		}
	}
	steps := make([]step, 0, len(names))
	for _, name := range names {
		s := step{name, usual[name]}
		switch name {
		case stepSides:
			s.took = o.sidesTake()
		case stepJobs:
			s.took = time.Duration(o.rounds+2) * jobRoundOf
		}
		steps = append(steps, s)
	}
	return steps, nil
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
func announce(o options, log *slog.Logger) error {
	steps, err := o.steps()
	if err != nil {
		return err
	}
	names, total := make([]string, 0, len(steps)), time.Duration(0)
	for _, s := range steps {
		names = append(names, s.name)
		total += s.took
	}
	log.Info(fmt.Sprintf("%d parts, about %s on two quiet cores; BENCH_FLAGS chooses among them", len(steps), minutes(total)), "parts", strings.Join(names, ", "))
	return nil
}

// begin says which part begins, and about how long it and those after it take.
func begin(o options, log *slog.Logger, name string) {
	steps, err := o.steps()
	at := slices.IndexFunc(steps, func(s step) bool { return s.name == name })
	if err != nil || at < 0 {
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
