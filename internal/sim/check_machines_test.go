package sim

import (
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// What may lie between what a machine does and what is known of it.
const (
	// aMoment is between what is heard and the commit that rests on it.
	aMoment = 5 * time.Second
	// unread is how long nobody may have read that a person pressed a button, or that a BMC tells the truth again.
	unread = time.Minute
	// noticed is how long what nobody announced may take to be noticed, when all is well with server and BMC.
	noticed = 2 * time.Minute
)

// checkRecord looks at what a commit says of a machine; the store's mu is held.
func (w *world) checkRecord(before, after api.MachineRecord, known bool) {
	b := w.box(after.Name)
	if known && before.UID == after.UID && before.Generation > after.Generation {
		w.fail("machines", "%s: its generation went from %d back to %d", b.name, before.Generation, after.Generation)
	}
	w.checkClean(b, before, after)
	w.checkTenant(b, before, after)
	if known && before.Phase == after.Phase {
		return
	}
	w.happened("phase " + string(after.Phase))
	w.trace("%s: %s -> %s (generation %d) %s", b.name, before.Phase, after.Phase, after.Generation, after.Message)
	is := b.really()
	switch after.Phase {
	case api.MachineOff:
		w.checkOff(b, is, "is called off")
	case api.MachineReady:
		since := is.changed
		if up := w.up(); up.alive() { // what it heard before it stood still, it decides by when it goes on
			since = later(since, later(up.stalledUntil(), w.store.silent))
		}
		if (!is.agent || !is.local || is.generation != after.Boot.Generation) && time.Since(since) > aMoment {
			w.fail("machines", "%s is called ready in boot %d, and it is %+v", b.name, after.Boot.Generation, is)
		}
		if is.environment != "" && is.environment != after.Boot.Environment {
			w.fail("machines", "%s is called ready with %s, and runs %s", b.name, after.Boot.Environment, is.environment)
		}
	}
}

// checkOff checks that a machine is off. A person may have switched it on meanwhile, and its BMC may lie unless its agent answers. One whose power
// nothing can read is taken for off when it was told to go off and is silent: it may hang in that, or not be heard.
func (w *world) checkOff(b *box, is really, what string) {
	up := w.up()
	served := up.alive() && time.Since(up.risen) > unread
	answers := served && is.agent && !is.idle && !is.unplugged && time.Since(is.unheard) > unread
	switch {
	case !is.on || time.Since(is.touched) <= unread || time.Since(is.lied) <= unread && !answers:
	case b.blind && (is.idle || is.unplugged || time.Since(is.unheard) <= unread):
	default:
		w.fail("machines", "%s %s, and it is on: %+v", b.name, what, is)
	}
}

// checkCut checks a machine that loses its power now. The site must not order a cut while the machine is in use, nor twice in one boot.
func (w *world) checkCut(b *box) {
	is := b.really()
	w.store.mu.Lock()
	seen, known := w.store.mirror.machines[b.name]
	w.store.mu.Unlock()
	r := seen.record
	if is.byItself || !known || r.Boot == nil || is.uid != r.UID || is.generation != r.Boot.Generation || time.Since(seen.changed) < unread {
		return
	}
	switch {
	case r.Phase == api.MachineReady && r.Stop == nil:
		w.fail("machines", "the power of %s is cut, and it is ready: %+v", b.name, is)
	case (r.Phase == api.MachineBooting || r.Phase == api.MachineInspecting || r.Phase == api.MachineCleaning) && time.Since(is.ailed) > noticed:
		w.fail("machines", "the power of %s is cut in the middle of boot %d: %+v", b.name, r.Boot.Generation, is)
	}
}

// checkGone looks at a machine that is no longer known.
func (w *world) checkGone(before api.MachineRecord) {
	b := w.box(before.Name)
	w.happened("gone")
	w.trace("%s is gone, it was %s", b.name, before.Phase)
	b.machine.ResetBMC()
	w.inbox.post(b.name, func() { // who takes it in again installs it anew
		if !b.node.up {
			b.node.loseDisk()
		}
		w.checkLeftDirty(b, before)
	})
	if before.Phase == api.MachineRemoving && !b.blind { // of the others it is said that they may run on
		w.checkOff(b, b.really(), "was removed")
	}
}

// checkNoticed looks whether what happened to machines by itself was noticed.
func (w *world) checkNoticed() {
	up := w.up()
	if !up.alive() || time.Since(up.risen) < noticed {
		return
	}
	for _, b := range w.boxes {
		r, ok := w.store.machine(b.name)
		is := b.really()
		last := slices.MaxFunc([]time.Time{is.changed, is.ailed, is.enrolled, w.store.leaderSince(), up.busyUntil()}, time.Time.Compare)
		if !ok || b.blind || time.Since(last) < noticed {
			continue
		}
		// A BMC that lied is believed again only when the machine has been silent for long.
		patience := noticed
		if time.Since(is.lied) < 20*time.Minute {
			patience = 12 * time.Minute
		}
		if r.Phase == api.MachineReady && !is.on && time.Since(last) > patience {
			w.fail("machines", "%s has been off since %s, and is called ready: power %s since %s, %s; boot %+v", b.name, is.changed.Format("15:04:05"), r.Power, r.PowerObservedAt.Format("15:04:05"), r.PowerMessage, r.Boot)
		}
		if want := map[bool]api.PowerState{true: api.PowerOn, false: api.PowerOff}[is.on]; r.Power != want {
			w.fail("machines", "the power of %s has been %s since %s, and is recorded as %s", b.name, want, is.changed.Format("15:04:05"), r.Power)
		}
	}
}

// checkMachinesAtRest checks that every machine has come to rest where it really is, after nothing has gone wrong for long.
func (w *world) checkMachinesAtRest() {
	view := w.up().cache.View()
	for m := range view.Machines() {
		b, r := w.box(m.Name()), m.Record
		if r == nil {
			w.fail("machines", "%s has no record", b.name)
			continue
		}
		is := b.really()
		w.happened("at rest " + string(r.Phase))
		if m.PowerPending() != nil {
			w.fail("machines", "%s is %s (%s), and the request to power it %s is not taken up", b.name, r.Phase, r.Message, m.Intent.Request.Action)
		}
		switch r.Phase {
		case api.MachineReady:
			if !b.staysDown() && (!is.agent || is.generation != r.Boot.Generation) {
				w.fail("machines", "%s is ready in boot %d, and it is %+v", b.name, r.Boot.Generation, is)
			}
		case api.MachineEnrolled, api.MachineOff, api.MachineFailed:
		default:
			w.fail("machines", "%s is still %s (%s) since %s", b.name, r.Phase, r.Message, r.ChangedAt.Format("15:04:05"))
		}
	}
}

func (w *world) checkAllReady() {
	for _, b := range w.boxes {
		r, _ := w.store.machine(b.name)
		if is := b.really(); r.Phase != api.MachineReady || !is.agent || is.environment != environments[1] {
			w.fail("machines", "%s was asked for with %s and is %s (%s); it is %+v", b.name, environments[1], r.Phase, r.Message, is)
		}
	}
}

func (w *world) checkAllOff() {
	for _, b := range w.boxes {
		r, _ := w.store.machine(b.name)
		if is := b.really(); r.Phase != api.MachineOff || is.on {
			w.fail("machines", "%s was asked to go off and is %s (%s); it is %+v", b.name, r.Phase, r.Message, is)
		}
	}
}

func (w *world) removeAll() {
	for _, b := range w.boxes {
		w.remove(b, false)
	}
}

func (w *world) checkAllRemoved() {
	for _, b := range w.boxes {
		if r, ok := w.store.machine(b.name); ok || b.really().on {
			w.fail("machines", "%s was removed and is %s (%s); it is %+v", b.name, r.Phase, r.Message, b.really())
		}
	}
}

// all asks the same of every machine.
func (w *world) all(action api.PowerAction, environment string) {
	for _, b := range w.boxes {
		b.lookAfter()
		if err := w.request(b, action, environment, true); err != nil {
			w.fail("machines", "%s can't be asked to power %s: %v", b.name, action, err)
		}
	}
}

// machine is what is stored of a machine now.
func (s *witness) machine(name string) (api.MachineRecord, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, ok := s.mirror.machines[name]
	return seen.record, ok
}

// box is the machine of that name.
func (w *world) box(name string) *box {
	for _, b := range w.boxes {
		if b.name == name {
			return b
		}
	}
	return nil
}

// staysDown reports whether a machine that is ready is a node that is down: it hangs, or nothing can read its power. What becomes of it is for people
// to decide. A node that is no machine of the site does not stay down.
func (b *box) staysDown() bool {
	if b == nil {
		return false
	}
	is := b.really()
	return is.idle || b.blind && !is.on
}

// really is a machine as it is.
type really struct {
	running
	on, idle, unplugged, byItself                    bool
	changed, touched, ailed, lied, unheard, enrolled time.Time
}

func (b *box) really() really {
	on := b.machine.State() == api.PowerOn
	b.mu.Lock()
	defer b.mu.Unlock()
	return really{
		running: b.runs, on: on, idle: b.idle, unplugged: b.unplugged || time.Now().Before(b.silentUntil), byItself: b.byItself, changed: b.changed, touched: b.touched,
		ailed: b.ailed, lied: b.lied, unheard: later(b.unheard, b.silentUntil), enrolled: b.enrolled,
	}
}
