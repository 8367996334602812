package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/store"
)

// faults makes events of errors that nodes' memory and disks have counted.
func (p *pass) faults(ctx context.Context) error {
	var errs []error
	for _, n := range p.view.Nodes {
		seen, heard := p.cfg.Agents.Faults(n.Name)
		if !heard {
			continue
		}
		tenant := n.Identity != nil && n.Identity.Member != ""
		if tenant { // whatever its kernel calls its boots
			seen.Boot = n.Identity.Member
		}
		next, messages := lifecycle.PlanFaults(lifecycle.FaultInput{Told: n.Faults, Seen: seen, Tenant: tenant, Now: p.now})
		if next == nil {
			continue
		}
		next.Node = n.Name
		var events []api.Event
		for _, text := range messages {
			events = append(events, api.Event{Time: p.now, Node: n.Name, Reason: api.ReasonHardwareFault, Message: api.ShortMessage(text)})
		}
		revision, err := p.writer.CommitFaults(ctx, n, *next, events)
		switch {
		case errors.Is(err, store.ErrNotLeader):
			return err
		case errors.Is(err, store.ErrConflict):
		case err != nil:
			errs = append(errs, fmt.Errorf("node %q: %w", n.Name, err))
		}
		p.committed = max(p.committed, revision)
		for _, e := range events {
			p.log.WarnContext(ctx, e.Message, "reason", e.Reason, "node", e.Node)
		}
	}
	return errors.Join(errs...)
}
