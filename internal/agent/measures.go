package agent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/gpu"
)

// measureTime bounds a measurement; the server's patience is longer.
const measureTime = 25 * time.Second

// shortestLoad is the shortest time over which the load of the node's own OpenCL device is measured.
const shortestLoad = 10 * time.Second

// measures is what the last measurement found of servers, from which the next one goes on.
type measures struct {
	mu     sync.Mutex
	served []driver.ServedGPU
	at     time.Time
}

// measure answers the server's question about the GPUs that this node hands out.
func (a *Agent) measure(ctx context.Context, stream *agentstream.ClientConn, asked agentstream.Measure) {
	a.measures.mu.Lock() // the server asks once at a time; after a new stream, the measurement before may still run
	defer a.measures.mu.Unlock()
	served, at := a.servedGPUs(), time.Now()
	answer := agentstream.Measured{Answer: agentstream.AnswerTo(asked.ID, nil), Loads: map[string]float64{}, Served: map[string]api.GPUService{}}
	if a.cfg.Loads != nil {
		maps.Copy(answer.Loads, a.cfg.Loads())
	}
	if elapsed := at.Sub(a.measures.at); !a.measures.at.IsZero() && elapsed >= shortestLoad {
		if load, ok := processorLoad(a.measures.served, served, elapsed); ok {
			answer.Loads[gpu.OpenCLID] = load
		}
	}
	if at.Sub(a.measures.at) >= shortestLoad || a.measures.at.IsZero() {
		a.measures.served, a.measures.at = served, at
	}
	for _, s := range served {
		answer.Served[s.ID] = s.Service
	}
	if a.cfg.RoundTrips != nil {
		ctx, cancel := context.WithTimeout(ctx, measureTime)
		defer cancel()
		trips, err := a.cfg.RoundTrips(ctx, asked.Peers[:min(len(asked.Peers), agentstream.MaxPeers)])
		if err != nil {
			a.cfg.Log.InfoContext(ctx, "round trips to other nodes can't be measured", "error", err)
		}
		for peer, took := range trips {
			if answer.RoundTrips == nil {
				answer.RoundTrips = map[netip.Addr]float64{}
			}
			answer.RoundTrips[peer] = took.Seconds()
		}
	}
	_ = stream.Send(agentstream.Up{Measured: &answer}) // as in countHome
}

// servedGPUs are the servers of GPUs on this node, by any driver.
func (a *Agent) servedGPUs() (all []driver.ServedGPU) {
	for _, d := range a.drivers {
		if meter, ok := d.(driver.GPUMeter); ok {
			all = append(all, meter.ServedGPUs()...)
		}
	}
	return all
}

// processorLoad is the part of a time in which the node's own OpenCL device, which is its processor, worked for servers: their processor time, of what the
// CPUs that they share could have given. It is not known while no server tells how many CPUs there are. Servers that have started since are left out.
func processorLoad(before, now []driver.ServedGPU, elapsed time.Duration) (load float64, ok bool) {
	used, cpus := 0.0, 0
	for _, s := range now {
		if !slices.Contains(s.Devices, gpu.OpenCLID) {
			continue
		}
		cpus = max(cpus, s.CPUs)
		if i := slices.IndexFunc(before, func(o driver.ServedGPU) bool { return o.ID == s.ID }); i >= 0 {
			used += max(0, s.CPUSeconds-before[i].CPUSeconds)
		}
	}
	if cpus == 0 || elapsed <= 0 {
		return 0, false
	}
	return min(1, used/(elapsed.Seconds()*float64(cpus))), true
}
