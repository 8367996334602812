package apiserver

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
)

// joinNodes is what who asks sees of all nodes, machines that no agent runs on among them.
func (s *Server) joinNodes(ctx context.Context, v *state.View) []api.Node {
	nodes := joinNodes(v, s.cfg.Live, who(ctx))
	for i := range nodes {
		stored := v.Nodes[i]
		nodes[i].Offer = situation.Offer(v, stored, s.cfg.Offers)
		if nodes[i].Agent != nil {
			nodes[i].Agent.VolumeSharing = situation.Sharing(stored.Agent, s.cfg.Encrypted)
		}
		if stored.Machine != nil {
			nodes[i].Machine = s.joinMachine(stored.Machine, isAdmin(ctx))
			nodes[i].Machine.ProvisioningPorts = situation.ProvisioningPorts(v, stored, s.cfg.Offers)
			settlePhase(&nodes[i])
		}
	}
	return nodes
}

// settlePhase shows a machine that is not in use in its own phase: that its agent is not there has a known reason, and nobody is to take it for
// lost. Why nothing comes of what it does (a BMC that is away, a button that somebody has to press) is its message.
func settlePhase(n *api.Node) {
	rec := &n.Machine.Record
	if rec.Power == api.PowerUnknown && n.Phase == api.NodeReady {
		rec.Power = api.PowerOn // nobody can read it, but its agent answers
	}
	atRest := rec.Phase == api.MachineEnrolled || rec.Phase == api.MachineOff
	if rec.Phase == api.MachineReady || atRest && n.Phase == api.NodeReady { // one that was started by hand is a node like any other
		n.Message = cmp.Or(n.Message, rec.Message, rec.PowerMessage)
		if n.Phase == api.NodeDown {
			n.Message += "; if it hangs, boot it again: nearmetal node power cycle " + n.Name
		}
		return
	}
	n.Phase, n.Message = api.NodePhase(rec.Phase), cmp.Or(rec.Message, rec.PowerMessage)
	if rec.Phase == api.MachineOff && rec.Power == api.PowerOn {
		n.Message = cmp.Or(n.Message, "its power is on, but not by an order of this site")
	}
}

// joinMachine is a machine as it is shown; how to reach its power switch and console is for administrators.
func (s *Server) joinMachine(m *state.Machine, admin bool) *api.MachinePart {
	in := &m.Intent
	out := &api.MachinePart{Spec: in.Spec, Request: in.Request, Clean: in.Clean, Hold: in.Hold, Hardware: shownHardware(m.Hardware), EnrolledAt: in.CreatedAt}
	if m.Record != nil {
		out.Record = *m.Record
	} else {
		out.Record = api.MachineRecord{
			Name: in.Name, UID: in.UID, Phase: api.MachineEnrolled, Message: "no leading server has accepted it yet", Index: -1,
			Power: api.PowerUnknown, ChangedAt: in.CreatedAt,
		}
	}
	out.Record.BMC = shownBMC(out.Record.BMC, admin)
	if in.RemoveRequestedAt != nil {
		out.Record.Phase = api.MachineRemoving
	}
	if p := s.cfg.Provisioning; p != nil {
		out.TargetSeconds = p.TargetSeconds()
		if m.Record != nil {
			out.Address = p.Address(m.Record.Index)
		}
	}
	if s.cfg.Sensors != nil {
		out.Sensors = s.cfg.Sensors(m.UID())
	}
	if !admin {
		// How warm a machine is, and what it draws, tells what its tenant does.
		out.Sensors = withoutReadings(out.Sensors)
		out.Spec.Power, out.Spec.Console = api.PowerControl{Kind: in.Spec.Power.Kind}, ""
		out.Record.PowerMessage = ""
		if t := out.Record.Tenant; t != nil { // whose it is, is nobody else's business
			out.Record.Tenant = &api.MachineTenant{Generation: t.Generation}
		}
		if b := out.Record.Boot; b != nil && b.Member != "" {
			boot := *b
			boot.Member = ""
			out.Record.Boot = &boot
		}
	}
	return out
}

// shownBMC is what is shown of a BMC: never its passwords, and its users to administrators only.
func shownBMC(b *api.MachineBMC, admin bool) *api.MachineBMC {
	if b == nil {
		return nil
	}
	shown := *b
	shown.Sealed, shown.Replaces, shown.Next = nil, nil, nil
	if !admin {
		return &api.MachineBMC{Host: b.Host}
	}
	return &shown
}

// withoutReadings is the state that sensors come to, without their readings.
func withoutReadings(all *api.MachineSensors) *api.MachineSensors {
	if all == nil {
		return nil
	}
	return &api.MachineSensors{State: all.State, ReadAt: all.ReadAt, Sensors: []api.Sensor{}}
}

// joinImages adds the built environments to those of the nodes' own, by name. It is pure but for what Compatible says.
func (s *Server) joinImages(v *state.View, own []api.Environment) []api.Environment {
	all := own
	for _, e := range v.Environments {
		img := v.Image(e.Digest)
		if img == nil {
			continue
		}
		updated := e.UpdatedAt
		built := api.Environment{
			Name: e.Name, Description: img.Description, Stacks: img.Stacks, Project: e.Project, Image: img, UpdatedAt: &updated, Nodes: s.whereItRuns(v, e, img),
		}
		if i := slices.IndexFunc(all, func(o api.Environment) bool { return o.Name == e.Name }); i >= 0 {
			all[i] = built // what nodes report of it is that they hold it
		} else {
			all = append(all, built)
		}
	}
	slices.SortFunc(all, func(a, b api.Environment) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// whereItRuns tells for every node whether it can run an image: as a machine, or by its agent on the container stack.
func (s *Server) whereItRuns(v *state.View, e *api.EnvironmentRecord, img *api.Image) []api.EnvironmentNode {
	var nodes []api.EnvironmentNode
	add := func(node string, problems []string) {
		nodes = append(nodes, api.EnvironmentNode{Node: node, OK: len(problems) == 0, Digest: img.Digest, Problems: problems})
	}
	for _, n := range v.Nodes {
		switch {
		case n.Machine != nil:
			add(n.Name, s.machineProblems(v, e, img, n))
		case n.Agent != nil:
			add(n.Name, containerProblems(v, e, n))
		}
	}
	return nodes
}

// machineProblems tells why a node that is a machine can't run an image: neither by booting it nor, by its agent, in members.
func (s *Server) machineProblems(v *state.View, e *api.EnvironmentRecord, img *api.Image, n *state.Node) []string {
	problems := s.metalProblems(img, n.Machine.Hardware)
	switch {
	case n.Agent != nil && len(problems) > 0 && len(containerProblems(v, e, n)) == 0:
		return nil
	case n.Machine.Hardware == nil && len(problems) == 0:
		return []string{"its hardware is unknown; inspect it: nearmetal node inspect " + n.Name}
	}
	return problems
}

// containerProblems tells why a node can't run an image on the container stack.
func containerProblems(v *state.View, e *api.EnvironmentRecord, n *state.Node) []string {
	on, ok := situation.EnvironmentOn(v, e, n)
	switch {
	case !ok:
		return []string{"it does not support the container stack, and this node can't be booted"}
	case !slices.ContainsFunc(n.Agent.Stacks, func(c api.StackCheck) bool { return c.Stack == api.StackContainer && c.OK }):
		return []string{"the node does not offer the container stack"}
	}
	return on.Problems
}
