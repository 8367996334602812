package placement

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Maintenance is what a node is called that is schedulable, but not for members that would still be there when its maintenance begins.
const Maintenance Availability = "maintenance"

// SetWindow notes when the maintenance of a node begins; zero: none is announced. A node that is not in the inventory has none.
func (v *View) SetWindow(name string, begins time.Time) {
	id, ok := v.ids[name]
	if !ok {
		return
	}
	v.rows[id].window = 0
	if !begins.IsZero() {
		v.rows[id].window = max(begins.Unix(), 1)
	}
}

// reachesWindow reports whether members that end then would still be on a node when its maintenance begins. Those without an end would.
func (r *row) reachesWindow(ends time.Time) bool {
	return r.window != 0 && (ends.IsZero() || ends.Unix() > r.window)
}

// beforeWindow reports whether the members of a group may be on a node as far as its maintenance is concerned.
func (v *View) beforeWindow(id int32, g *api.Group) bool { return !v.rows[id].reachesWindow(g.Ends) }
