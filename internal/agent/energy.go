package agent

import (
	"context"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/energy"
	"github.com/nearmetal/nearmetal/internal/energy/command"
	"github.com/nearmetal/nearmetal/internal/energy/pdu"
	"github.com/nearmetal/nearmetal/internal/energy/rapl"
)

// Energy reads what the node consumes, given the CPU times of its members in nanoseconds. *energy.Sampler implements it.
type Energy interface {
	Sample(ctx context.Context, members map[string]int64) (api.EnergySample, error)
}

// sendEnergy sends what the node consumes, with the CPU time of its members and the traffic of their ports as of the same moment.
func (a *Agent) sendEnergy(ctx context.Context, stream *agentstream.ClientConn, uses map[string]api.MemberUse) error {
	if a.cfg.Energy == nil {
		return nil
	}
	members := make(map[string]int64, len(uses))
	for id, use := range uses {
		members[id] = int64(use.CPUSeconds * float64(time.Second))
	}
	sample, err := a.cfg.Energy.Sample(ctx, members)
	if err != nil {
		if ctx.Err() == nil {
			a.cfg.Log.WarnContext(ctx, "the node's energy can't be read", "error", err)
		}
		return nil //nolint:nilerr // the next reading may succeed
	}
	if counted, err := a.cfg.Fabric.Count(ctx); err == nil { // else the traffic is not known
		var sent, received int64
		for _, c := range counted {
			sent, received = sent+c.SentBytes, received+c.ReceivedBytes
		}
		sample.SentBytes, sample.ReceivedBytes = &sent, &received
	}
	return stream.Send(agentstream.Up{Energy: &sample})
}

// openEnergy opens the sources of the node's energy.
func openEnergy(opts config.Agent) (*energy.Sampler, error) {
	var cfg energy.SamplerConfig
	absent := func(source api.EnergySource, reason string) {
		cfg.Absent = append(cfg.Absent, api.EnergyReading{Source: source, Tag: api.EnergyUnavailable, Reason: reason})
	}
	switch {
	case opts.RAPLTree == config.RAPLOff:
		absent(api.EnergyRAPL, "it is off on this node (--rapl-tree off), as where several nodes share one machine, whose counters are of all of it")
	case opts.RAPLTree != "":
		cfg.Direct = append(cfg.Direct, rapl.Open(opts.RAPLTree, nil))
	case opts.SharedCPUs:
		absent(api.EnergyRAPL, "several nodes share this machine, whose counters are of all of it")
	default:
		cfg.Direct = append(cfg.Direct, rapl.Open(rapl.DefaultTree, nil))
	}
	if opts.EnergyFile != "" {
		file, err := readEnergyFile(opts.EnergyFile)
		if err != nil {
			return nil, err
		}
		if len(file.Outlets) > 0 {
			cfg.Slow = append(cfg.Slow, pdu.New(file.Outlets))
		}
		if len(file.Command) > 0 {
			cfg.Slow = append(cfg.Slow, command.New(file.Command))
		}
	}
	return energy.NewSampler(cfg), nil
}
