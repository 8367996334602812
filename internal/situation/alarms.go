package situation

import (
	"maps"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
)

// OpenAlarms returns the events of a fabric's log that began alarms which have not ended, by the alarms' keys. Events are in order.
func OpenAlarms(events []api.Event) map[string]api.Event {
	open := map[string]api.Event{}
	for _, e := range events {
		switch e.Reason {
		case api.ReasonAlarm:
			open[e.Alarm] = e
		case api.ReasonAlarmEnded:
			delete(open, e.Alarm)
		}
	}
	return open
}

// AlarmEvents returns the events that say what has begun and ended since the open alarms were noted, in order of the alarms' keys.
func AlarmEvents(fabric string, open map[string]api.Event, found site.Alarms, now time.Time) []api.Event {
	var events []api.Event
	for _, a := range found.Present {
		if _, is := open[a.Key()]; !is {
			events = append(events, api.Event{Time: now, Fabric: fabric, Alarm: a.Key(), Reason: api.ReasonAlarm, Message: a.Message})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(open)) {
		if found.Over(key) {
			events = append(events, api.Event{Time: now, Fabric: fabric, Alarm: key, Reason: api.ReasonAlarmEnded, Message: "this is over: " + open[key].Message})
		}
	}
	return events
}
