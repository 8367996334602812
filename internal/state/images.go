package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

func keyImage(digest string) string { return prefixImage + strings.TrimPrefix(digest, "sha256:") }

// CreateBuild stores a new build; a taken ID is ErrExists.
func (r *Repo) CreateBuild(ctx context.Context, build api.Build) (int64, error) {
	revision, err := r.create(ctx, put(prefixBuild+build.ID, build), fmt.Sprintf("build %q", build.ID))
	if err == nil {
		failpoint.Hit("state.after-build")
	}
	return revision, err
}

// UpdateBuild changes a build by compare-and-swap, as UpdateJob does a job.
func (r *Repo) UpdateBuild(ctx context.Context, id string, change func(*api.Build) error) (api.Build, int64, error) {
	build, revision, _, err := update(ctx, r, prefixBuild+id, "build", id, nil, change)
	return build, revision, err
}

// UpdateBuild is that of Repo, as long as the leadership lasts.
func (l *Leader) UpdateBuild(ctx context.Context, id string, change func(*api.Build) error) (api.Build, int64, error) {
	build, revision, _, err := update(ctx, l.repo, prefixBuild+id, "build", id, nil, change, l.leadership.Guard())
	return build, revision, err
}

// DeleteBuild forgets a build; one that is not there is ErrNotFound.
func (r *Repo) DeleteBuild(ctx context.Context, id string) (int64, error) {
	return r.remove(ctx, prefixBuild+id, "build", id)
}

// PutImage stores an image under its digest. One that is stored already stays as it is: its name is its content.
func (r *Repo) PutImage(ctx context.Context, image api.Image) (int64, error) {
	key := keyImage(image.Digest)
	revision, err := r.store.Commit(ctx, []store.Cond{{Key: key}}, []store.Op{put(key, image)})
	if errors.Is(err, store.ErrConflict) {
		e, _, err := r.store.Get(ctx, key)
		return e.Revision, err
	}
	if err != nil {
		return 0, fmt.Errorf("store image %s: %w", image.Digest, err)
	}
	return revision, nil
}

// keepImage writes an image, as it is stored already if it is, with those who have built it now: who gives it a name writes it, so that who
// removes it at the same moment, because it has none, fails.
func (r *Repo) keepImage(ctx context.Context, image api.Image) (store.Cond, store.Op, error) {
	key := keyImage(image.Digest)
	stored, revision, err := get[api.Image](ctx, r, key, "image", image.Digest)
	if errors.Is(err, ErrNotFound) {
		return store.Cond{Key: key}, put(key, image), nil
	}
	stored.BuiltBy = mergeBuilders(stored.BuiltBy, image.BuiltBy)
	return store.Cond{Key: key, Revision: revision}, put(key, stored), err
}

// mergeBuilders adds nodes that built an image again, each once. Trust that came later counts too.
func mergeBuilders(before, now []api.BuiltBy) []api.BuiltBy {
	all := slices.Clone(before)
	for _, by := range now {
		i := slices.IndexFunc(all, func(b api.BuiltBy) bool { return b.SameNode(&by) })
		switch {
		case i < 0:
			all = append(all, by)
		case by.Trusted && !all[i].Trusted:
			all[i] = by
		}
	}
	return all
}

// SetEnvironment makes an environment's name stand for an image, which must be stored (ErrNotFound).
func (r *Repo) SetEnvironment(ctx context.Context, e api.EnvironmentRecord) (int64, error) {
	for {
		cond, op, err := r.keepImage(ctx, api.Image{Digest: e.Digest})
		if err != nil {
			return 0, err
		}
		if cond.Revision == 0 {
			return 0, fmt.Errorf("image %q %w", e.Digest, ErrNotFound)
		}
		revision, err := r.store.Commit(ctx, []store.Cond{cond}, []store.Op{op, put(prefixEnvironment+e.Name, e)})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("store environment %q: %w", e.Name, err)
		}
		return revision, nil
	}
}

// DeleteEnvironment removes the name of a built environment, and its image with it when no other name stands for that. It refuses with
// ErrInUse, naming who uses it, while view has members, clusters, boots or power requests with it.
func (r *Repo) DeleteEnvironment(ctx context.Context, view *View, name string) (int64, error) {
	key := prefixEnvironment + name
	for {
		e, revision, err := get[api.EnvironmentRecord](ctx, r, key, "environment", name)
		if err != nil {
			return 0, err
		}
		if users := ImageUsers(view, name, e.Digest); len(users) > 0 {
			return 0, fmt.Errorf("environment %q is %w: %s", name, ErrInUse, fewOf(users))
		}
		image, _, err := r.store.Get(ctx, keyImage(e.Digest))
		if err != nil {
			return 0, fmt.Errorf("read image %s: %w", e.Digest, err)
		}
		names, err := r.namesOf(ctx, e.Digest)
		if err != nil {
			return 0, err
		}
		conds, ops := []store.Cond{{Key: key, Revision: revision}}, []store.Op{{Key: key, Delete: true}}
		if len(names) == 1 {
			conds = append(conds, store.Cond{Key: keyImage(e.Digest), Revision: image.Revision})
			ops = append(ops, store.Op{Key: keyImage(e.Digest), Delete: true})
		}
		next, err := r.store.Commit(ctx, conds, ops)
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("delete environment %q: %w", name, err)
		}
		return next, nil
	}
}

