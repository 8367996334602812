package controller

import (
	"context"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// fabricAlarms stores events when alarms of fabrics begin and end. Which ones have begun is in the events themselves, so a new leader goes on.
func (p *pass) fabricAlarms(ctx context.Context) error {
	var events []api.Event
	for _, cell := range p.cfg.Fabrics.Names() {
		if p.alarms[cell] == nil {
			log, err := p.cfg.Repo.Events(ctx, state.FabricLog(cell), 0, state.EventsKept)
			if err != nil {
				return err
			}
			p.alarms[cell] = situation.OpenAlarms(log)
		}
		events = append(events, situation.AlarmEvents(cell, p.alarms[cell], p.cfg.Fabrics[cell].Alarms(), p.now)...)
	}
	if err := p.emit(ctx, events); err != nil {
		clear(p.alarms) // what was stored is read again
		return err
	}
	for _, e := range events {
		if e.Reason == api.ReasonAlarm {
			p.alarms[e.Fabric][e.Alarm] = e
		} else {
			delete(p.alarms[e.Fabric], e.Alarm)
		}
	}
	return nil
}
