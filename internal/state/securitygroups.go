package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/portgroups"
	"github.com/nearmetal/nearmetal/internal/store"
)

// securityGroupUse is written by every commit that stores a cluster or a security group which names a security group. The deletion of that
// group depends on its revision, so neither passes the other.
type securityGroupUse struct {
	Newest string `json:"newest"`
}

// SecurityGroupName is the name of a project's security group among all: NAME in the default project, PROJECT.NAME elsewhere.
func SecurityGroupName(project, name string) string { return NetworkIntentName(project, name) }

// CreateSecurityGroup stores a new security group of a project. A taken name is ErrExists, a project that does not exist ErrNoProject, and a
// group that its rules name and that does not exist ErrNoSecurityGroup.
func (r *Repo) CreateSecurityGroup(ctx context.Context, g api.SecurityGroup) (int64, error) {
	revision, err := r.createIn(ctx, g.Project, put(prefixSecurityGroup+g.Name, g), fmt.Sprintf("security group %q", ownName(g.Name)), func() ([]store.Cond, []store.Op, error) {
		return r.usesGroups(ctx, g.Project, g.Name, othersNamed(&g))
	})
	if err != nil {
		return 0, err
	}
	failpoint.Hit("state.after-security-group")
	return revision, nil
}

// ChangeSecurityGroup changes the rules of a security group by compare-and-swap: change may be called several times. An error of change ends
// it and is returned as it is. A group that the new rules name and that does not exist is ErrNoSecurityGroup. Rules that stay as they are write
// nothing.
func (r *Repo) ChangeSecurityGroup(ctx context.Context, name string, at time.Time, change func(rules []string) ([]string, error)) (api.SecurityGroup, int64, error) {
	var none api.SecurityGroup
	key := prefixSecurityGroup + name
	for {
		g, revision, err := get[api.SecurityGroup](ctx, r, key, "security group", name)
		if err != nil {
			return none, 0, err
		}
		rules, err := change(slices.Clone(g.Rules))
		if err != nil {
			return none, 0, err
		}
		if slices.Equal(rules, g.Rules) {
			return g, revision, nil
		}
		g.Rules, g.UpdatedAt = rules, at
		conds, ops, err := r.usesGroups(ctx, g.Project, g.Name, othersNamed(&g))
		if err != nil {
			return none, 0, fmt.Errorf("security group %q: %w", ownName(name), err)
		}
		next, err := r.store.Commit(ctx, append(conds, store.Cond{Key: key, Revision: revision}), append(ops, put(key, g)))
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return none, 0, fmt.Errorf("change security group %q: %w", name, err)
		}
		failpoint.Hit("state.after-security-group-change")
		return g, next, nil
	}
}

// DeleteSecurityGroup removes a security group. It refuses with ErrInUse while a cluster or another group's rule names it, one that comes at the
// same moment included.
func (r *Repo) DeleteSecurityGroup(ctx context.Context, name string) (int64, error) {
	key := prefixSecurityGroup + name
	for {
		g, revision, err := get[api.SecurityGroup](ctx, r, key, "security group", name)
		if err != nil {
			return 0, err
		}
		use, _, err := r.store.Get(ctx, prefixGroupUse+g.UID)
		if err != nil {
			return 0, fmt.Errorf("read the use of security group %q: %w", name, err)
		}
		if err := r.unnamed(ctx, &g); err != nil {
			return 0, err
		}
		conds := []store.Cond{{Key: key, Revision: revision}, {Key: prefixGroupUse + g.UID, Revision: use.Revision}}
		next, err := r.store.Commit(ctx, conds, []store.Op{{Key: key, Delete: true}, {Key: prefixGroupUse + g.UID, Delete: true}})
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("delete security group %q: %w", name, err)
		}
		failpoint.Hit("state.after-security-group-delete")
		return next, nil
	}
}

// unnamed returns ErrInUse with the clusters and groups that name a security group.
func (r *Repo) unnamed(ctx context.Context, g *api.SecurityGroup) error {
	intents, err := r.Intents(ctx)
	if err != nil {
		return err
	}
	var clusters, groups []string
	for i := range intents {
		in := &intents[i]
		if projectOr(in.Project) == projectOr(g.Project) && slices.Contains(api.SecurityGroupsOf(in.Spec.Groups), ownName(g.Name)) {
			clusters = append(clusters, in.Name)
		}
	}
	if len(clusters) > 0 {
		return fmt.Errorf("security group %q is %w by %s; delete %s first", ownName(g.Name), ErrInUse, several(clusters, "cluster"), them(clusters))
	}
	all, err := list[api.SecurityGroup](ctx, r, prefixSecurityGroup)
	if err != nil {
		return err
	}
	for i := range all {
		if projectOr(all[i].Project) == projectOr(g.Project) && slices.Contains(othersNamed(&all[i]), ownName(g.Name)) {
			groups = append(groups, ownName(all[i].Name))
		}
	}
	if len(groups) > 0 {
		return fmt.Errorf("security group %q is %w by rules of %s; remove these rules first", ownName(g.Name), ErrInUse, several(groups, "security group"))
	}
	return nil
}

