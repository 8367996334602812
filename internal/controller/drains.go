package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
	"github.com/nearmetal/nearmetal/internal/state"
)

// drains drains nodes that degrade, by policy, and those whose maintenance begins; and undrains those whose maintenance ends. Members stay.
func (p *pass) drains(ctx context.Context) error {
	var errs []error
	for _, n := range p.view.Nodes {
		if err := errors.Join(p.maintenance(ctx, n), p.drainByPolicy(ctx, n)); err != nil {
			errs = append(errs, fmt.Errorf("node %q: %w", n.Name, err))
		}
	}
	return errors.Join(errs...)
}

// maintenance begins and ends the maintenance windows of a node.
func (p *pass) maintenance(ctx context.Context, n *state.Node) error {
	next, begins, ends, wake := lifecycle.PlanMaintenance(n.Control, p.now)
	p.sooner(wake)
	if next == nil {
		return nil
	}
	_, revision, err := p.cfg.Repo.ChangeControl(ctx, n.Name, func(c api.NodeControl) (*api.NodeControl, error) {
		next, begins, ends, _ = lifecycle.PlanMaintenance(&c, p.now)
		return next, nil
	})
	if errors.Is(err, state.ErrNotFound) {
		return nil
	}
	p.committed = max(p.committed, revision)
	var events []api.Event
	for _, w := range begins {
		events = append(events, p.nodeEvent(n, api.ReasonMaintenanceBegins, fmt.Sprintf("maintenance until %s: %s", w.To.UTC().Format(time.RFC3339), w.Reason)))
	}
	for _, w := range ends {
		events = append(events, p.nodeEvent(n, api.ReasonMaintenanceEnds, "maintenance is over: "+w.Reason))
	}
	return errors.Join(err, p.emit(ctx, events))
}

func (p *pass) nodeEvent(n *state.Node, reason, message string) api.Event {
	return api.Event{Time: p.now, Node: n.Name, Reason: reason, Message: api.ShortMessage(message)}
}

// drainByPolicy drains a node of which something is found that the policy names.
func (p *pass) drainByPolicy(ctx context.Context, n *state.Node) error {
	if len(p.cfg.DrainOn) == 0 {
		return nil
	}
	in := lifecycle.DrainInput{Control: n.Control, Causes: p.cfg.DrainOn, Now: p.now}
	in.Findings, in.Unheard = p.findings(n)
	next, reason := lifecycle.PlanDrain(in)
	if next == nil {
		return nil
	}
	_, revision, err := p.cfg.Repo.ChangeControl(ctx, n.Name, func(c api.NodeControl) (*api.NodeControl, error) {
		in.Control = &c
		next, reason = lifecycle.PlanDrain(in)
		return next, nil
	})
	if err != nil || reason == "" {
		if errors.Is(err, state.ErrNotFound) {
			return nil
		}
		return err
	}
	p.committed = max(p.committed, revision)
	events := []api.Event{p.nodeEvent(n, api.ReasonNodeDrained, "drained by policy, members stay: "+reason)}
	for _, c := range p.view.ClustersOnNode(n.Name) {
		for a := range c.Held() {
			if a.Node == n.Name && a.Whole && a.IsMember() {
				events = append(events, api.Event{
					Time: p.now, Cluster: c.Name(), Reason: api.ReasonMachineDegraded, Member: a.Member, Node: n.Name,
					Message: api.ShortMessage(fmt.Sprintf("the machine of %s degrades and may fail: %s; save what matters", a.Member, reason)),
				})
			}
		}
	}
	return p.emit(ctx, events)
}

// findings are what is wrong with a node now, and the causes of which nothing is known. What a tenant's kernel says of a machine is none: who has a
// machine must not decide who gets it next.
func (p *pass) findings(n *state.Node) (found []lifecycle.Finding, unheard map[api.DrainCause]bool) {
	unheard = map[api.DrainCause]bool{}
	add := func(cause api.DrainCause, what, text string) {
		found = append(found, lifecycle.Finding{Cause: cause, Key: string(cause) + " " + what, Text: text})
	}
	var read *api.MachineSensors
	if n.Machine != nil && p.cfg.Provisioning != nil && p.cfg.Provisioning.Sensors != nil {
		read = p.cfg.Provisioning.Sensors.Sensors(n.Machine.UID())
	}
	if read == nil || read.State == api.SensorUnavailable {
		unheard[api.DrainCriticalSensor] = true
	} else {
		for _, s := range read.Sensors {
			if s.State == api.SensorCritical {
				add(api.DrainCriticalSensor, s.Name, sensors.Describe(s))
			}
		}
	}
	faults, heard := p.cfg.Agents.Faults(n.Name)
	if !heard || n.Identity != nil && n.Identity.Member != "" {
		for _, cause := range api.DrainCauses() {
			unheard[cause] = unheard[cause] || cause != api.DrainCriticalSensor
		}
		return found, unheard
	}
	for _, m := range faults.Memory {
		if m.Uncorrected > 0 {
			add(api.DrainECCUncorrected, m.Controller, fmt.Sprintf("memory controller %s counted %d uncorrectable errors", m.Controller, m.Uncorrected))
		}
		if m.Corrected > correctedLimit {
			add(api.DrainECCCorrected, m.Controller, fmt.Sprintf("memory controller %s corrected %d errors since its boot", m.Controller, m.Corrected))
		}
	}
	for _, d := range faults.Disks {
		if d.Failing != "" {
			add(api.DrainDiskFailing, d.Name+" "+d.Serial, fmt.Sprintf("disk %s: %s", d.Name, d.Failing))
		}
	}
	slices.SortFunc(found, func(a, b lifecycle.Finding) int { return strings.Compare(a.Key, b.Key) })
	return found, unheard
}

// correctedLimit is how many errors memory may correct between boots; the check of inspection has the same.
const correctedLimit = 100
