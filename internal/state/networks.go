package state

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

// networkUse is written by every commit that stores a cluster which names a project's network, and by every commit that gives a cluster ports
// on it. The deletion of a network and a placement on it are conditioned on its revision: neither passes the other, and two clusters can't be
// given one address.
type networkUse struct {
	Newest string `json:"newest"`
}

// netUse is the newest use of a project's network.
type netUse struct {
	uid      string
	revision int64
}

func takeNetworkUse(t *tables, uid string, _ *networkUse, revision int64) error {
	tableOf(t, networkUses).put(uid, &netUse{uid, revision})
	return nil
}

func dropNetworkUse(t *tables, uid string) { tableOf(t, networkUses).remove(uid) }

// NetworkJoin is a project's network as it was used in the view that a decision was made on; View.NetworkJoin returns it.
type NetworkJoin struct {
	UID      string
	revision int64
}

// NetworkIntentName is the name of a project's network among all: NAME in the default project, PROJECT.NAME elsewhere. A name like PROJECT.NAME is of
// a network of that project, whichever project says it.
func NetworkIntentName(project, name string) string {
	if owner, own, foreign := strings.Cut(name, "."); foreign {
		project, name = owner, own
	}
	if project == "" || project == api.DefaultProject {
		return name
	}
	return project + "." + name
}

// CreateNetwork stores what a user wants of a new network of a project. A taken name is ErrExists, a project that does not exist
// ErrNoProject.
func (r *Repo) CreateNetwork(ctx context.Context, in api.NetworkIntent) (int64, error) {
	revision, err := r.createIn(ctx, in.Project, put(prefixNetIntent+in.Name, in), fmt.Sprintf("network %q", in.Name), nil)
	if err != nil {
		return 0, err
	}
	failpoint.Hit("state.after-network-intent")
	return revision, nil
}

// joins returns the conditions of a new cluster that names networks of its project, and the marks that it uses them. One that does not exist,
// or is being deleted, is ErrNoNetwork.
func (r *Repo) joins(ctx context.Context, in *api.ClusterIntent) ([]store.Cond, []store.Op, error) {
	var conds []store.Cond
	var ops []store.Op
	for _, name := range api.JoinedNetworks(in.Spec.Groups) {
		own, _ := api.CutProjectNetwork(name)
		full := NetworkIntentName(in.Project, own)
		n, revision, err := get[api.NetworkIntent](ctx, r, prefixNetIntent+full, "network", full)
		switch {
		case errors.Is(err, ErrNotFound):
			return nil, nil, fmt.Errorf("%w: %q", ErrNoNetwork, name)
		case err != nil:
			return nil, nil, err
		case !n.IsOpenTo(projectOr(in.Project)):
			return nil, nil, fmt.Errorf("%w: %q", ErrNoNetwork, name)
		case n.DeleteRequestedAt != nil:
			return nil, nil, fmt.Errorf("%w: %q is being deleted", ErrNoNetwork, name)
		}
		conds = append(conds, store.Cond{Key: prefixNetIntent + full, Revision: revision})
		ops = append(ops, put(prefixNetUse+n.UID, networkUse{Newest: in.Name}))
	}
	return conds, ops, nil
}

// RequestNetworkDelete marks a project's network as to be deleted since at, unless it already is. It refuses with ErrInUse while a cluster
// names the network, one that comes at the same moment included. It returns the revision that holds the mark.
func (r *Repo) RequestNetworkDelete(ctx context.Context, name string, at time.Time) (int64, error) {
	key := prefixNetIntent + name
	for {
		n, revision, err := get[api.NetworkIntent](ctx, r, key, "network", name)
		if err != nil || n.DeleteRequestedAt != nil {
			return revision, err
		}
		use, _, err := r.store.Get(ctx, prefixNetUse+n.UID)
		if err != nil {
			return 0, fmt.Errorf("read the use of network %q: %w", name, err)
		}
		if err := r.unjoined(ctx, &n); err != nil {
			return 0, err
		}
		n.DeleteRequestedAt = &at
		conds := []store.Cond{{Key: key, Revision: revision}, {Key: prefixNetUse + n.UID, Revision: use.Revision}}
		next, err := r.store.Commit(ctx, conds, []store.Op{put(key, n)})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("mark network %q for deletion: %w", name, err)
		}
		failpoint.Hit("state.after-network-delete-request")
		return next, nil
	}
}