// othersNamed returns the names of the other groups that the rules of a group name.
func othersNamed(g *api.SecurityGroup) []string {
	return slices.DeleteFunc(portgroups.Named(g.Rules), func(name string) bool { return name == ownName(g.Name) })
}

// usesGroups returns the conditions of something that names security groups of its project, and the marks that it uses them. One that does not
// exist is ErrNoSecurityGroup.
func (r *Repo) usesGroups(ctx context.Context, project, user string, names []string) ([]store.Cond, []store.Op, error) {
	var conds []store.Cond
	var ops []store.Op
	for _, name := range names {
		full := SecurityGroupName(project, name)
		g, revision, err := get[api.SecurityGroup](ctx, r, prefixSecurityGroup+full, "security group", full)
		if errors.Is(err, ErrNotFound) {
			return nil, nil, fmt.Errorf("%w: %q", ErrNoSecurityGroup, name)
		}
		if err != nil {
			return nil, nil, err
		}
		conds = append(conds, store.Cond{Key: prefixSecurityGroup + full, Revision: revision})
		ops = append(ops, put(prefixGroupUse+g.UID, securityGroupUse{Newest: user}))
	}
	return conds, ops, nil
}

// withoutGroups returns ErrInUse with the security groups of a project.
func (r *Repo) withoutGroups(ctx context.Context, project string) error {
	all, err := list[api.SecurityGroup](ctx, r, prefixSecurityGroup)
	if err != nil {
		return err
	}
	var names []string
	for i := range all {
		if all[i].Project == project {
			names = append(names, all[i].Name)
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("project %q is %w by %s; delete %s first", project, ErrInUse, several(names, "security group"), them(names))
	}
	return nil
}

// updateIntent changes an intent by compare-and-swap. The security groups and volumes that it names only with the change have to exist at that
// moment.
func (r *Repo) updateIntent(ctx context.Context, name string, change func(*api.ClusterIntent) error) (api.ClusterIntent, int64, bool, error) {
	var none api.ClusterIntent
	key := prefixIntent + name
	for {
		in, revision, err := get[api.ClusterIntent](ctx, r, key, "cluster", name)
		if err != nil {
			return none, 0, false, err
		}
		before, had, attached := put(key, in), api.SecurityGroupsOf(in.Spec.Groups), api.VolumesOf(&in)
		asked := api.DatasetsOf(in.Spec.Groups)
		stored := in
		if err := change(&in); err != nil {
			return none, 0, false, err
		}
		in.VolumesNumber, in.Detaching = stored.VolumesNumber, stored.Detaching // nobody else changes these
		if err := r.changeVolumes(ctx, &in, attached); err != nil {
			return none, 0, false, err
		}
		in.LayersNumber, in.RemovedLayers = stored.LayersNumber, stored.RemovedLayers
		if err := r.changeLayers(ctx, &in, stored.Layers); err != nil {
			return none, 0, false, err
		}
		in.ConditionNumber = stored.ConditionNumber
		if !sameCondition(stored.Condition, in.Condition) {
			in.ConditionNumber++
		}
		op := put(key, in)
		if bytes.Equal(op.Value, before.Value) {
			return in, revision, false, nil
		}
		fresh := slices.DeleteFunc(api.SecurityGroupsOf(in.Spec.Groups), func(name string) bool { return slices.Contains(had, name) })
		conds, ops, err := r.usesGroups(ctx, in.Project, in.Name, fresh)
		if err != nil {
			return none, 0, false, fmt.Errorf("cluster %q: %w", name, err)
		}
		newData := slices.DeleteFunc(api.DatasetsOf(in.Spec.Groups), func(name string) bool { return slices.Contains(asked, name) })
		dataConds, dataOps, err := r.usesDatasets(ctx, in.Project, in.Name, newData)
		if err != nil {
			return none, 0, false, fmt.Errorf("cluster %q: %w", name, err)
		}
		conds, ops = append(conds, dataConds...), append(ops, dataOps...)
		more := slices.DeleteFunc(api.VolumesOf(&in), func(a api.VolumeAttachment) bool {
			return slices.ContainsFunc(attached, func(b api.VolumeAttachment) bool { return b.Name == a.Name && (!b.ReadOnly || a.ReadOnly) })
		})
		volumeConds, volumeOps, err := r.usesVolumes(ctx, &in, more)
		if err != nil {
			return none, 0, false, fmt.Errorf("cluster %q: %w", name, err)
		}
		added := slices.DeleteFunc(slices.Clone(in.Layers), func(l api.Layer) bool { return slices.Contains(stored.Layers, l) })
		layerConds, layerOps, err := r.usesLayers(ctx, added)
		if err != nil {
			return none, 0, false, fmt.Errorf("cluster %q: %w", name, err)
		}
		conds, ops = slices.Concat(conds, volumeConds, layerConds), slices.Concat(ops, volumeOps, layerOps)
		next, err := r.store.Commit(ctx, append(conds, store.Cond{Key: key, Revision: revision}), append(ops, op))
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return none, 0, false, fmt.Errorf("update cluster %q: %w", name, err)
		}
		return in, next, true, nil
	}
}

// ownName is the name that an object has within its project, by its name among all.
func ownName(full string) string { return full[strings.LastIndexByte(full, '.')+1:] }
