package apiserver

import (
	"cmp"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// Observed is the reading side of Live: what joining needs.
type Observed interface {
	Member(a *api.Assignment) (phase api.MemberPhase, message string, ok bool)
	OnMachine(a *api.Assignment) (phase api.MemberPhase, message string, told bool)
	Boot(a *api.Assignment) string
	Size(a *api.Assignment) (number int64, unsized string)
	Mounted(a *api.Assignment) (number int64, unmounted string)
	Layers(a *api.Assignment) int64
	Condition(a *api.Assignment) (number int64, missing string)
	Arriving(a *api.Assignment) (bytes, ofBytes int64)
	Node(name string) (phase api.NodePhase, lastSeen time.Time, message string)
}

// joinCluster makes what users see of a cluster: the user's intent, the leader's record and what agents report. It is pure.
func joinCluster(c *state.Cluster, seen Observed) api.Cluster {
	in := &c.Intent
	project, name := tenancy.Split(in.Name)
	out := api.Cluster{
		Name: name, UID: in.UID, Project: project, User: in.User, Labels: in.Labels, Spec: in.Spec,
		Status: api.ClusterStatus{
			Phase: api.ClusterPending, Message: "waiting for a decision", Paused: in.Paused, PausedFiles: pausedFiles(c), Saved: lifecycle.WantsSaved(in, c.Record),
			Members: []api.MemberStatus{}, CreatedAt: in.CreatedAt, DeletedAt: in.DeleteRequestedAt,
		},
	}
	st := &out.Status
	if rec := c.Record; rec != nil {
		st.Phase, st.Message, st.Generation, st.ReadyAt = rec.Phase, rec.Message, rec.Generation, rec.ReadyAt
		st.ExpiresAt = expiry(c)
		if len(rec.Networks) > 0 {
			st.CIDR = rec.Networks[0].Prefix.String()
		}
	}
	if in.DeleteRequestedAt != nil && st.Phase != api.ClusterDeleting {
		// The leader has not taken notice yet; to the user it is being deleted from the moment they asked.
		st.Phase, st.Message = api.ClusterDeleting, "waiting for its members to be released"
	}
	joinMembers(st, c, seen)
	if st.TotalMembers == 0 {
		for _, g := range in.Spec.Groups {
			st.TotalMembers += g.Size
		}
	}
	return out
}

// expiry is when the cluster's time limit ends; nil when it has none, or is not placed yet.
func expiry(c *state.Cluster) *time.Time {
	end := lifecycle.Expires(c.Intent.Spec, c.Record)
	if end.IsZero() {
		return nil
	}
	return &end
}

// joinMembers lists the members: those that hold something by rank, those without a place, spares, and those that are going.
func joinMembers(st *api.ClusterStatus, c *state.Cluster, seen Observed) {
	st.Members = make([]api.MemberStatus, 0, memberCount(c))
	var spares []api.MemberStatus
	var parts []*api.Assignment
	moving := moves(c, seen)
	st.Move, st.Reboot = moveStatus(c, moving), rebootStatus(c, seen)
	st.Snapshots, st.SnapshotRestore, st.DetachingVolumes = snapshotsOf(c), snapshotRestoreStatus(c), detachingNames(c)
	st.Layers, st.Condition = layersOf(c, seen), conditionOf(c, seen)
	for a := range c.Held() {
		st.Oversubscribed = st.Oversubscribed || a.Oversubscribed
		switch {
		case a.IsSuccessor(): // until it takes over, the member is where it was
			continue
		case a.IsSnapshot():
			continue
		case a.IsPart():
			parts = append(parts, a)
			continue
		case a.Spare:
			spares = append(spares, joinSpare(c.Record, a, seen))
			continue
		}
		m := joinMember(c.Record, a, seen, settled(c, a))
		m.Resizing, m.VolumeChanges = resizingOf(c, a, seen), volumeChangesOf(c, a, seen)
		if now, ok := moving[a.ID]; ok {
			m.Moving = &now
		}
		if m.Phase == api.MemberReady {
			st.ReadyMembers++
		}
		st.Members = append(st.Members, m)
	}
	joinParts(st, c.Record, parts, seen)
	st.Members = append(st.Members, placeless(c)...)
	st.TotalMembers = len(st.Members)
	slices.SortStableFunc(st.Members, byRank)
	st.Members = append(st.Members, spares...)
	for a := range c.Releasing() {
		if a.IsSnapshot() {
			continue
		}
		st.Oversubscribed = st.Oversubscribed || a.Oversubscribed
		m := newMember(c.Record, a)
		m.Phase = api.MemberReleasing
		if phase, _, message := seen.Node(a.Node); phase != api.NodeReady {
			m.Message = "waiting for node " + a.Node + ": " + message
		}
		st.Members = append(st.Members, m)
	}
}

// memberCount is how many members will be listed, about.
func memberCount(c *state.Cluster) int {
	if c.Record == nil {
		return 0
	}
	n := len(c.Record.Lost)
	for _, ref := range c.Record.Chunks {
		n += ref.Count
	}
	return n
}

// byRank orders members by rank; those that have none yet come last.
func byRank(a, b api.MemberStatus) int { return cmpRank(a.Rank) - cmpRank(b.Rank) }

func cmpRank(rank int) int {
	if rank == noRank {
		return 1 << 30
	}
	return rank
}

// noRank stands for the rank of a member that has none yet.
const noRank = -1

// placeless are the members that should be there and hold nothing: those lost, and those a scale-up asks for.
func placeless(c *state.Cluster) []api.MemberStatus {
	rec := c.Record
	if rec == nil || c.Intent.DeleteRequestedAt != nil {
		return nil
	}
	var out []api.MemberStatus
	here := map[string]bool{}
	for _, l := range rec.Lost {
		here[l.Member] = true
		out = append(out, api.MemberStatus{
			Name: l.Member, Group: l.Group, Rank: l.Rank, Node: l.Node, Phase: api.MemberLost, Message: l.Reason, CPUs: []int{}, Attempt: l.Attempt,
		})
	}
	switch rec.Phase {
	case api.ClusterPending, api.ClusterQueued, api.ClusterRefused, api.ClusterFailed, api.ClusterDeleting:
		return out // nothing was placed yet, or nothing will be any more
	}
	for a := range c.Held() {
		here[a.Member] = here[a.Member] || !a.IsSnapshot()
	}
	for _, m := range lifecycle.DesiredMembers(c.Intent.Spec, c.Intent.Removed) {
		if !here[m.Member] {
			out = append(out, api.MemberStatus{
				Name: m.Member, Group: m.Group, Rank: noRank, Phase: api.MemberWaiting, Message: "waits for room", CPUs: []int{},
			})
		}
	}
	return out
}

// settled tells that the cluster was ready with this assignment: nobody's word on it is then not new but missing (the server has just
// started).
func settled(c *state.Cluster, a *api.Assignment) bool {
	switch c.Record.Phase {
	case api.ClusterReady, api.ClusterDegraded, api.ClusterScaling, api.ClusterPausing, api.ClusterPaused, api.ClusterResuming, api.ClusterSnapshotting, api.ClusterSaving,
		api.ClusterSaved, api.ClusterRestoring:
		return c.Record.ReadyAt == nil || !a.TakenAt.After(*c.Record.ReadyAt)
	default:
		return false
	}
}

// joinParts adds to members what they hold on other nodes.
func joinParts(st *api.ClusterStatus, record *api.ClusterRecord, parts []*api.Assignment, seen Observed) {
	for _, a := range parts {
		i := slices.IndexFunc(st.Members, func(m api.MemberStatus) bool { return m.Name == a.Member })
		if i < 0 {
			continue
		}
		part := joinMember(record, a, seen, false)
		m := &st.Members[i]
		m.Devices = append(m.Devices, part.Devices...)
		if m.Phase == api.MemberReady && part.Phase == api.MemberUnknown && a.ServesGPU() {
			m.Message = "its GPU server on node " + a.Node + " is not heard of" // it goes on, and maybe its programs do
			continue
		}
		if m.Phase == api.MemberReady && part.Phase != api.MemberReady {
			m.Phase, m.Message = part.Phase, "its devices on node "+a.Node+": "+cmp.Or(part.Message, string(part.Phase))
			st.ReadyMembers--
		}
	}
}

// devicesOf lists the devices of an assignment for people.
func devicesOf(a *api.Assignment) []api.MemberDevice {
	var devices []api.MemberDevice
	for _, d := range a.Devices {
		on := api.MemberDevice{Class: d.Class, Node: a.Node, Device: d.Device, Way: d.Way, Part: d.Part, Parent: d.Parent, Profile: d.Profile, Why: d.Why, Cost: d.Cost, Figures: d.Figures}
		if d.Way == api.WayRemote {
			on.Memory = api.Bytes(d.Takes[api.CounterRemoteMiB] << 20)
		}
		devices = append(devices, on)
	}
	return devices
}

// newMember is the part of a member that its assignment says.
func newMember(record *api.ClusterRecord, a *api.Assignment) api.MemberStatus {
	has := a.Has()
	m := api.MemberStatus{
		Name: a.Member, Group: a.Group, Rank: a.Rank, Node: a.Node, CPUs: has.CPUs, MemoryBytes: int64(has.Shape().Memory),
		Oversubscribed: a.Oversubscribed, Attempt: a.Attempt, Data: a.Data,
	}
	if a.Address().IsValid() {
		m.Address = a.Address().String()
	}
	for i := 1; i < len(a.Ports); i++ {
		p := &a.Ports[i]
		m.Networks = append(m.Networks, api.MemberNetwork{Name: networkNameIn(record, p.Network), Address: p.Address.String(), Address6: address6In(record, p)})
	}
	m.Devices = devicesOf(a)
	if m.CPUs == nil {
		m.CPUs = []int{}
	}
	return m
}

// address6In returns the IPv6 address of a port on a network that the cluster joined, "" for none.
func address6In(record *api.ClusterRecord, p *api.PortClaim) string {
	for _, ref := range record.Joined {
		n := api.Network{Prefix: ref.Prefix, Prefix6: ref.Prefix6}
		if six := n.Address6(p.Address); ref.UID == p.Network && six.IsValid() {
			return six.String()
		}
	}
	return ""
}

// networkNameIn returns the name that the groups of a cluster write for a network, by its UID.
func networkNameIn(record *api.ClusterRecord, uid string) string {
	for _, ref := range record.Joined {
		if ref.UID == uid {
			return ref.Name
		}
	}
	return api.OwnNetworkName(uid)
}

// joinSpare shows room that is held; a node that can't be heard of makes it of no use.
func joinSpare(record *api.ClusterRecord, a *api.Assignment, seen Observed) api.MemberStatus {
	m := newMember(record, a)
	m.Phase, m.Address, m.Networks = api.MemberSpare, "", nil
	if phase, _, message := seen.Node(a.Node); phase != api.NodeReady {
		m.Message = "node " + a.Node + ": " + message
	}
	return m
}

// joinMember adds what the member's node says. settled tells that the cluster has been ready with it.
func joinMember(record *api.ClusterRecord, a *api.Assignment, seen Observed, settled bool) api.MemberStatus {
	m := newMember(record, a)
	if phase, message, told := seen.OnMachine(a); told {
		m.Phase, m.Message = phase, message
		return m
	}
	node, _, trouble := seen.Node(a.Node)
	phase, message, ok := seen.Member(a)
	switch {
	case node != api.NodeReady:
		m.Phase, m.Message = api.MemberUnknown, "node "+a.Node+": "+trouble
	case ok:
		m.Phase, m.Message = phase, message
	case settled:
		m.Phase, m.Message = api.MemberUnknown, "node "+a.Node+" has not reported on it yet"
	default:
		m.Phase = api.MemberAssigned
	}
	return m
}
