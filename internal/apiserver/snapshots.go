package apiserver

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

func (s *Server) registerSnapshots() {
	operation(s, "GET /v1/clusters/{name}/snapshots", AccessRead, "list-snapshots", "List the snapshots of a cluster",
		"The oldest first, also those that failed or are being deleted.", http.StatusOK, s.listSnapshots, codeNoCluster)
	operation(s, "POST /v1/clusters/{name}/snapshots", AccessChange, "create-snapshot", "Make a snapshot of a cluster",
		"All members stand still while each writes its memory to its node's disk; then the cluster continues. The shared home is not part of the "+
			"snapshot. `status.snapshots` shows the progress. Only virtual machines of this site's environments without devices have snapshots.",
		http.StatusAccepted, s.createSnapshot, bodyCodes(codeInvalidRequest, codeNoCluster, codeWrongPhase, codeCantSave, codeSnapshotExists, codeTooManySnapshots,
			codeOverQuota, codeNoRoom)...)
	operation(s, "DELETE /v1/clusters/{name}/snapshots/{snapshot}", AccessChange, "delete-snapshot", "Delete a snapshot of a cluster",
		"Its room on the nodes' disks is free once they have confirmed its removal. A snapshot that is being made is given up.",
		http.StatusAccepted, s.deleteSnapshot, codeNoCluster, codeNoSnapshot, codeWrongPhase)
	operation(s, "POST /v1/clusters/{name}/snapshots/{snapshot}/restore", AccessChange, "restore-snapshot", "Restore a cluster to a snapshot",
		"The nodes verify the snapshot first. Then the present members end, and continue from their states in the snapshot as soon as there is room. "+
			"The snapshot stays. `status.snapshot_restore` shows the progress, and the reason if nothing was restored.",
		http.StatusAccepted, s.restoreSnapshot, codeNoCluster, codeNoSnapshot, codeWrongPhase, codeCantRestore)
}

// bySnapshot is the path of a snapshot.
type bySnapshot struct {
	Name     string `path:"name" doc:"Name of the cluster, NAME or PROJECT.NAME"`
	Snapshot string `path:"snapshot" doc:"Name of the snapshot"`
}

func noSnapshot(cluster, name string) *failure {
	return fail(codeNoSnapshot, "cluster %q has no snapshot %q; see nearmetal cluster snapshot list %s", cluster, name, cluster)
}

// snapshotsOf are the snapshots of a cluster, the oldest first. A snapshot that is being deleted is shown until all of it is clean, unless there is
// a newer one of its name.
func snapshotsOf(c *state.Cluster) []api.Snapshot {
	if c.Record == nil {
		return nil
	}
	var list []api.Snapshot
	for _, s := range c.Intent.Snapshots {
		list = append(list, snapshotOf(c, s))
	}
	for a := range c.All() {
		if !a.IsSnapshot() || slices.ContainsFunc(c.Intent.Snapshots, func(s api.SnapshotIntent) bool { return s.Name == a.Snapshot.Name }) {
			continue
		}
		i := slices.IndexFunc(list, func(s api.Snapshot) bool { return s.Name == a.Snapshot.Name })
		if i < 0 {
			i = len(list)
			list = append(list, api.Snapshot{Name: a.Snapshot.Name, Phase: api.SnapshotDeleting, RequestedAt: a.Snapshot.AskedAt, Members: []api.SnapshotMember{}})
		}
		addState(&list[i], a)
	}
	slices.SortStableFunc(list, func(a, b api.Snapshot) int { return a.RequestedAt.Compare(b.RequestedAt) })
	return list
}

func snapshotOf(c *state.Cluster, s api.SnapshotIntent) api.Snapshot {
	out := api.Snapshot{Name: s.Name, Phase: api.SnapshotWaiting, RequestedAt: s.AskedAt, Members: []api.SnapshotMember{}}
	if c.Record.Phase == api.ClusterSnapshotting {
		out.Phase = api.SnapshotCreating
	}
	for _, r := range c.Record.Snapshots {
		if r.Name != s.Name || !r.AskedAt.Equal(s.AskedAt) {
			continue
		}
		out.Phase, out.CreatedAt = api.SnapshotReady, r.MadeAt
		if r.Failed != "" {
			out.Phase, out.Message = api.SnapshotFailed, r.Failed
		}
	}
	for a := range c.Held() {
		if lifecycle.OfSnapshot(a, s) {
			addState(&out, a)
		}
	}
	return out
}