// namesOf are the environments that stand for an image.
func (r *Repo) namesOf(ctx context.Context, digest string) ([]string, error) {
	all, err := list[api.EnvironmentRecord](ctx, r, prefixEnvironment)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range all {
		if all[i].Digest == digest {
			names = append(names, all[i].Name)
		}
	}
	return names, nil
}

// DeleteImage removes an image. It refuses with ErrInUse, naming who uses it, while an environment stands for it, or view has members or
// boots with it.
func (r *Repo) DeleteImage(ctx context.Context, view *View, digest string) (int64, error) {
	for {
		_, revision, err := get[api.Image](ctx, r, keyImage(digest), "image", digest)
		if err != nil {
			return 0, err
		}
		names, err := r.namesOf(ctx, digest)
		if err != nil {
			return 0, err
		}
		users := ImageUsers(view, "", digest)
		for _, name := range names {
			if user := "environment " + name; !slices.Contains(users, user) {
				users = append(users, user)
			}
		}
		if len(users) > 0 {
			return 0, fmt.Errorf("image %s is %w: %s", digest, ErrInUse, fewOf(users))
		}
		conds := []store.Cond{{Key: keyImage(digest), Revision: revision}}
		next, err := r.store.Commit(ctx, conds, []store.Op{{Key: keyImage(digest), Delete: true}})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("delete image %s: %w", digest, err)
		}
		return next, nil
	}
}

// ImageUsers returns the users of a built environment: members, their layers and boots that have its image, and, for a name, all that ask for it by that
// name: clusters, boots and power requests. Without a name, the environments that stand for the image are users, too.
func ImageUsers(view *View, name, digest string) []string {
	var users []string
	for _, c := range view.Clusters {
		if n := clusterUses(c, name, digest); n > 0 {
			users = append(users, "cluster "+c.Name())
		}
	}
	for m := range view.Machines() {
		if use := machineUses(m, name, digest); use != "" {
			users = append(users, use+" "+m.Name())
		}
	}
	for _, b := range view.Builds {
		if b.Project != "" && !b.Phase.Ended() && slices.Contains(slices.Collect(maps.Values(b.Bases)), digest) { // changed files fit no other image
			users = append(users, "build "+b.ID)
		}
	}
	if name != "" {
		return users
	}
	for _, e := range view.Environments {
		if e.Digest == digest {
			users = append(users, "environment "+e.Name)
		}
	}
	return users
}

// clusterUses counts what of a cluster asks for an environment or has its image.
func clusterUses(c *Cluster, name, digest string) int {
	n := layersUsing(c, name, digest)
	for a := range c.All() {
		if a.EnvironmentDigest == digest {
			n++
		}
	}
	if c.Intent.DeleteRequestedAt != nil || name == "" || c.Record != nil && ended(c.Record.Phase) {
		return n
	}
	for i := range c.Intent.Spec.Groups {
		if c.Intent.Spec.Groups[i].Environment == name {
			n++
		}
	}
	return n
}

// fewOf names the first of some things, which say themselves what they are.
func fewOf(things []string) string {
	const shown = 5
	if len(things) <= shown {
		return strings.Join(things, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(things[:shown], ", "), len(things)-shown)
}

// ended tells that nothing is placed for a cluster any more.
func ended(phase api.ClusterPhase) bool {
	return phase == api.ClusterRefused || phase == api.ClusterFailed
}

// machineUses tells how a machine uses an environment, "" when it does not.
func machineUses(m *Machine, name, digest string) string {
	if ask := m.PowerPending(); ask != nil && name != "" && ask.Environment == name {
		return "power request of machine"
	}
	if m.Record == nil || m.Record.Boot == nil {
		return ""
	}
	switch m.Record.Phase {
	case api.MachineInspecting, api.MachineCleaning, api.MachineWarm, api.MachineBooting, api.MachineReady, api.MachineStopping, api.MachineFailed:
		if boot := m.Record.Boot; boot.Digest == digest || name != "" && boot.Environment == name {
			return "machine"
		}
	}
	return ""
}
