package state

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// projectUse is written, whatever its revision, in every commit by which something begins to belong to a project. So the removal of a
// project, which is conditioned on it, fails when something new came after its look; and creates never wait for each other.
type projectUse struct {
	Newest string `json:"newest"`
}

// defaultProject is what stands for the default project as long as nobody has changed it: it always exists.
func defaultProject() *api.Project { return &api.Project{Name: api.DefaultProject, Shares: 1} }

// CreateProject stores a new project; a taken name is ErrExists, one that a deleted project has used ErrNameUsed.
func (r *Repo) CreateProject(ctx context.Context, p api.Project) (int64, error) {
	key := prefixProject + p.Name
	if p.Name == api.DefaultProject {
		return 0, fmt.Errorf("project %q %w; change it instead", p.Name, ErrExists)
	}
	conds := []store.Cond{{Key: key}, {Key: prefixProjectUse + p.Name}}
	revision, err := r.store.Commit(ctx, conds, []store.Op{put(key, p)})
	if errors.Is(err, store.ErrConflict) {
		if _, exists, err := r.store.Get(ctx, key); err == nil && !exists {
			return 0, fmt.Errorf("%w: project %q", ErrNameUsed, p.Name)
		}
		return 0, fmt.Errorf("project %q %w", p.Name, ErrExists)
	}
	if err != nil {
		return 0, fmt.Errorf("store project %q: %w", p.Name, err)
	}
	return revision, nil
}

// UpdateProject changes a project by compare-and-swap, as UpdateJob does a job. The default project can be changed without ever having
// been created.
func (r *Repo) UpdateProject(ctx context.Context, name string, change func(*api.Project) error) (api.Project, int64, error) {
	var absent *api.Project
	if name == api.DefaultProject {
		absent = defaultProject()
	}
	p, revision, _, err := update(ctx, r, prefixProject+name, "project", name, absent, func(p *api.Project) error {
		if err := change(p); err != nil {
			return err
		}
		if p.Name != name {
			return fmt.Errorf("project %q can't be renamed; create a new project", name)
		}
		return nil
	})
	return p, revision, err
}

// DeleteProject removes a project. It refuses with ErrInUse while clusters, networks, security groups, datasets, floating addresses, volumes or tokens belong to it, those that come at the same moment
// included, and for the default project.
func (r *Repo) DeleteProject(ctx context.Context, name string) (int64, error) {
	if name == api.DefaultProject {
		return 0, fmt.Errorf("project %q is always %w: clusters without another project belong to it", name, ErrInUse)
	}
	key, useKey := prefixProject+name, prefixProjectUse+name
	for {
		_, revision, err := get[api.Project](ctx, r, key, "project", name)
		if err != nil {
			return 0, err
		}
		use, _, err := r.store.Get(ctx, useKey)
		if err != nil {
			return 0, fmt.Errorf("read the objects of project %q: %w", name, err)
		}
		if err := r.unused(ctx, name); err != nil {
			return 0, err
		}
		conds := []store.Cond{{Key: key, Revision: revision}, {Key: useKey, Revision: use.Revision}}
		next, err := r.store.Commit(ctx, conds, []store.Op{{Key: key, Delete: true}}) // the mark of its use stays, see CreateProject
		if errors.Is(err, store.ErrConflict) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("delete project %q: %w", name, err)
		}
		return next, nil
	}
}

// unused returns ErrInUse with who uses a project.
func (r *Repo) unused(ctx context.Context, project string) error {
	intents, err := r.Intents(ctx)
	if err != nil {
		return err
	}
	var clusters, tokens []string
	for i := range intents {
		if intents[i].Project == project {
			clusters = append(clusters, intents[i].Name)
		}
	}
	if len(clusters) > 0 {
		return fmt.Errorf("project %q is %w by %s; delete %s first", project, ErrInUse, several(clusters, "cluster"), them(clusters))
	}
	networks, err := list[api.NetworkIntent](ctx, r, prefixNetIntent)
	if err != nil {
		return err
	}
	networks = slices.DeleteFunc(networks, func(n api.NetworkIntent) bool { return n.Project != project })
	if len(networks) > 0 {
		names := make([]string, len(networks))
		for i := range networks {
			names[i] = networks[i].Name
		}
		return fmt.Errorf("project %q is %w by %s; delete %s first", project, ErrInUse, several(names, "network"), them(names))
	}
	if err := r.withoutDatasets(ctx, project); err != nil {
		return err
	}
	if err := r.withoutGroups(ctx, project); err != nil {
		return err
	}
	if err := r.withoutAddresses(ctx, project); err != nil {
		return err
	}
	if err := r.withoutVolumes(ctx, project); err != nil {
		return err
	}
	all, err := r.Tokens(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		if all[i].Project == project {
			tokens = append(tokens, all[i].ID)
		}
	}
	if len(tokens) > 0 {
		return fmt.Errorf("project %q is %w by %s; revoke %s first", project, ErrInUse, several(tokens, "token"), them(tokens))
	}
	return nil
}

// Project returns a project, or ErrNotFound; the default one is always there.
func (r *Repo) Project(ctx context.Context, name string) (api.Project, error) {
	p, _, err := get[api.Project](ctx, r, prefixProject+name, "project", name)
	if errors.Is(err, ErrNotFound) && name == api.DefaultProject {
		return *defaultProject(), nil
	}
	return p, err
}