func addState(s *api.Snapshot, a *api.Assignment) {
	s.Members = append(s.Members, api.SnapshotMember{Member: a.Member, Node: a.Node, Bytes: api.Bytes(a.DiskBytes)})
	s.Bytes += api.Bytes(a.DiskBytes)
	slices.SortFunc(s.Members, func(a, b api.SnapshotMember) int { return cmp.Compare(a.Member, b.Member) })
}

// snapshotRestoreStatus returns the progress of the last request to restore a snapshot; nil: none was made.
func snapshotRestoreStatus(c *state.Cluster) *api.SnapshotRestoreStatus {
	asked := c.Intent.SnapshotRestore
	if asked == nil || c.Record == nil {
		return nil
	}
	out := &api.SnapshotRestoreStatus{Name: asked.Name, RequestedAt: asked.AskedAt, Phase: api.SnapshotVerifying}
	if r := c.Record.SnapshotRestore; r != nil && r.AskedAt.Equal(asked.AskedAt) {
		out.Phase, out.Message = api.SnapshotRestored, r.Failed
		if r.Failed != "" {
			out.Phase = api.SnapshotRefused
		}
	}
	return out
}

func (s *Server) listSnapshots(ctx context.Context, in *byName) (*body[api.List[api.Snapshot]], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	list := snapshotsOf(c)
	if list == nil {
		list = []api.Snapshot{}
	}
	return &body[api.List[api.Snapshot]]{api.List[api.Snapshot]{Items: list}}, nil
}

func (s *Server) createSnapshot(ctx context.Context, in *namedBody) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	req, _, err := readBody[api.SnapshotRequest](in.body())
	if err != nil {
		return nil, err
	}
	if why := manifest.LabelProblem(req.Name, manifest.MaxLabel); why != "" {
		return nil, failFields(codeInvalidRequest, api.FieldProblem{Location: "name", Message: why})
	}
	name, now := shownName(who(ctx), c.Name()), s.cfg.Now().UTC()
	if a := foreignMember(c, s.cfg.Reader.View()); a != nil {
		return nil, fail(codeCantSave, "environment %q of member %q is the disk of another system, whose members have no snapshots", a.Environment, a.Member)
	}
	if disks := disksOf(s.cfg.Reader.View(), &c.Intent); len(disks) > 0 {
		return nil, fail(codeCantSave, "cluster %q can't have snapshots: memory restored from a snapshot would be older than its block volume %q, and would corrupt it",
			name, disks[0].Name)
	}
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		if err := canSnapshot(name, intent, c, req.Name); err != nil {
			return err
		}
		if err := s.hasRoomFor(name, c); err != nil {
			return err
		}
		kept := slices.DeleteFunc(slices.Clone(intent.Snapshots), func(s api.SnapshotIntent) bool { return s.Name == req.Name }) // one that failed
		intent.Snapshots = append(kept, api.SnapshotIntent{Name: req.Name, AskedAt: now})
		return nil
	})
}

// canSnapshot refuses a snapshot of a cluster that does something else, and one whose name is taken.
func canSnapshot(name string, intent *api.ClusterIntent, c *state.Cluster, snapshot string) error {
	if why := lifecycle.Snapshottable(intent.Spec); why != "" {
		return fail(codeCantSave, "cluster %q can't have snapshots: %s", name, why)
	}
	if err := checkStandsOrRuns(name, intent, c); err != nil {
		return err
	}
	now := *c
	now.Intent = *intent
	for _, s := range snapshotsOf(&now) {
		switch {
		case s.Phase == api.SnapshotWaiting || s.Phase == api.SnapshotCreating:
			return fail(codeWrongPhase, "snapshot %q of cluster %q is being made; wait until it is ready: nearmetal cluster snapshot list %s", s.Name, name, name)
		case s.Name == snapshot && s.Phase != api.SnapshotFailed:
			return fail(codeSnapshotExists, "cluster %q has a snapshot %q already, which is %s; choose another name, or delete that one: nearmetal cluster snapshot delete %s %s",
				name, snapshot, s.Phase, name, snapshot)
		}
	}
	if len(intent.Snapshots) >= api.MaxSnapshots && !slices.ContainsFunc(intent.Snapshots, func(s api.SnapshotIntent) bool { return s.Name == snapshot }) {
		return fail(codeTooManySnapshots, "cluster %q has %d snapshots, which is the limit; delete one: nearmetal cluster snapshot delete %s NAME", name, len(intent.Snapshots), name)
	}
	return nil
}

