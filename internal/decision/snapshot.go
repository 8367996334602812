package decision

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// heldPlaces are the committed assignments that are held and that no operation before let go of, in the order of their ranks.
func (a *applier) heldPlaces(are func(*api.Assignment) bool) []*place {
	var list []*place
	for _, p := range a.places {
		if p.fate == stays && !a.c.Chunks[p.chunk].Ref.Releasing && are(p.assignment) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(p, q *place) int {
		return cmp.Or(cmp.Compare(p.assignment.Rank, q.assignment.Rank), cmp.Compare(p.assignment.ID, q.assignment.ID))
	})
	return list
}

// snapshotID is the ID of an assignment that keeps the state of a member. Members' IDs have no such part, so neither is taken for the other's
// older generation.
func snapshotID(clusterUID, member string, generation int64) string {
	return fmt.Sprintf("%s.%s.snapshot.%d", clusterUID, member, generation)
}

// holdSnapshot takes room for the state of each member on its node's disk.
func (a *applier) holdSnapshot(s api.SnapshotIntent) error {
	for _, p := range a.heldPlaces((*api.Assignment).IsMember) {
		m, has := p.assignment, p.assignment.Has()
		ports, _ := m.LetGo()                                         // a member that goes back to it gets other functions
		memory := (&api.Assignment{Memory: has.Memory}).MemoryBytes() // before a resize that is pending
		n := api.Assignment{
			ID: snapshotID(m.ClusterUID, m.Member, a.record.Generation+1), ClusterUID: m.ClusterUID, Cluster: m.Cluster, Generation: a.record.Generation + 1,
			Group: m.Group, Member: m.Member, Rank: lifecycle.NoRank, Node: m.Node, CleanBy: api.ByAgents(m.Node), RAMBoot: m.RAMBoot,
			Slots: []int{}, CPUs: []int{}, NUMANodes: []int{}, Memory: []api.MemoryClaim{},
			DiskBytes: resource.StateBound(memory), UserIDs: m.UserIDs, Stack: m.Stack, Environment: m.Environment, Display: m.Display, CPUModel: m.CPUModel,
			EnvironmentDigest: m.EnvironmentDigest, TakenAt: a.now,
			Snapshot: &api.SnapshotClaim{
				Name: s.Name, AskedAt: s.AskedAt, Of: m.ID, Ports: ports, Cores: len(has.Slots), MemoryBytes: memory,
			},
		}
		if err := a.checkNew(n); err != nil {
			return err
		}
		a.held = append(a.held, n)
	}
	if len(a.held) == 0 {
		return fmt.Errorf("snapshot %s has no members", s.Name)
	}
	a.moved = true
	return nil
}

// noteSnapshot notes how a request for a snapshot ended. The states of a complete snapshot take as much room as they have bytes.
func (a *applier) noteSnapshot(op lifecycle.NoteSnapshot) error {
	r := api.SnapshotRecord{Name: op.Snapshot.Name, AskedAt: op.Snapshot.AskedAt, Failed: brief(op.Failed)}
	if op.Failed == "" {
		at := a.now
		r.MadeAt = &at
		states := a.heldPlaces(func(m *api.Assignment) bool { return lifecycle.OfSnapshot(m, op.Snapshot) })
		if len(states) == 0 || len(states) != len(op.Bytes) {
			return fmt.Errorf("snapshot %s has %d states, and the sizes of %d are known", op.Snapshot.Name, len(states), len(op.Bytes))
		}
		for _, p := range states {
			bytes, known := op.Bytes[p.assignment.ID]
			if !known {
				return fmt.Errorf("the size of %s in snapshot %s is unknown", p.assignment.ID, op.Snapshot.Name)
			}
			a.spans.add(api.SpanAllocated, p.assignment, p.assignment.TakenAt, a.now)
			next := *p.assignment
			next.Saved, next.DiskBytes, next.TakenAt = true, bytes, a.now
			p.fate, p.next = changed, &next
			r.Bytes += bytes
		}
		a.moved = true
	}
	if err := a.forgetSnapshots([]string{r.Name}); err != nil {
		return err
	}
	a.record.Snapshots = append(a.record.Snapshots, r)
	return nil
}

func (a *applier) forgetSnapshots(names []string) error {
	a.record.Snapshots = slices.DeleteFunc(a.record.Snapshots, func(r api.SnapshotRecord) bool { return slices.Contains(names, r.Name) })
	return nil
}

// restoreSnapshot releases all members, and holds saved ones in their place that begin with their states in the snapshot.
func (a *applier) restoreSnapshot(s api.SnapshotIntent) error {
	made := slices.IndexFunc(a.record.Snapshots, func(r api.SnapshotRecord) bool {
		return r.Name == s.Name && r.AskedAt.Equal(s.AskedAt) && r.MadeAt != nil
	})
	if made < 0 || a.c.Intent == nil || a.c.Intent.SnapshotRestore == nil {
		return fmt.Errorf("nobody asked to restore snapshot %s, or there is none", s.Name)
	}
	states := map[string]*api.Assignment{}
	for _, p := range a.heldPlaces(func(m *api.Assignment) bool { return lifecycle.OfSnapshot(m, s) && m.Saved }) {
		states[p.assignment.Member] = p.assignment
	}
	members := a.heldPlaces((*api.Assignment).IsMember)
	if len(members) != len(states) {
		return fmt.Errorf("snapshot %s has %d members, and the cluster %d", s.Name, len(states), len(members))
	}
	for _, p := range members {
		m, state := p.assignment, states[p.assignment.Member]
		if state == nil {
			return fmt.Errorf("member %s is not in snapshot %s", m.Member, s.Name)
		}
		if err := a.release(lifecycle.Release{IDs: []string{m.ID}}); err != nil {
			return err
		}
		n := *state
		n.ID, n.Generation = fmt.Sprintf("%s.%s.%d", m.ClusterUID, m.Member, a.record.Generation+1), a.record.Generation+1
		n.Rank, n.Ports, n.DiskBytes, n.TakenAt, n.Attempt = m.Rank, state.Snapshot.Ports, m.DiskBytes, a.now, m.Attempt
		n.Snapshot, n.From, n.Resumes = nil, m.ID, state.ID
		if err := a.checkNew(n); err != nil {
			return err
		}
		a.held = append(a.held, n)
	}
	a.record.SnapshotRestore = &api.SnapshotRestoreRecord{
		Name: s.Name, AskedAt: a.c.Intent.SnapshotRestore.AskedAt, MadeAt: *a.record.Snapshots[made].MadeAt, DecidedAt: a.now,
	}
	return nil
}
