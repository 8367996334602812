package agent

import (
	"context"
	"fmt"
	"maps"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// probe looks whether the ports of running members are there and up, as their own agents can't see, and mends what is not.
func (a *Agent) probe(ctx context.Context) {
	if a.desired == nil || a.networks.busy || !a.networks.ok || a.probing {
		return
	}
	a.probing = true
	applied, drivers := a.networks.count, maps.Clone(a.drivers)
	go func() {
		bounded, cancel := context.WithTimeout(ctx, lookDeadline)
		defer cancel()
		wrong, err := a.cfg.Fabric.Probe(bounded)
		if err == nil {
			wrong = a.withPortless(bounded, drivers, wrong)
		}
		a.post(ctx, func() {
			a.probing = false
			if err != nil {
				a.cfg.Log.WarnContext(ctx, "the members' network ports can't be inspected", "error", err)
				return
			}
			if a.networks.count != applied || a.networks.busy {
				return // what was found may be of before
			}
			for id, m := range a.members {
				if m.busy || m.want == nil || m.want.Release || m.state != driver.StateRunning {
					continue // a frozen member is not judged
				}
				if wrong[id] == "" {
					m.cut = ""
				} else if a.hearing.current() {
					a.mend(ctx, m, wrong[id])
				}
			}
		})
	}()
}

// withPortless adds to what is wrong with members' ports on the host what their drivers miss in the members.
func (a *Agent) withPortless(ctx context.Context, drivers map[api.Stack]driver.Driver, onHost map[string]string) map[string]string {
	wrong := map[string]string{}
	for stack, d := range drivers {
		examiner, ok := d.(driver.PortExaminer)
		if !ok {
			continue
		}
		portless, err := examiner.Portless(ctx)
		if err != nil {
			a.cfg.Log.WarnContext(ctx, "the ports in members can't be inspected", "stack", stack, "error", err)
		}
		maps.Copy(wrong, portless)
	}
	maps.Copy(wrong, onHost)
	return wrong
}

// examine asks the drivers which running members hang. A member that hangs stays so, and can't be used: it is replaced.
func (a *Agent) examine(ctx context.Context) {
	if a.examining {
		return
	}
	a.examining = true
	drivers := maps.Clone(a.drivers)
	go func() {
		bounded, cancel := context.WithTimeout(ctx, lookDeadline)
		defer cancel()
		hung := map[string]string{}
		for stack, d := range drivers {
			examiner, ok := d.(driver.Examiner)
			if !ok {
				continue
			}
			found, err := examiner.Hung(bounded)
			if err != nil {
				a.cfg.Log.WarnContext(ctx, "members can't be examined", "stack", stack, "error", err)
			}
			maps.Copy(hung, found)
		}
		a.post(ctx, func() {
			a.examining = false
			for id, how := range hung {
				if m := a.members[id]; m != nil && !m.busy && m.state == driver.StateRunning && m.hung == "" {
					a.cfg.Log.WarnContext(ctx, "a member hangs", "member", id, "seen", how)
					m.hung = how
				}
			}
		})
	}()
}

// mend has a member's port mended. What can't be mended makes the member unhealthy, and is tried again.
func (a *Agent) mend(ctx context.Context, m *memberState, problem string) {
	mender, ok := m.driver.(driver.Mender)
	if !ok {
		m.cut = problem
		return
	}
	m.busy = true
	go func() {
		a.slots <- struct{}{}
		bounded, cancel := context.WithTimeout(ctx, applyDeadline)
		err := mender.Mend(bounded, m.id)
		cancel()
		<-a.slots
		a.post(ctx, func() {
			m.busy = false
			m.cut = ""
			if err != nil {
				m.cut = fmt.Sprintf("%s, and the repair failed: %v", problem, err)
			}
			a.cfg.Log.WarnContext(ctx, "a member's network port was broken", "member", m.id, "problem", problem, "fixed", err == nil, "error", err)
			if m.state == driver.StateRunning {
				a.watch(ctx, m) // an end that was noticed meanwhile is noticed again
			}
		})
	}()
}
