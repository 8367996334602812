package main

import (
	"bytes"
	"fmt"
)

// of are the values of the runs of a side and size that have one.
func (b *wholeBench) of(side string, size int, value func(wholeRun) (float64, bool)) (all []float64) {
	for _, r := range b.runs {
		if r.side != side || r.size != size {
			continue
		}
		if v, ok := value(r); ok {
			all = append(all, v)
		}
	}
	return all
}

// tell writes what came out: a row for each stage, a column for each side.
func (b *wholeBench) tell(text *bytes.Buffer, sizes []int, busy string) {
	fmt.Fprintf(text, "Clusters of whole machines (%d cores and %d MiB each, emulated) from request to MPI, %d rounds, load %s to %s: seconds until the last machine has ended a stage, median (lowest to highest)\n",
		wholeCores, wholeMiB, b.o.pairs, busy, load())
	shown := func(values []float64, digits int) string {
		if len(values) == 0 {
			return "-"
		}
		return spread(values, digits)
	}
	for _, size := range sizes {
		sides := []string{nearmetal, sideHand}
		if size == wholeWarm {
			sides = append(sides, sideWarm)
		}
		for _, stage := range wholeStages() {
			fmt.Fprintf(text, "  %d machines: %-23s", size, stage)
			for _, side := range sides {
				fmt.Fprintf(text, "  %s %s", side, shown(b.of(side, size, func(r wholeRun) (float64, bool) { v, ok := r.ended[stage]; return v, ok }), 1))
			}
			text.WriteString("\n")
		}
		b.tellOwn(text, size, sides, shown)
	}
	for i, what := range []string{"until the member was not ready any more", "until the cluster was ready again", "until MPI ran again"} {
		var all []float64
		for _, l := range b.lost {
			all = append(all, l[i])
		}
		fmt.Fprintf(text, "  power cut of the only machine, seconds %s: %s\n", what, shown(all, 1))
	}
	text.WriteString("\n")
}

// tellOwn writes the ratio, what of the time is the control plane's own, and how soon machines are free.
func (b *wholeBench) tellOwn(text *bytes.Buffer, size int, sides []string, shown func([]float64, int) string) {
	mpi := func(r wholeRun) (float64, bool) { v, ok := r.ended[tillMPI]; return v, ok }
	hand := b.of(sideHand, size, mpi)
	for _, side := range sides {
		if side == sideHand {
			continue
		}
		ours := b.of(side, size, mpi)
		var ratios []float64
		for i := range min(len(ours), len(hand)) {
			ratios = append(ratios, ours[i]/hand[i])
		}
		own := func(what string) func(wholeRun) (float64, bool) {
			return func(r wholeRun) (float64, bool) { v, ok := r.own[what]; return v, ok }
		}
		all := func(r wholeRun) (float64, bool) {
			return r.own["placement"] + r.own["answers"] + r.own["start"] + r.own["ready"], true
		}
		fmt.Fprintf(text, "  %d machines: %s over by hand until MPI, by round: %s; the control plane's own share %s s: to choose machines %s, to answer DHCP and scripts %s, from the end of a boot to the start of its member %s, from the last member to the cluster %s\n",
			size, side, shown(ratios, 2), shown(b.of(side, size, all), 2), shown(b.of(side, size, own("placement")), 2), shown(b.of(side, size, own("answers")), 2), shown(b.of(side, size, own("start")), 2), shown(b.of(side, size, own("ready")), 2))
		fmt.Fprintf(text, "  %d machines: %s from delete to gone %s s, to all machines clean and at rest %s s\n", size, side,
			shown(b.of(side, size, func(r wholeRun) (float64, bool) { return r.gone, true }), 1), shown(b.of(side, size, func(r wholeRun) (float64, bool) { return r.free, true }), 1))
	}
}
