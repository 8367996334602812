package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
	"github.com/nearmetal/nearmetal/internal/store"
)

// bmcLogs makes events of what came into the event logs of machines' BMCs.
func (p *pass) bmcLogs(ctx context.Context) error {
	if p.cfg.Provisioning == nil || p.cfg.Provisioning.Sensors == nil {
		return nil
	}
	var errs []error
	for uid, news := range p.cfg.Provisioning.Sensors.News() {
		m := p.view.MachineByUID(uid)
		if m == nil || !sensors.SameMark(m.LogMark, news.After) {
			continue // it was read after another mark than the one that is true now
		}
		var events []api.Event
		for _, line := range news.Log.Lines() {
			events = append(events, api.Event{Time: p.now, Node: m.Name(), Reason: api.ReasonBMCLog, Message: api.ShortMessage("BMC log: " + line)})
		}
		revision, err := p.writer.CommitMachineLog(ctx, m, news.Log.Mark, events)
		switch {
		case errors.Is(err, store.ErrNotLeader):
			return err
		case errors.Is(err, store.ErrConflict): // the next pass sees why
		case err != nil:
			errs = append(errs, fmt.Errorf("machine %q: %w", m.Name(), err))
		}
		p.committed = max(p.committed, revision)
		for _, e := range events {
			p.log.InfoContext(ctx, e.Message, "reason", e.Reason, "node", e.Node)
		}
	}
	return errors.Join(errs...)
}
