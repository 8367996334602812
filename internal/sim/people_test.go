package sim

import (
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// enrol makes a machine known, a new one each time.
func (w *world) enrol(b *box) {
	s := w.up()
	if s == nil {
		return
	}
	kind := api.PowerRedfish
	if b.blind {
		kind = api.PowerWakeOnLAN
	}
	w.trace("%s is enrolled", b.name)
	b.mu.Lock()
	b.enrolled = time.Now()
	b.mu.Unlock()
	inspect := int64(1)
	if !w.isCalm() && w.drawnFor(fmt.Sprintf("%s enrolled at %s", b.name, w.since()), 4) == 0 {
		inspect = 0 // by somebody who knows what it is made of
	}
	if _, err := s.repo.CreateMachine(s.ctx, api.MachineIntent{
		Name: b.name, UID: fmt.Sprintf("%s-%d", b.name, time.Now().UnixNano()), CreatedAt: time.Now(), Inspect: inspect,
		Spec:   api.MachineSpec{MACs: []string{b.mac}, Power: api.PowerControl{Kind: kind, Address: "bmc-" + b.name, User: "site"}},
		Sealed: []byte("the first password"),
	}); err != nil && s.ctx.Err() == nil {
		w.trace("%s can't be enrolled: %v", b.name, err)
	}
}

func (w *world) remove(b *box, force bool) {
	if s := w.up(); s != nil {
		w.trace("%s is to be removed, by force: %t", b.name, force)
		if m := s.cache.View().Machine(b.name); m != nil && force {
			w.mu.Lock()
			w.forced[m.UID()] = true
			w.mu.Unlock()
		}
		_, _, err := s.repo.RequestMachineRemoval(s.ctx, b.name, force, time.Now())
		if err != nil {
			w.trace("it can't: %v", err)
		}
	}
}

// request asks for the power of a machine, as the API does.
func (w *world) request(b *box, action api.PowerAction, environment string, force bool) error {
	s := w.up()
	if s == nil {
		return errAway
	}
	m := s.cache.View().Machine(b.name)
	if m == nil || m.Intent.RemoveRequestedAt != nil || m.PowerPending() != nil {
		return fmt.Errorf("it is %+v", m)
	}
	if action != api.PowerActionOff && m.Record != nil && m.Record.Quarantine != nil {
		return fmt.Errorf("it is in quarantine: %+v", *m.Record.Quarantine)
	}
	if action == api.PowerActionCycle && (m.Record == nil || m.Record.Boot == nil || m.Record.Boot.Purpose != api.BootEnvironment) {
		return fmt.Errorf("it never booted an environment")
	}
	w.trace("%s: power %s %s, by force: %t", b.name, action, environment, force)
	_, err := s.repo.RequestPower(s.ctx, []state.PowerAsk{{Name: b.name, UID: m.UID(), After: m.Intent.Request.Number, Request: api.PowerRequest{
		Action: action, Environment: environment, Force: force, At: time.Now(),
	}}})
	return err
}

// schedulePeople lets operators ask for machines, let go of them, and look into them.
func (w *world) schedulePeople() {
	if len(w.boxes) == 0 {
		return
	}
	w.after(0, w.enrolAll)
	r := source(w.cfg.Seed, "people")
	var next func()
	next = func() {
		if w.isCalm() {
			return
		}
		w.askForMachine(r)
		pause := span(r, time.Second, 2*time.Minute)
		if w.whole { // most machines are for members
			pause *= 4
		}
		w.after(pause, next)
	}
	w.after(span(r, time.Second, 2*time.Minute), next)
}

func (w *world) enrolAll() {
	s := w.up()
	if s == nil {
		w.after(time.Second, w.enrolAll)
		return
	}
	for _, b := range w.boxes {
		if m := s.cache.View().Machine(b.name); m == nil {
			w.enrol(b)
		}
	}
}

// askForMachine asks one thing of one machine.
func (w *world) askForMachine(r *mathrand.Rand) {
	b, environment, force := w.boxes[r.IntN(mostBoxes)%len(w.boxes)], environments[1+r.IntN(2)], r.IntN(4) == 0
	what := r.IntN(14)
	s := w.up()
	if s == nil {
		return
	}
	w.checks.disturbed.Add(1)
	w.happened(Machines.String())
	m := s.cache.View().Machine(b.name)
	var err error
	switch {
	case m == nil:
		w.enrol(b)
	case what < 8:
		err = w.request(b, api.PowerActionOn, environment, force)
	case what < 10:
		if b.blind && m.Record != nil && m.Record.Phase == api.MachineFailed {
			b.press(api.PowerOff) // as the site asked: their word counts as done
		}
		err = w.request(b, api.PowerActionOff, "", force)
	case what < 11:
		err = w.request(b, api.PowerActionCycle, "", force)
	case what < 13 && m.Record != nil && m.Record.Quarantine != nil && m.Record.Quarantine.By != "":
		err = w.hold(b, m.UID(), api.HoldRelease)
	case what == 12 && w.drawnFor(fmt.Sprintf("%s held at %s", b.name, w.since()), 8) == 0:
		err = w.hold(b, m.UID(), api.HoldQuarantine)
	case what == 12:
		err = w.askToClean(b, m.UID())
	case what < 13:
		w.trace("%s is to be inspected", b.name)
		_, _, err = s.repo.UpdateMachineIntent(s.ctx, b.name, m.UID(), func(in *api.MachineIntent) error { in.Inspect++; return nil })
	default:
		w.remove(b, force)
	}
	if err != nil {
		w.happened("requests refused")
	}
}

// unplug takes a machine's cable out for a while.
func (b *box) unplug(lasts time.Duration) {
	w := b.w
	b.mu.Lock()
	b.unplugged = true
	b.mu.Unlock()
	b.node.cut(true, true, lasts)
	w.after(lasts, func() {
		b.mu.Lock()
		b.unplugged, b.unheard = false, time.Now()
		b.mu.Unlock()
	})
}

// ail lets the BMC of a machine behave badly for a while.
func (w *world) ail(b *box, kind int, lasts time.Duration) {
	bad, name := b.good(), ""
	switch kind {
	case 0:
		bad.Silent, name = true, "BMC silent"
	case 1:
		bad.Answer, name = 12*time.Second, "BMC slow"
	case 2:
		bad.Says, name = api.PowerUnknown, "BMC does not know"
	case 3:
		bad.Says, name = api.PowerOff, "BMC says off"
	case 4:
		bad.Says, name = api.PowerOn, "BMC says on"
	case 5:
		bad.Deaf, name = true, "BMC deaf"
	default:
		bad.FailOrders, bad.LoseAnswers, bad.FailObserves, name = 3, 3, 3, "BMC errs"
	}
	if b.blind && bad.Says != "" {
		return
	}
	w.happened(name)
	w.trace("%s: %s for %s", b.name, name, lasts)
	b.machine.SetBehaviour(bad)
	b.lives.Go(func() {
		for end := time.Now().Add(lasts); ; {
			b.mu.Lock()
			b.ailed = time.Now()
			if bad.Says == api.PowerOff {
				b.lied = b.ailed
			}
			b.mu.Unlock()
			if left := time.Until(end); left <= 0 || !pause(w.ctx, min(left, time.Second)) {
				break
			}
		}
		b.machine.SetBehaviour(b.good())
	})
}
