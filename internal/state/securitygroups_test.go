package state_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// securityGroup is a security group of a project.
func securityGroup(project, name string, rules ...string) api.SecurityGroup {
	full := state.SecurityGroupName(project, name)
	return api.SecurityGroup{Name: full, UID: "group-" + full, Project: project, Rules: rules, CreatedAt: now, UpdatedAt: now}
}

// guarded is the intent of a cluster whose ports on a private network have security groups.
func guarded(name string, groups ...string) api.ClusterIntent {
	in := onNetworks(name, "storage")
	in.Spec.Groups[0].Networks[0].SecurityGroups = groups
	return in
}

// setRules replaces the rules of a security group of the default project.
func (w *world) setRules(name string, rules ...string) (int64, error) {
	_, revision, err := w.repo.ChangeSecurityGroup(w.Context(), name, now.Add(time.Minute), func([]string) ([]string, error) { return rules, nil })
	return revision, err
}

func TestWhatNamesASecurityGroupNeedsOneOfItsProject(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateProject(ctx, api.Project{Name: "physics", CreatedAt: now}))
		w.reach(w.repo.CreateSecurityGroup(ctx, securityGroup("physics", "web")))
		if _, err := w.repo.CreateSecurityGroup(ctx, securityGroup("physics", "web")); !errors.Is(err, state.ErrExists) {
			t.Errorf("a second security group of one name: %v", err)
		}
		if _, err := w.repo.CreateSecurityGroup(ctx, securityGroup("nobody", "web")); !errors.Is(err, state.ErrNoProject) {
			t.Errorf("a security group of a project that does not exist: %v", err)
		}
		if _, err := w.repo.CreateCluster(ctx, guarded("c2", "web")); !errors.Is(err, state.ErrNoSecurityGroup) {
			t.Errorf("a cluster names another project's security group: %v", err)
		}
		if _, err := w.repo.CreateSecurityGroup(ctx, securityGroup("default", "db", "in any from group web")); !errors.Is(err, state.ErrNoSecurityGroup) {
			t.Errorf("a rule names another project's security group: %v", err)
		}
		w.reach(w.repo.CreateSecurityGroup(ctx, securityGroup("default", "db", "in any from group db")))
		if _, err := w.setRules("db", "in any from group web"); !errors.Is(err, state.ErrNoSecurityGroup) {
			t.Errorf("a new rule names another project's security group: %v", err)
		}
		if g := w.cache.View().SecurityGroup("db"); !slices.Equal(g.Rules, []string{"in any from group db"}) || !g.UpdatedAt.Equal(now) {
			t.Errorf("a refused change leaves %+v", g)
		}
		if _, err := w.repo.DeleteProject(ctx, "physics"); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), "1 security group (physics.web)") {
			t.Errorf("a project with a security group is deleted: %v", err)
		}
	})
}

func TestASecurityGroupIsNotDeletedWhileAClusterOrARuleNamesIt(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateSecurityGroup(ctx, securityGroup("default", "web", "in any from group web")))
		w.reach(w.repo.CreateSecurityGroup(ctx, securityGroup("default", "db", "in tcp 5432 from group web")))
		w.reach(w.repo.CreateCluster(ctx, guarded("c2", "db")))
		for name, want := range map[string]string{"web": "rules of 1 security group (db)", "db": "1 cluster (c2)"} {
			if _, err := w.repo.DeleteSecurityGroup(ctx, name); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), want) {
				t.Errorf("security group %s is deleted: %v, want an error with %q", name, err, want)
			}
		}
		w.reach(w.setRules("db"))
		w.reach(w.repo.DeleteSecurityGroup(ctx, "web"))
		if w.cache.View().SecurityGroup("web") != nil {
			t.Error("a security group that only its own rule names is not deleted")
		}
		if _, err := w.repo.DeleteSecurityGroup(ctx, "web"); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("a security group is deleted twice: %v", err)
		}
	})
}

func TestADeletionOfASecurityGroupAndItsUseDoNotPassEachOther(t *testing.T) {
	uses := map[string]func(w *world, group string) error{
		"a new cluster": func(w *world, group string) error {
			_, err := w.repo.CreateCluster(w.Context(), guarded("c-"+group, group))
			return err
		},
		"a new group of a cluster": func(w *world, group string) error {
			_, _, err := w.repo.UpdateIntent(w.Context(), "c1", "", func(in *api.ClusterIntent) error {
				in.Spec.Groups = append(slices.Clone(in.Spec.Groups), guarded("more", group).Spec.Groups...)
				return nil
			})
			return err
		},
		"a new security group": func(w *world, group string) error {
			_, err := w.repo.CreateSecurityGroup(w.Context(), securityGroup("default", "new-"+group, "in any from group "+group))
			return err
		},
		"a new rule": func(w *world, group string) error {
			_, err := w.setRules("other", "in any from group "+group)
			return err
		},
	}
	for what, use := range uses {
		t.Run(what, func(t *testing.T) {
			onEveryStore(t, func(t *testing.T, s store.Store) {
				w := newWorld(t, s)
				ctx := w.Context()
				for _, name := range []string{"first", "last", "other"} {
					w.reach(w.repo.CreateSecurityGroup(ctx, securityGroup("default", name)))
				}
				w.meanwhile(func() error { return use(w, "first") })
				if _, err := w.repo.DeleteSecurityGroup(ctx, "first"); !errors.Is(err, state.ErrInUse) {
					t.Errorf("%s came between look and deletion: %v", what, err)
				}
				w.meanwhile(func() error {
					_, err := w.repo.DeleteSecurityGroup(ctx, "last")
					return err
				})
				if err := use(w, "last"); !errors.Is(err, state.ErrNoSecurityGroup) {
					t.Errorf("the security group was deleted between look and use by %s: %v", what, err)
				}
			})
		})
	}
}

func TestTwoChangesOfRulesAreBothMade(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateSecurityGroup(ctx, securityGroup("default", "web", "in udp from 10.0.0.0/8")))
		add := func(rule string) error {
			_, _, err := w.repo.ChangeSecurityGroup(ctx, "web", now, func(rules []string) ([]string, error) { return append(rules, rule), nil })
			return err
		}
		w.meanwhile(func() error { return add("in tcp 1 from 10.0.0.0/8") })
		must(t, add("in tcp 2 from 10.0.0.0/8"))
		g, revision, err := w.repo.ChangeSecurityGroup(ctx, "web", now.Add(time.Hour), func(rules []string) ([]string, error) { return rules, nil })
		if want := []string{"in udp from 10.0.0.0/8", "in tcp 1 from 10.0.0.0/8", "in tcp 2 from 10.0.0.0/8"}; err != nil || !slices.Equal(g.Rules, want) {
			t.Errorf("got %q, %v; want %q", g.Rules, err, want)
		}
		if !g.UpdatedAt.Equal(now) || revision == 0 {
			t.Errorf("rules that stay as they are changed the group at %v", g.UpdatedAt)
		}
	})
}