// createIn writes something new that belongs to a project, if the project exists (ErrNoProject) and the key is free (ErrExists). what
// names it in errors. besides, if not nil, returns what else the commit depends on and writes.
func (r *Repo) createIn(ctx context.Context, project string, op store.Op, what string, besides func() ([]store.Cond, []store.Op, error)) (int64, error) {
	for {
		conds, ops := []store.Cond{{Key: op.Key}}, []store.Op{op}
		if besides != nil {
			moreConds, moreOps, err := besides()
			if err != nil {
				return 0, fmt.Errorf("%s: %w", what, err)
			}
			conds, ops = append(conds, moreConds...), append(ops, moreOps...)
		}
		if project != "" && project != api.DefaultProject {
			e, ok, err := r.store.Get(ctx, prefixProject+project)
			if err != nil {
				return 0, fmt.Errorf("read project %q: %w", project, err)
			}
			if !ok {
				return 0, fmt.Errorf("%s: %w: %q", what, ErrNoProject, project)
			}
			conds = append(conds, store.Cond{Key: prefixProject + project, Revision: e.Revision})
			ops = append(ops, put(prefixProjectUse+project, projectUse{Newest: op.Key}))
		}
		revision, err := r.store.Commit(ctx, conds, ops)
		if !errors.Is(err, store.ErrConflict) {
			if err != nil {
				return 0, fmt.Errorf("store %s: %w", what, err)
			}
			return revision, nil
		}
		_, taken, err := r.store.Get(ctx, op.Key)
		switch {
		case err != nil:
			return 0, fmt.Errorf("read %s: %w", what, err)
		case taken || len(conds) == 1:
			return 0, fmt.Errorf("%s %w", what, ErrExists)
		}
		// The project, or something else, changed; look again.
	}
}

// CreateToken stores a token, of which only the hash is known here. Its project must exist (ErrNoProject).
func (r *Repo) CreateToken(ctx context.Context, t api.TokenInfo) (int64, error) {
	return r.createIn(ctx, t.Project, put(prefixToken+t.ID, t), fmt.Sprintf("token %q", t.ID), nil)
}

// DeleteToken revokes a token. One that is not there, also because it belongs to another project than the one given ("": any), is
// ErrNotFound.
func (r *Repo) DeleteToken(ctx context.Context, project, id string) (int64, error) {
	t, _, err := get[api.TokenInfo](ctx, r, prefixToken+id, "token", id)
	if err != nil {
		return 0, err
	}
	if project != "" && t.Project != project {
		return 0, fmt.Errorf("token %q %w", id, ErrNotFound)
	}
	// Nothing of a token changes but its last use, which is no reason to keep it: there is nothing to condition this on.
	revision, err := r.store.Commit(ctx, nil, []store.Op{{Key: prefixToken + id, Delete: true}})
	if err != nil {
		return 0, fmt.Errorf("revoke token %q: %w", id, err)
	}
	return revision, nil
}

// TokenUse is one use of a token.
type TokenUse struct {
	ID string
	At time.Time
	// From is the address that the request came from.
	From string
}

// NoteTokenUses stores uses of tokens, of different ones. A newer use that is stored already stays, and a token that is gone stays gone.
func (r *Repo) NoteTokenUses(ctx context.Context, uses []TokenUse) error {
	for batch := range slices.Chunk(uses, store.MaxOps) {
		for {
			err := r.noteTokenUses(ctx, batch)
			if err == nil {
				break
			}
			if !errors.Is(err, store.ErrConflict) { // one was revoked, or used at another server: look again
				return fmt.Errorf("store the last use of %d tokens: %w", len(batch), err)
			}
		}
	}
	return nil
}

// noteTokenUses stores uses in one commit. It is a store.ErrConflict when a token changed meanwhile.
func (r *Repo) noteTokenUses(ctx context.Context, uses []TokenUse) error {
	var conds []store.Cond
	var ops []store.Op
	for i := range uses {
		use := &uses[i]
		key := prefixToken + use.ID
		t, revision, err := get[api.TokenInfo](ctx, r, key, "token", use.ID)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if t.LastUsedAt != nil && !use.At.After(*t.LastUsedAt) {
			continue
		}
		t.LastUsedAt, t.LastUsedFrom = &use.At, use.From
		conds, ops = append(conds, store.Cond{Key: key, Revision: revision}), append(ops, put(key, t))
	}
	if len(ops) == 0 {
		return nil
	}
	_, err := r.store.Commit(ctx, conds, ops)
	return err
}

// Tokens returns all tokens, by ID, with the hashes of their secrets.
func (r *Repo) Tokens(ctx context.Context) ([]api.TokenInfo, error) {
	return list[api.TokenInfo](ctx, r, prefixToken)
}

// PruneTokens removes up to store.MaxOps tokens that ended before a time; they are refused anyway. It returns how many.
func (l *Leader) PruneTokens(ctx context.Context, view *View, before time.Time) (int, error) {
	var ops []store.Op
	for _, t := range view.Tokens {
		if t.ExpiresAt != nil && t.ExpiresAt.Before(before) && len(ops) < store.MaxOps {
			ops = append(ops, store.Op{Key: prefixToken + t.ID, Delete: true})
		}
	}
	return l.prune(ctx, ops, "tokens")
}
