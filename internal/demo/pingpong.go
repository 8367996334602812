package demo

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// pingPongTime bounds the ping-pong by its number of pairs: each takes about four seconds, and more on a machine that is busy.
const pingPongTime = 8 * time.Second

// streamTime bounds the memory program's pairs, of which each takes about three seconds.
const streamTime = 6 * time.Second

// messages measures how messages travel, on both sides in turn: over TCP on both, and through shared memory on both where members of one
// node share any.
func (v *visit) messages(ctx context.Context) error {
	v.part("How near to the bare machine: messages")
	program, err := v.install(v.programs.PingPong)
	if err != nil {
		return err
	}
	cpus, err := v.memberCPUs()
	if err != nil {
		return err
	}
	if err := v.findOwnCarrier(ctx, program); err != nil {
		return err
	}
	if v.own.Kind == measure.CarriedByMemory {
		if err := v.pingPong(ctx, program, cpus, measure.TransportOwn); err != nil {
			return err
		}
	}
	if v.ownIsUCX() {
		if err := v.pingPong(ctx, program, cpus, measure.TransportUCX); err != nil {
			return err
		}
	}
	return v.pingPong(ctx, program, cpus, measure.TransportTCP)
}

// findOwnCarrier finds out what carries messages between members when nothing is asked for.
func (v *visit) findOwnCarrier(ctx context.Context, program string) error {
	output, err := v.onCluster(measure.TransportOwn, program, "1", "8")(ctx)
	if err != nil {
		return err
	}
	v.own = measure.FindCarrier(output)
	if v.own.Kind == measure.CarriedByMemory {
		v.say("members exchange messages through %s; they are compared with the host through shared memory, and over TCP with the host over TCP", v.own)
	} else {
		v.say("members exchange messages by %s; they are compared with the host over TCP, too, and not with its shared memory", v.own)
	}
	return nil
}

// ownIsUCX tells whether members share memory by UCX, and not by Open MPI's own transport, which the host chooses: then the host is measured by
// both. What differs between the two is MPI's, what differs within UCX is the cluster's.
func (v *visit) ownIsUCX() bool {
	return v.own.Kind == measure.CarriedByMemory && !slices.Contains(v.own.By, string(measure.TransportSharedMemory))
}

// ownTransport returns the transport by which members exchange messages at their best, for both sides.
func (v *visit) ownTransport() (host, cluster measure.Transport) {
	if v.own.Kind == measure.CarriedByMemory {
		return measure.TransportSharedMemory, measure.TransportOwn
	}
	return measure.TransportTCP, measure.TransportTCP
}

// pingPong measures messages of both sides by one kind of transport.
func (v *visit) pingPong(ctx context.Context, program string, cpus []int, transport measure.Transport) error {
	e, argument := v.pingPongExperiment(cpus, transport), strconv.Itoa(v.milliseconds())
	hostTransport, clusterTransport, what := transport, transport, "TCP"
	switch transport {
	case measure.TransportOwn:
		hostTransport, what = measure.TransportSharedMemory, "shared memory"
	case measure.TransportUCX:
		clusterTransport, what = measure.TransportOwn, "shared memory, by UCX on both sides"
	}
	first := true
	parse := func(output []byte) ([]measure.Point, error) {
		if first {
			e.Conditions = append(e.Conditions, measure.Condition{Name: "MPI", Value: mpiVersion(output)})
		}
		first = false
		return measure.ParsePoints(output, measure.LatencyUS, measure.BandwidthMBPerS)
	}
	err := v.step("measuring ping-pong over "+what, func() (err error) {
		v.say("%s", terms(v.opts.Pairs, cpus))
		e.Runs, err = v.inTurn(ctx, measure.Pairs{
			Count: v.opts.Pairs,
			Run: map[string]measure.Runner{
				hostSide:    v.onHost(cpus, hostTransport, v.programs.PingPong, argument),
				clusterSide: v.onCluster(clusterTransport, program, argument),
			},
			Parse: parse, Carrier: measure.FindCarrier, Patience: v.patience(cmp.Or(v.opts.pairTime, pingPongTime)),
		}, pingPongLine)
		if err != nil || !v.withMemorySide(transport) {
			return err
		}
		began := time.Now()
		output, err := v.onHost(cpus, measure.TransportSharedMemory, v.programs.PingPong, argument)(ctx)
		if err != nil {
			return err
		}
		points, err := parse(output)
		carrier := measure.FindCarrier(output)
		e.Runs = append(e.Runs, measure.Run{
			Side: memorySide, StartedAt: began, DurationSeconds: time.Since(began).Seconds(), CarriedBy: &carrier, Points: points,
		})
		return err
	})
	if err != nil {
		return err
	}
	return v.publish(e, v.opts.Pairs)
}

