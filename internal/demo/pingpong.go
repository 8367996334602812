package demo

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// pingPongTime bounds the ping-pong by its number of pairs: each takes about four seconds, and more on a machine that is busy.
const pingPongTime = 8 * time.Second

// pingPong measures how messages travel, on both sides in turn.
func (v *visit) pingPong(ctx context.Context) error {
	v.part("How near to the bare machine: messages")
	program, err := v.install(v.programs.PingPong)
	if err != nil {
		return err
	}
	cpus, err := v.memberCPUs()
	if err != nil {
		return err
	}
	e := v.pingPongExperiment(cpus)
	argument := strconv.Itoa(v.milliseconds())
	onMemory := v.onHost(cpus, measure.TransportSharedMemory, v.programs.PingPong, argument)
	first := true
	parse := func(output []byte) ([]measure.Point, error) {
		if first {
			e.Conditions = append(e.Conditions, measure.Condition{Name: "MPI", Value: mpiVersion(output)})
		}
		first = false
		return measure.ParsePoints(output, measure.LatencyUS, measure.BandwidthMBPerS)
	}
	err = v.step("measuring ping-pong over TCP", func() error {
		v.say("%s", v.terms(cpus))
		e.Runs, err = v.inTurn(ctx, measure.Pairs{
			Run: map[string]measure.Runner{
				hostSide:    v.onHost(cpus, measure.TransportTCP, v.programs.PingPong, argument),
				clusterSide: v.onCluster(program, argument),
			},
			Parse: parse, Patience: time.Duration(v.opts.Pairs) * cmp.Or(v.opts.pairTime, pingPongTime),
		}, pingPongLine)
		if err != nil {
			return err
		}
		began := time.Now()
		output, err := onMemory(ctx)
		if err != nil {
			return err
		}
		points, err := parse(output)
		e.Runs = append(e.Runs, measure.Run{
			Side: memorySide, StartedAt: began, DurationSeconds: time.Since(began).Seconds(), Points: points,
		})
		return err
	})
	if err != nil {
		return err
	}
	v.measured = time.Since(e.Runs[0].StartedAt)
	return v.publish(e)
}

// pingPongExperiment describes what is measured and under which conditions; the runs come later.
func (v *visit) pingPongExperiment(cpus []int) measure.Experiment {
	return measure.Experiment{
		Title: "MPI ping-pong: bare host and cluster",
		Summary: "Two ranks send a message back and forth. On the host they run as plain processes, in the cluster as a job on two " +
			"members, pinned to the same cores, from the same file. Both sides use Open MPI's TCP transport and no other: members are " +
			"separate machines to each other and share no memory, so the host's ranks are not allowed to either. The host's messages " +
			"cross the loopback interface, the cluster's a veth pair and a bridge; the difference is the price of the private network. " +
			"The dotted line shows what the host does through shared memory, which no network can.",
		Axis:    measure.Axis{Name: "Message size", Unit: "B", Bytes: true},
		Metrics: measure.PingPongMetrics(),
		Sides: append(tcpSides(cpus), measure.Side{
			Name: memorySide, Description: fmt.Sprintf("bare processes on CPUs %s; Open MPI btl vader,self (shared memory), measured once", list(cpus)), Reference: true,
		}),
		Highlights: []measure.Highlight{
			{Metric: measure.LatencyUS, Side: clusterSide, X: 8, Goal: goal},
			{Metric: measure.BandwidthMBPerS, Side: clusterSide, X: 4 << 20, Goal: goal},
		},
		Oversubscribed: oversubscription(v.cluster),
		Conditions: append(machine(),
			measure.Condition{Name: "Per run", Value: fmt.Sprintf("%d ms a message size, median of 5 loops after a warm-up", v.milliseconds())},
			measure.Condition{Name: "Nearmetal", Value: config.Version()}),
	}
}

func (v *visit) milliseconds() int {
	if v.opts.SizeMilliseconds > 0 {
		return v.opts.SizeMilliseconds
	}
	return 60
}

// pingPongLine says what a run measured at the smallest and the largest size.
func pingPongLine(r measure.Run) string {
	first, last := r.Points[0], r.Points[len(r.Points)-1]
	return fmt.Sprintf("%.1f µs, %.0f MB/s", first.Values[measure.LatencyUS], last.Values[measure.BandwidthMBPerS])
}