// ChangeNetworkRecords changes the records of a project's network by compare-and-swap: change may be called several times. An error of change ends
// it and is returned as it is. Records that stay as they are write nothing.
func (r *Repo) ChangeNetworkRecords(ctx context.Context, name string, change func([]api.NetworkRecord) ([]api.NetworkRecord, error)) (api.NetworkIntent, int64, error) {
	key := prefixNetIntent + name
	for {
		n, revision, err := get[api.NetworkIntent](ctx, r, key, "network", name)
		if err != nil {
			return n, 0, err
		}
		records, err := change(slices.Clone(n.Records))
		if err != nil || reflect.DeepEqual(records, n.Records) {
			return n, revision, err
		}
		n.Records = records
		next, err := r.store.Commit(ctx, []store.Cond{{Key: key, Revision: revision}}, []store.Op{put(key, n)})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return n, 0, fmt.Errorf("change the records of network %q: %w", name, err)
		}
		failpoint.Hit("state.after-network-records")
		return n, next, nil
	}
}

// unjoined returns ErrInUse with the clusters that name a project's network.
func (r *Repo) unjoined(ctx context.Context, n *api.NetworkIntent) error {
	intents, err := r.Intents(ctx)
	if err != nil {
		return err
	}
	var users []string
	foreign := false // clusters of other projects are none of the owner's business
	for i := range intents {
		in := &intents[i]
		switch {
		case !slices.ContainsFunc(api.JoinedNetworks(in.Spec.Groups), func(name string) bool {
			own, _ := api.CutProjectNetwork(name)
			return NetworkIntentName(in.Project, own) == n.Name
		}):
		case n.IsOwnedBy(in.Project):
			users = append(users, in.Name)
		default:
			foreign = true
		}
	}
	if foreign {
		return fmt.Errorf("network %q is %w by clusters of other projects; ask these to delete them first", n.Name, ErrInUse)
	}
	if len(users) > 0 {
		return fmt.Errorf("network %q is %w by %s; delete %s first", n.Name, ErrInUse, several(users, "cluster"), them(users))
	}
	return nil
}

func projectOr(project string) string {
	if project == "" {
		return api.DefaultProject
	}
	return project
}

// PutNetworks stores new networks of projects, in one commit. A network that is stored already is a store.ErrConflict.
func (l *Leader) PutNetworks(ctx context.Context, networks ...api.Network) (int64, error) {
	conds, ops := []store.Cond{l.leadership.Guard()}, []store.Op(nil)
	for i := range networks {
		key := prefixNetwork + networks[i].UID
		conds, ops = append(conds, store.Cond{Key: key}), append(ops, put(key, networks[i]))
	}
	revision, err := l.repo.store.Commit(ctx, conds, ops)
	if err != nil {
		return 0, fmt.Errorf("store networks of projects: %w", err)
	}
	failpoint.Hit("state.after-network")
	return revision, nil
}

// ForgetNetwork removes a project's network with all that is stored of it. It is a store.ErrConflict when something began to use the network
// since the view.
func (l *Leader) ForgetNetwork(ctx context.Context, view *View, n *api.NetworkIntent) (int64, error) {
	conds := []store.Cond{l.leadership.Guard(), {Key: prefixNetUse + n.UID, Revision: view.NetworkJoin(n.UID).revision}}
	revision, err := l.repo.store.Commit(ctx, conds, []store.Op{
		{Key: prefixNetIntent + n.Name, Delete: true}, {Key: prefixNetUse + n.UID, Delete: true}, {Key: prefixNetwork + n.UID, Delete: true},
	})
	if err != nil {
		return 0, fmt.Errorf("forget network %q: %w", n.Name, err)
	}
	failpoint.Hit("state.after-network-forgotten")
	return revision, nil
}

// RemoveNetworks forgets networks of clusters that are over, with their numbers. What is not stored is no error.
func (l *Leader) RemoveNetworks(ctx context.Context, uids ...string) (int64, error) {
	var revision int64
	for len(uids) > 0 {
		n := min(len(uids), store.MaxOps)
		ops := make([]store.Op, 0, n)
		for _, uid := range uids[:n] {
			ops = append(ops, store.Op{Key: prefixNetwork + uid, Delete: true})
		}
		var err error
		if revision, err = l.repo.store.Commit(ctx, []store.Cond{l.leadership.Guard()}, ops); err != nil {
			return 0, fmt.Errorf("remove networks that are over: %w", err)
		}
		uids = uids[n:]
	}
	return revision, nil
}