// withMemorySide tells whether the host's shared memory is shown beside the sides: where nothing is compared with it.
func (v *visit) withMemorySide(transport measure.Transport) bool {
	return transport == measure.TransportTCP && v.own.Kind != measure.CarriedByMemory
}

// patience bounds a measurement by its number of pairs.
func (v *visit) patience(pair time.Duration) time.Duration {
	if v.opts.Thorough {
		pair *= 2 // nobody waits for the rest of the tour
	}
	return time.Duration(v.opts.Pairs) * pair
}

// pingPongExperiment describes what is measured and under which conditions; the runs come later.
func (v *visit) pingPongExperiment(cpus []int, transport measure.Transport) measure.Experiment {
	e := measure.Experiment{
		Title: "MPI ping-pong through shared memory: bare host and cluster",
		Summary: "Two ranks send a message back and forth. On the host they run as plain processes, in the cluster as a job on two " +
			"members of one node, pinned to the same cores, from the same file. On both sides messages go through memory that the ranks share.",
		Axis:    measure.Axis{Name: "Message size", Unit: "B", Bytes: true},
		Metrics: measure.PingPongMetrics(),
		Sides:   sides(cpus, transport),
		Highlights: []measure.Highlight{
			{Metric: measure.LatencyUS, Side: clusterSide, X: 8, Goal: goal},
			{Metric: measure.BandwidthMBPerS, Side: clusterSide, X: 4 << 20, Goal: goal},
		},
		Oversubscribed: oversubscription(v.cluster),
		Conditions: append(machine(),
			measure.Condition{Name: "Per run", Value: fmt.Sprintf("%d ms a message size, median of 5 loops after a warm-up", v.milliseconds())},
			measure.Condition{Name: "Nearmetal", Value: config.Version()}),
	}
	switch transport {
	case measure.TransportOwn:
		return e
	case measure.TransportUCX:
		e.Title = "MPI ping-pong through shared memory, by UCX on both sides: bare host and cluster"
		e.Summary = "The same, but the host's ranks use UCX (pml ucx), too, as members do among themselves. On a host Open MPI would choose a " +
			"transport of its own (vader), which is faster for small messages and slower for others. What both sides have in common cancels out here: what is left is what " +
			"the cluster costs."
		return e
	}
	e.Title = "MPI ping-pong over TCP: bare host and cluster"
	e.Summary = "Two ranks send a message back and forth. On the host they run as plain processes, in the cluster as a job on two " +
		"members of one node, pinned to the same cores, from the same file. Both sides use Open MPI's TCP transport and no other. The host's " +
		"messages cross the loopback interface, the cluster's a veth pair, past the bridge; the difference is the price of the private network."
	if v.withMemorySide(transport) {
		e.Summary += " The dotted line shows what the host does through shared memory, which these members do not have in common."
		e.Sides = append(e.Sides, measure.Side{
			Name: memorySide, Description: fmt.Sprintf("bare processes on CPUs %s; Open MPI btl vader,self (shared memory), measured once", list(cpus)), Reference: true,
		})
	}
	return e
}

func (v *visit) milliseconds() int {
	if v.opts.SizeMilliseconds > 0 {
		return v.opts.SizeMilliseconds
	}
	if v.own.Kind == measure.CarriedByMemory && !v.opts.Thorough {
		return 30 // several transports in the time of one
	}
	return 60
}

// pingPongLine says what a run measured at the smallest and the largest size.
func pingPongLine(r measure.Run) string {
	first, last := r.Points[0], r.Points[len(r.Points)-1]
	return fmt.Sprintf("%.1f µs, %.0f MB/s", first.Values[measure.LatencyUS], last.Values[measure.BandwidthMBPerS])
}
