package controller

import (
	"context"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// tightCache names a cache through which a cluster reads.
type tightCache struct{ cluster, node, dataset string }

// tightCaches stores an event for each cluster and cache that has turned out too small for it. Which were told of is in the events themselves, so a new leader
// tells of none again.
func (p *pass) tightCaches(ctx context.Context) error {
	if len(p.view.Datasets) == 0 {
		return nil
	}
	now := map[tightCache]bool{}
	var events []api.Event
	for _, t := range situation.TightCaches(p.view, p.cfg.Agents.Datasets()) {
		key := tightCache{t.Cluster.UID(), t.Node, t.Dataset}
		now[key] = true
		if p.tight[key] {
			continue
		}
		log, err := p.cfg.Repo.Events(ctx, t.Cluster.Name(), 0, state.EventsKept)
		if err != nil {
			return err
		}
		if !t.Said(log) {
			events = append(events, t.Event(p.now))
		}
	}
	if err := p.emit(ctx, events); err != nil {
		return err
	}
	p.leader.tight = now
	return nil
}
