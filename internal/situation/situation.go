// Package situation combines, for one moment, the stored state and the nodes' reports into the planners' inputs.
//
// The leader's controller decides by it, and any server explains by it: the same inputs give the same answers. The package must never
// write anything, nor decide: it calls pure planners and passes on their results. Start with Site.
package situation

import (
	"cmp"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/admission"
	"github.com/nearmetal/nearmetal/internal/dataset/paths"
	datasetplan "github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// Heard is what is known of agents and members; internal/monitor provides it.
type Heard interface {
	Node(name string) (phase api.NodePhase, lastSeen time.Time, message string)
	Reported(name string) bool
	Clean(name string) []string
	MemberState(node, assignmentID string) (monitor.MemberState, bool)
	Datasets() []datasetplan.Node
}

// Site is a site at one moment.
type Site struct {
	View *state.View
	Now  time.Time
	// LeaderSince is when the leader took over; an explanation by another server takes its own start for it.
	LeaderSince time.Time
	Deadlines   lifecycle.Deadlines
	Nodes       map[string]lifecycle.NodeState
	// Encrypted: the underlay is, and nodes without WireGuard get no members.
	Encrypted bool
	// EnergyJoules is what the members of projects used in api.EnergyWindow, of those whose quota bounds it.
	EnergyJoules map[string]int64

	standing map[string]standing
	// windows: maintenance is announced on some node. drains: members are to move off some node.
	windows, drains bool
	heard           Heard
	reading         time.Time
	proofs          map[api.Proof]bool           // those heard now
	data            []datasetplan.Node           // what nodes have of datasets
	paths           *paths.Known                 // what was measured of the ways of data, once somebody asks
	holders         paths.Holders                // of datasets, as of data
	said            map[string]*datasetplan.Node // data by node, once somebody asks
	fabrics         Fabrics
}

// standing is what is stored about a node's use.
type standing struct {
	drained   bool
	drainedAt time.Time // zero: nobody is to move off it
	// off: its machine is off, as far as is stored, or waits in its boot agent. asleep: it is, and nothing was asked of it. leaving: it goes off, or was asked to. rising: it
	// boots.
	off, asleep, leaving, rising bool
	// returning: it will be asleep by itself, after what is done with it now.
	returning bool
	// warm: it is asleep, but its power is on, and its boot agent waits.
	warm bool
	// ended is a boot generation: no boot before it goes on any more, for the machine is off, and read back. 0: nothing is known.
	ended int64
}

func standingOf(n *state.Node) standing {
	now := standing{drained: n.Drained()}
	if n.Drained() && !n.Control.Stay {
		now.drainedAt = n.Control.Since
	}
	if m := n.Machine; m != nil {
		now.off, now.leaving, now.rising = Rests(m), leaving(m), rising(m)
		now.asleep = now.off && atRest(m) && m.Record.Tenant == nil
		now.warm = now.asleep && isWarm(m)
		now.returning = !now.asleep && returning(m)
		if endedBoots(m) {
			now.ended = m.Record.Generation
		}
	}
	return now
}

// Observe takes down what agents say, once, so that all decisions rest on the same. now is the time of decisions, reading the clock by
// which agents were heard at the same moment.
func Observe(view *state.View, heard Heard, fabrics Fabrics, now, reading, leaderSince time.Time, deadlines lifecycle.Deadlines) *Site {
	s := &Site{
		View: view, Now: now, reading: reading, LeaderSince: leaderSince, Deadlines: deadlines, heard: heard, fabrics: fabrics,
		Nodes: make(map[string]lifecycle.NodeState, len(view.Nodes)), standing: make(map[string]standing, len(view.Nodes)), proofs: map[api.Proof]bool{},
	}
	if len(view.Datasets) > 0 {
		s.data = heard.Datasets()
	}
	for _, n := range view.Nodes {
		now := standingOf(n)
		s.standing[n.Name] = now
		s.drains = s.drains || !now.drainedAt.IsZero()
		s.windows = s.windows || !lifecycle.WindowBegins(n.Control).IsZero()
		if n.Agent == nil {
			continue
		}
		phase, _, _ := heard.Node(n.Name)
		if now.off {
			phase = api.NodeDown // no timer needs to run out
		}
		s.Nodes[n.Name] = lifecycle.NodeState{Phase: phase, Reported: heard.Reported(n.Name), Drained: now.drained, DrainedAt: now.drainedAt}
		for _, id := range heard.Clean(n.Name) {
			s.proofs[api.Proof{Assignment: id, Prover: api.Prover{By: api.ExecutorAgent, At: n.Name}}] = true
		}
	}
	return s
}

// Proved reports whether one who must prove an assignment clean says now that it is. A node that is off for certain says nothing, but when all
// that the assignment left there was in its memory, the end of that boot is as good as its agent's word.
func (s *Site) Proved(a *api.Assignment, p api.Prover) bool {
	switch {
	case p.By == api.ExecutorFabric:
		return s.fabrics.unclean(s.View, a, p.At) == nil
	case p.By == api.ExecutorProvisioner:
		return cleanMachine(s.View.Machine(p.At), a.ID)
	case s.proofs[api.Proof{Assignment: a.ID, Prover: p}]:
		return true
	default:
		return p.At == a.Node && a.RAMBoot > 0 && s.standing[a.Node].ended > a.RAMBoot
	}
}

// proved are all who say now that an assignment is clean.
func (s *Site) proved(a *api.Assignment) []api.Prover {
	var proved []api.Prover
	for _, p := range a.CleanBy {
		if s.Proved(a, p) {
			proved = append(proved, p)
		}
	}
	return proved
}

// unproved is why a fabric has not proved an assignment clean, "" when none owes its proof.
func (s *Site) unproved(a *api.Assignment) string {
	for _, p := range a.CleanBy {
		if p.By == api.ExecutorFabric {
			if err := s.fabrics.unclean(s.View, a, p.At); err != nil {
				return err.Error()
			}
		}
	}
	return ""
}

// endedBoots reports whether a machine is off by the word of something that reads its power. A machine that can only be woken by a packet, or
// by a person, is called off when it falls silent, which proves nothing.
func endedBoots(m *state.Machine) bool {
	kind := m.Intent.Spec.Power.Kind
	return IsOff(m) && (kind == api.PowerIPMI || kind == api.PowerRedfish)
}

// IsOff reports whether a machine is off for certain, as far as is stored: its BMC said so after it was stopped.
func IsOff(m *state.Machine) bool {
	return m.Record != nil && m.Record.Phase == api.MachineOff && m.Record.Power == api.PowerOff
}

// isWarm reports whether a machine waits in its boot agent: like one that is off it carries nothing, and may be given away whole.
func isWarm(m *state.Machine) bool { return m.Record != nil && m.Record.Phase == api.MachineWarm }

// Rests reports whether a machine is off, or waits in its boot agent: it has no agent, and what it offers is what was inspected.
func Rests(m *state.Machine) bool { return IsOff(m) || isWarm(m) }

// Available is what a node is to placement.
func (s *Site) Available(node string) placement.Availability {
	state, known := s.Nodes[node]
	phase, now := state.Phase, s.standing[node]
	switch {
	case now.warm && !now.drained:
		return placement.Warm
	case now.asleep && !now.drained:
		return placement.Asleep
	case now.returning && !now.drained:
		return placement.Returning
	case !known: // a machine without an agent, and not to be had
		phase = api.NodeDown
	}
	if now.rising && phase == api.NodeReady {
		phase = api.NodeUnknown
	}
	available := placement.AvailabilityOf(phase, now.drained || now.leaving && !now.off)
	if agent := s.View.Agent(node); s.Encrypted && available == placement.Schedulable && agent != nil && agent.WireGuardKey == "" {
		return placement.Unencrypted
	}
	return available
}

// atRest reports whether nothing was asked of a machine that has not been done.
func atRest(m *state.Machine) bool {
	return m.PowerPending() == nil && m.Intent.RemoveRequestedAt == nil && m.Intent.Inspect <= m.Record.DoneInspect &&
		m.Intent.Clean.Number <= m.Record.DoneClean && m.Intent.Hold.Number <= m.Record.DoneHold && m.Record.Quarantine == nil
}

// leaving reports whether a machine is about to go off, was asked to, or is not known to be fit for anybody: nobody is to be placed there. That
// its agent is there says little: it may be that of the boot that is about to end. One that is in use and was not asked by force will stay,
// which the leader finds out next.
func leaving(m *state.Machine) bool {
	r := m.Record
	if r == nil {
		return false
	}
	pending := m.PowerPending()
	stays := pending == nil || pending.Action == api.PowerActionOn &&
		(pending.Environment == "" || r.Boot != nil && pending.Environment == r.Boot.Environment)
	return r.Phase != api.MachineReady && r.Phase != api.MachineBooting || !stays ||
		m.Intent.RemoveRequestedAt != nil || m.Intent.Inspect > r.DoneInspect || m.Intent.Clean.Number > r.DoneClean || m.Intent.Hold.Number > r.DoneHold ||
		r.Quarantine != nil
}

// rising reports whether a machine boots: its agent may be there already, but its root is not all there yet.
func rising(m *state.Machine) bool { return m.Record != nil && m.Record.Phase == api.MachineBooting }

// Cluster is what a decision about one cluster depends on.
func (s *Site) Cluster(c *state.Cluster) lifecycle.ClusterInput {
	in := lifecycle.ClusterInput{
		Intent: &c.Intent, Record: c.Record, Observed: map[string]lifecycle.Observation{}, Nodes: s.Nodes,
		Now: s.Now, LeaderSince: s.LeaderSince, Deadlines: s.Deadlines,
	}
	in.Assignments = c.Decision().Assignments()
	in.Volumes, _ = VolumeClaims(s.View, &c.Intent)
	if c.Record != nil && c.Record.Phase == api.ClusterDeleting {
		for _, q := range s.View.Quarantines {
			if q.Assignment.ClusterUID == c.UID() {
				in.Quarantined = append(in.Quarantined, q)
			}
		}
	}
	for a, ref := range c.AllWithRef() {
		told, byMachine := s.onMachine(a)
		// A machine that was removed by force takes its node along, whatever ran there.
		if _, known := s.Nodes[a.Node]; !known {
			s.Nodes[a.Node] = lifecycle.NodeState{Phase: api.NodeDown, Removed: true}
		}
		o := lifecycle.Observation{}
		if byMachine && !ref.Releasing {
			in.Observed[a.ID] = told
			continue
		}
		if ref.Releasing {
			o.Proved, o.Unproved = s.proved(a), s.unproved(a)
		}
		seen, ok := s.heard.MemberState(a.Node, a.ID)
		if ok {
			o.Phase, o.Message, o.Current, o.Failure = seen.Phase, seen.Message, seen.Current, seen.Failure
			o.Size, o.Volumes, o.Layers = seen.Size, seen.Volumes, seen.Layers
			o.StateBytes, o.Verified = seen.StateBytes, seen.Verified
			o.Since = s.Now.Add(-s.reading.Sub(seen.Since))
			if r := seen.Moved; r != nil {
				o.Moved = &api.MoveReport{DowntimeSeconds: r.Downtime.Seconds(), TotalSeconds: r.Total.Seconds(), Bytes: r.Bytes, Rounds: r.Rounds}
			}
			o.Phase, o.Message = s.fabrics.Limit(s.View, a, o.Phase, o.Message)
		}
		if ok || ref.Releasing {
			in.Observed[a.ID] = o
		}
	}
	return in
}

// Asked is a need of a cluster.
type Asked struct {
	Cluster *state.Cluster
	Need    lifecycle.Need
}

// Needs plans every cluster and returns what they ask for. It is for those who explain: the leader gets them where it plans.
func (s *Site) Needs() []Asked {
	var asked []Asked
	for _, c := range s.View.Clusters {
		for _, op := range lifecycle.PlanCluster(s.Cluster(c)) {
			if need, ok := op.(lifecycle.Need); ok {
				asked = append(asked, Asked{c, need})
			}
		}
	}
	return asked
}

// Admission is what a plan of the queue depends on. The n-th request is that of the n-th need.
func (s *Site) Admission(asked []Asked, free *placement.View) admission.Input {
	parts := s.View.Parts()
	in := admission.Input{Now: s.Now, Free: free, Parts: parts, Accounts: s.accounts(parts)}
	for _, c := range s.View.Clusters {
		in.Running = append(in.Running, s.running(c)...)
	}
	for _, a := range asked {
		in.Requests = append(in.Requests, s.request(a))
	}
	return in
}

// groups are those of a cluster as placement takes them.
func (s *Site) groups(intent *api.ClusterIntent) []api.Group {
	volumes := volumePlace(s.View.VolumeNamed, s.servesVolumes, intent)
	groups := slices.Clone(s.View.WithFunctions(intent.Project, intent.Spec))
	for i := range groups {
		groups[i].PortMTU, groups[i].VolumePlace = portMTU(s.View, intent, &groups[i], s.Encrypted), volumes
		groups[i].DataPlace = s.dataPlace(intent.Project, &groups[i], intent.Spec.Egress)
		if placement.Whole(groups[i].Stack) {
			groups[i].VolumePlace = s.volumesOfMachines(intent)
		}
	}
	return groups
}

// Ends is when a cluster is gone at the latest, its grace included; zero when it has no limit.
func (s *Site) Ends(c *state.Cluster) time.Time {
	if c.Record == nil || c.Record.PlacedAt == nil || c.Intent.Spec.TimeLimit == 0 {
		return time.Time{}
	}
	expires := lifecycle.Expires(c.Intent.Spec, c.Record)
	switch {
	case c.Record.ExpiredAt != nil: // grace begins when the end was noticed
		expires = *c.Record.ExpiredAt
	case expires.Before(s.Now):
		expires = s.Now
	}
	return expires.Add(s.Deadlines.Grace + admission.ReleaseTime)
}

func (s *Site) running(c *state.Cluster) []admission.Running {
	var out []admission.Running
	holds := admission.Running{Cluster: c.Name(), Project: project(c), Ends: s.Ends(c)}
	for a := range c.Held() {
		holds.Assignments = append(holds.Assignments, a.ID)
	}
	gives := admission.Running{Cluster: c.Name(), Project: project(c), Releasing: true}
	for a := range c.Releasing() {
		gives.Assignments = append(gives.Assignments, a.ID)
	}
	if len(holds.Assignments) > 0 {
		out = append(out, holds)
	}
	if len(gives.Assignments) > 0 {
		out = append(out, gives)
	}
	return out
}

func (s *Site) request(asked Asked) admission.Request {
	c, need := asked.Cluster, asked.Need
	intent := &c.Intent
	r := admission.Request{
		Cluster: c.Name(), UID: c.UID(), Project: project(c), User: intent.User, Kind: admission.Kind(need.Kind),
		Priority: intent.Spec.Priority, Since: intent.CreatedAt, Holds: s.holds(c),
		// What a cluster is to grow by waits once it is wanted: whether it may was asked when it was asked for.
		Queue: intent.Spec.Queue || need.Kind == lifecycle.NeedScale,
	}
	switch {
	case need.Kind == lifecycle.NeedScale && intent.ScaledAt != nil:
		r.Since = *intent.ScaledAt
	case need.Kind == lifecycle.NeedRestore && intent.SaveAskedAt != nil:
		r.Since = *intent.SaveAskedAt
	case need.Kind == lifecycle.NeedMove:
		r.Since = need.Members[0].AskedAt
	case need.Kind == lifecycle.NeedResize && intent.ResizedAt != nil:
		r.Since = *intent.ResizedAt
	}
	count := map[string]int{}
	avoid := map[string]bool{}
	for _, m := range need.Members {
		count[m.Group]++
		r.Regains = r.Regains || m.Regains
		if m.Held != nil {
			r.Held = m.Held
		}
		if m.Avoid != "" {
			avoid[m.Avoid] = true
		}
	}
	for _, g := range s.groups(intent) {
		r.Queue = r.Queue || g.VolumePlace.Unplaced != "" && !g.VolumePlace.Away // what a node makes is soon there
		if count[g.Name] > 0 {
			g.Size = count[g.Name]
			if hold := s.holds(c); hold > 0 && s.windows {
				g.Ends = s.Now.Add(hold)
			}
			r.Groups = append(r.Groups, g)
		}
	}
	for _, m := range need.Members {
		if m.From != "" {
			i := slices.IndexFunc(r.Groups, func(g api.Group) bool { return g.Name == m.Group })
			r.Homes = append(r.Homes, admission.Home{
				Group: i, Node: m.On, Not: m.Leaves, Elsewhere: m.Elsewhere, Unfit: s.unfit(cmp.Or(m.Leaves, m.On), r.Groups[i].CPUModel),
			})
		}
	}
	for a := range c.Held() {
		if len(a.Devices) > 0 && count[a.Group] > 0 && !a.IsPart() {
			r.Mates = append(r.Mates, placement.MateOf(a))
		}
		switch {
		case need.Kind == lifecycle.NeedResize:
			if a.ID == need.Members[0].Resizes {
				r.Resizes = a
			}
		case need.Kind == lifecycle.NeedHeal && a.Spare && count[a.Group] > 0:
			r.Spares = append(r.Spares, *a)
		case need.Kind == lifecycle.NeedSpare:
			avoid[a.Node] = true
		}
	}
	for node := range avoid {
		r.Avoid = append(r.Avoid, node)
	}
	return r
}

// unfit returns the nodes that can't take the memory of a machine on a node, with the reasons; nil when all can.
func (s *Site) unfit(node, cpuModel string) map[string]string {
	from := s.View.Agent(node)
	if from == nil {
		return nil
	}
	var all map[string]string
	for _, n := range s.View.Nodes {
		why := lifecycle.CantTake(from, n.Agent, cpuModel)
		if why == "" {
			continue
		}
		if all == nil {
			all = map[string]string{}
		}
		all[n.Agent.Name] = why
	}
	return all
}

// holds is how long a cluster will hold what it is given now; 0 without a limit.
func (s *Site) holds(c *state.Cluster) time.Duration {
	if ends := s.Ends(c); !ends.IsZero() {
		return max(ends.Sub(s.Now), time.Second)
	}
	if limit := c.Intent.Spec.TimeLimit.Std(); limit > 0 {
		return limit + s.Deadlines.Grace + admission.ReleaseTime
	}
	return 0
}

// accounts are the projects with what they hold and held.
func (s *Site) accounts(parts resource.Parts) map[string]admission.Account {
	accounts := map[string]admission.Account{}
	for _, p := range s.View.Projects {
		accounts[p.Name] = admission.Account{Quota: p.Quota, Shares: p.Shares, EnergyJoules: s.EnergyJoules[p.Name]}
	}
	for _, c := range s.View.Clusters {
		a := accounts[project(c)]
		a.Used = a.Used.Plus(counted(s.View, c, parts))
		accounts[project(c)] = a
	}
	for name, d := range usage.Decay(s.Now, s.View.Past, s.View.Open()) {
		a := accounts[name]
		a.DecayedCoreSeconds, a.ByUser = d.Total, d.ByUser
		accounts[name] = a
	}
	return accounts
}

func project(c *state.Cluster) string { return cmp.Or(c.Intent.Project, api.DefaultProject) }

// counted is what of a cluster counts against its project's quota: what it holds, and what it is to get in the place of what it lost.
func counted(view *state.View, c *state.Cluster, parts resource.Parts) resource.Amounts {
	held := c.HeldTotal()
	if c.Record == nil || len(c.Record.Lost) == 0 {
		return held
	}
	held.Vector[resource.Clusters] = 1
	groups := view.WithFunctions(c.Intent.Project, c.Intent.Spec)
	for _, lost := range c.Record.Lost {
		for i := range groups {
			g := &groups[i]
			switch {
			case g.Name != lost.Group:
			case lost.Saved:
				held.Vector[resource.Members]++
			default:
				had := *g
				if lost.Shape != nil {
					had.Shape = *lost.Shape
				}
				held = held.Plus(resource.OfMember(&had, parts))
			}
		}
	}
	return held
}
