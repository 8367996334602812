package lifecycle

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Finding is something wrong with a node that its operators may want it drained for.
type Finding struct {
	Cause api.DrainCause
	// Key tells it from other findings of its node, and is the same for as long as it lasts.
	Key string
	// Text is for people.
	Text string
}

// DrainInput is what a decision about the drain of one node depends on.
type DrainInput struct {
	// Control is what is wanted of the node; nil: nothing.
	Control *api.NodeControl
	// Causes are those of the policy.
	Causes []api.DrainCause
	// Findings are those of now. Unheard are causes of which nothing is known now: what was found of them may still be so.
	Findings []Finding
	Unheard  map[api.DrainCause]bool
	Now      time.Time
}

// PlanDrain returns what is to be wanted of a node that degrades, and the reason for people; nil when nothing changes. A finding drains a node
// once. An operator who undrains it has seen the finding, and it drains again only after it was over. Nothing here moves or ends a member, and
// nothing undrains.
func PlanDrain(in DrainInput) (next *api.NodeControl, reason string) {
	control := api.NodeControl{}
	if in.Control != nil {
		control = *in.Control
	}
	known := control.Findings
	var fresh, kept, texts []string
	for _, f := range in.Findings {
		if slices.Contains(in.Causes, f.Cause) && !slices.Contains(known, f.Key) && !slices.Contains(fresh, f.Key) {
			fresh, texts = append(fresh, f.Key), append(texts, f.Text)
		}
	}
	for _, key := range known {
		cause, _, _ := strings.Cut(key, " ")
		lasts := slices.ContainsFunc(in.Findings, func(f Finding) bool { return f.Key == key })
		if lasts || control.Drained || in.Unheard[api.DrainCause(cause)] {
			kept = append(kept, key)
		}
	}
	switch {
	case len(fresh) > 0:
		reason = strings.Join(texts, "; ")
		if !control.Drained {
			control.Drained, control.Stay, control.Reason, control.By, control.Since = true, true, api.ShortMessage(reason), api.DrainPolicy, in.Now
		}
	case len(kept) == len(known):
		return nil, ""
	}
	control.Findings = slices.Concat(kept, fresh)
	return &control, reason
}

// PlanMaintenance returns what is to be wanted of a node with maintenance windows, and what begins or ends now; nil when nothing changes. wake
// is when to look again, zero: never. A node that is drained already stays so when a window ends.
func PlanMaintenance(control *api.NodeControl, now time.Time) (next *api.NodeControl, begins, ends []api.MaintenanceWindow, wake time.Time) {
	if control == nil || len(control.Windows) == 0 {
		return nil, nil, nil, time.Time{}
	}
	out := *control
	out.Windows = nil
	sooner := func(at time.Time) {
		if wake.IsZero() || at.Before(wake) {
			wake = at
		}
	}
	for _, w := range control.Windows {
		switch {
		case !now.Before(w.To):
			ends = append(ends, w)
			if out.Window == w.ID {
				undrain(&out)
			}
			continue
		case !w.Begun && !now.Before(w.From):
			w.Begun = true
			begins = append(begins, w)
			if !out.Drained {
				out.Drained, out.Stay, out.Reason, out.By, out.Since, out.Window = true, false, "maintenance: "+w.Reason, w.By, now, w.ID
			}
			sooner(w.To)
		case w.Begun:
			sooner(w.To)
		default:
			sooner(w.From)
		}
		out.Windows = append(out.Windows, w)
	}
	if len(begins)+len(ends) == 0 {
		return nil, nil, nil, wake
	}
	return &out, begins, ends, wake
}

// WindowBegins is when the next maintenance window of a node begins that has not begun; zero: there is none. Members that would be there then are
// not placed on it.
func WindowBegins(control *api.NodeControl) time.Time {
	if control == nil {
		return time.Time{}
	}
	var first time.Time
	for _, w := range control.Windows {
		if !w.Begun && (first.IsZero() || w.From.Before(first)) {
			first = w.From
		}
	}
	return first
}

// SortWindows orders windows by their beginnings.
func SortWindows(all []api.MaintenanceWindow) {
	slices.SortFunc(all, func(a, b api.MaintenanceWindow) int {
		return cmp.Or(a.From.Compare(b.From), strings.Compare(a.ID, b.ID))
	})
}

// CancelWindow returns what is wanted of a node without one of its windows; nil where it has no such. A node that is drained for it is undrained.
func CancelWindow(control api.NodeControl, id string) *api.NodeControl {
	i := slices.IndexFunc(control.Windows, func(w api.MaintenanceWindow) bool { return w.ID == id })
	if i < 0 {
		return nil
	}
	control.Windows = slices.Delete(slices.Clone(control.Windows), i, i+1)
	if control.Window == id {
		undrain(&control)
	}
	return &control
}

func undrain(c *api.NodeControl) {
	c.Drained, c.Stay, c.Reason, c.By, c.Since, c.Window = false, false, "", "", time.Time{}, ""
}