// checkStandsOrRuns refuses a request about snapshots for a cluster that is neither ready nor paused, or that does something else.
func checkStandsOrRuns(name string, intent *api.ClusterIntent, c *state.Cluster) error {
	phase := phaseOf(c)
	switch {
	case lifecycle.WantsSaved(intent, c.Record) || lifecycle.Shelving(phase):
		return isSaved(name)
	case phase != api.ClusterReady && phase != api.ClusterPaused:
		return fail(codeWrongPhase, "cluster %q is %s, and snapshots are only of ready or paused clusters; see nearmetal cluster show %s", name, phase, name)
	case c.Record.ExpiredAt != nil:
		return isExpired(name)
	case lifecycle.SnapshotRestoreOf(intent, c.Record) != nil:
		return fail(codeWrongPhase, "cluster %q is about to be restored to snapshot %q; wait until that has ended: nearmetal cluster show %s", name, intent.SnapshotRestore.Name, name)
	default:
		return nil
	}
}

// hasRoomFor refuses a snapshot that its project's quota or a node's disk has no room for.
func (s *Server) hasRoomFor(name string, c *state.Cluster) error {
	view := s.cfg.Reader.View()
	need := map[string]int64{}
	var add resource.Amounts
	for a := range c.Held() {
		if a.IsMember() {
			need[a.Node] += resource.StateBound(a.MemoryBytes())
			add.Vector[resource.Disk] += resource.StateBound(a.MemoryBytes())
		}
	}
	if project := view.Project(projectOr(c.Intent.Project)); project != nil {
		if err := tenancy.CheckQuota(project.Quota, tenancy.Used(view)[project.Name], add); err != nil {
			return fail(codeOverQuota, "cluster %q can't have another snapshot: %v", name, err)
		}
	}
	for _, cluster := range view.Clusters {
		for a := range cluster.All() {
			if _, ok := need[a.Node]; ok {
				need[a.Node] += a.DiskBytes
			}
		}
	}
	for node, bytes := range need {
		n := view.Agent(node)
		if n == nil || bytes <= n.Capacity.DiskBytes {
			continue
		}
		return fail(codeNoRoom, "cluster %q can't have another snapshot: node %q offers %s of disk for its members, of which %s are taken or would be; delete snapshots",
			name, node, resource.Disk.Number(n.Capacity.DiskBytes), resource.Disk.Number(bytes))
	}
	return nil
}

func (s *Server) deleteSnapshot(ctx context.Context, in *bySnapshot) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		kept := slices.DeleteFunc(slices.Clone(intent.Snapshots), func(s api.SnapshotIntent) bool { return s.Name == in.Snapshot })
		if len(kept) == len(intent.Snapshots) {
			return noSnapshot(shownName(who(ctx), c.Name()), in.Snapshot)
		}
		intent.Snapshots = kept
		return nil
	})
}

func (s *Server) restoreSnapshot(ctx context.Context, in *bySnapshot) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	name, now := shownName(who(ctx), c.Name()), s.cfg.Now().UTC()
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		if !slices.ContainsFunc(intent.Snapshots, func(s api.SnapshotIntent) bool { return s.Name == in.Snapshot }) {
			return noSnapshot(name, in.Snapshot)
		}
		if err := checkStandsOrRuns(name, intent, c); err != nil {
			return err
		}
		if why := s.unrestorable(intent, c, in.Snapshot); why != "" {
			return fail(codeCantRestore, "snapshot %q of cluster %q can't be restored: %s", in.Snapshot, name, why)
		}
		intent.SnapshotRestore = &api.SnapshotIntent{Name: in.Snapshot, AskedAt: now}
		intent.Saved, intent.SaveAskedAt = false, &now // if members then can't resume, the request is given up like that of a saved cluster
		return nil
	})
}

// unrestorable returns why a snapshot does not fit its cluster, or is on a node that is down; "" if neither.
func (s *Server) unrestorable(intent *api.ClusterIntent, c *state.Cluster, snapshot string) string {
	if why := lifecycle.Unrestorable(intent, c.Record, snapshot, c.Decision().Assignments()); why != "" {
		return why
	}
	for a := range c.Held() {
		if a.IsSnapshot() && a.Snapshot.Name == snapshot {
			if phase, _, _ := s.cfg.Live.Node(a.Node); phase == api.NodeDown {
				return fmt.Sprintf("the state of %s is on node %q, which is down; bring the node back", a.Member, a.Node)
			}
		}
	}
	return ""
}
