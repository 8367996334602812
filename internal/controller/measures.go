package controller

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/gpumeasure"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

const (
	// measuresLook is how often the leader looks for nodes that are due, measuresEvery how often each is.
	measuresLook  = 5 * time.Second
	measuresEvery = 30 * time.Second
	// measuredAtOnce bounds how many nodes measure at a time.
	measuredAtOnce = 16
)

// keepMeasures has nodes that hand out GPUs measure until ctx ends, and stores that. It is apart from the passes, as energy is.
func (l *leader) keepMeasures(ctx context.Context) {
	tick := time.NewTicker(measuresLook)
	defer tick.Stop()
	asked := map[string]time.Time{}
	for {
		l.measure(ctx, asked)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// measure has the nodes measure that are due. asked is when each was asked last, by the machine's clock.
func (l *leader) measure(ctx context.Context, asked map[string]time.Time) {
	view, now := l.cfg.Cache.View(), l.cfg.Now()
	places := make(chan struct{}, measuredAtOnce)
	var group sync.WaitGroup
	for _, n := range view.Nodes {
		at, before := asked[n.Name]
		if !gpumeasure.Serves(n.Agent) || before && now.Sub(at) < measuresEvery {
			continue
		}
		if phase, _, _ := l.cfg.Agents.Node(n.Name); phase != api.NodeReady {
			continue
		}
		asked[n.Name] = now
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			if err := l.measureNode(ctx, view, n); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, state.ErrNotFound) {
				l.log.WarnContext(ctx, "the GPUs that a node hands out can't be measured; what was measured before stays, with its age", "node", n.Name, "error", err)
			}
		})
	}
	group.Wait()
}

// measureNode has one node measure, and stores that.
func (l *leader) measureNode(ctx context.Context, view *state.View, n *state.Node) error {
	addresses, others := map[string]netip.Addr{}, []string(nil)
	for a := range view.Agents() {
		if address, err := netip.ParseAddr(a.Underlay); err == nil && a.GPUPrograms {
			addresses[a.Name], others = address, append(others, a.Name)
		}
	}
	peers := gpumeasure.Peers(n.Name, others, n.Measures, agentstream.MaxPeers)
	to := make([]netip.Addr, len(peers))
	for i, name := range peers {
		to[i] = addresses[name]
	}
	said, err := l.cfg.Agents.Measure(ctx, n.Name, to)
	if err != nil {
		return err
	}
	at := l.clock.at(l.cfg.Now())
	now := api.NodeMeasures{Node: n.Name, Loads: map[string]api.GPULoad{}, RoundTrips: map[string]api.RoundTrip{}, Served: said.Served}
	for id, busy := range said.Loads {
		now.Loads[id] = api.GPULoad{Busy: busy, At: at}
	}
	for i, name := range peers {
		if seconds, ok := said.RoundTrips[to[i]]; ok {
			now.RoundTrips[name] = api.RoundTrip{Seconds: seconds, At: at}
		}
	}
	_, err = l.writer.PutMeasures(ctx, gpumeasure.Merge(n.Measures, now, func(name string) bool { return view.Agent(name) != nil }))
	return err
}
