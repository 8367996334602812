package apiserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/changedfiles"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/imagestore"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// savedRecipe is the recipe of an environment that is made of changed files. JSON is YAML.
type savedRecipe struct {
	Name        string            `json:"name"`
	Description string            `json:"description"`
	Base        map[string]string `json:"base"`
	Changes     string            `json:"changes"`
	KeepKeys    []string          `json:"keep_keys,omitempty"`
}

// text is the recipe's.
func (r savedRecipe) text() ([]byte, error) { return json.Marshal(r) }

// saveFiles reads the files that a member changed, and has an environment built of them. A failure leaves nothing behind.
func (s *Server) saveFiles(ctx context.Context, in *namedBody) (*created[api.Build], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	req, src, err := readBody[api.SaveFilesRequest](in.body())
	if err != nil {
		return nil, err
	}
	if req.Environment == "" {
		return nil, failFields(codeInvalidRequest, api.FieldProblem{Location: "environment", Line: src.Line("environment"), Message: "is missing; give the new environment a name"})
	}
	if s.cfg.Images == nil || s.cfg.Recipes == nil {
		return nil, fail(codeUnavailable, "this server builds no environments")
	}
	a, err := s.memberToSave(ctx, c, req.Member)
	if err != nil {
		return nil, err
	}
	recipe := savedRecipe{
		Name: req.Environment, Description: fmt.Sprintf("files of member %s of cluster %s", a.Member, c.Name()), Base: map[string]string{"environment": a.Environment},
		Changes: "sha256:" + noDigits, KeepKeys: req.KeepKeys,
	}
	// All that can be wrong with the request is found before anything is read.
	if err := s.checkSaved(recipe); err != nil {
		return nil, err
	}
	files, err := s.receiveFiles(ctx, c, a, changedfiles.Policy{KeepKeys: req.KeepKeys}, s.cfg.Images)
	if err != nil {
		return nil, err
	}
	recipe.Changes = string(files.Digest)
	saved, err := s.savedCluster(ctx, c, a, req)
	if err != nil {
		return nil, err
	}
	build, err := s.buildOf(ctx, c, a, recipe, saved)
	if err != nil {
		s.forgetHome(ctx, c, saved)
		return nil, err
	}
	return &created[api.Build]{Location: "/v1/builds/" + build.ID, Body: build}, nil
}

// saveDeadline bounds how long the files of a member are read, who may send a byte now and then.
const saveDeadline = 2 * time.Hour

// noDigits stands for the digest of an archive that is not there yet.
const noDigits = "0000000000000000000000000000000000000000000000000000000000000000"

// memberToSave finds the member whose files are saved. It must be ready, and have a whole machine.
func (s *Server) memberToSave(ctx context.Context, c *state.Cluster, member string) (*api.Assignment, error) {
	name := shownName(who(ctx), c.Name())
	if c.Intent.DeleteRequestedAt != nil {
		return nil, deleting(name)
	}
	if member == "" {
		first := (*api.Assignment)(nil)
		for a := range c.Held() {
			if a.IsMember() && (first == nil || a.Rank < first.Rank) {
				first = a
			}
		}
		if first == nil {
			return nil, fail(codeNotReady, "cluster %q has no members; wait until it is ready: nearmetal cluster show %s", name, name)
		}
		member = first.Member
	}
	a, err := s.heldMember(ctx, c, member)
	if err != nil {
		return nil, err
	}
	if !a.Whole || a.EnvironmentDigest == "" {
		return nil, fail(codeCantSave, "member %q of cluster %q has stack %q, where the root is read-only; only files of whole machines can be saved", member, name, a.Stack)
	}
	return a, s.areReady(c, name, member)
}

// areReady refuses to save files of members that are not ready.
func (s *Server) areReady(c *state.Cluster, name string, members ...string) error {
	for _, m := range joinCluster(c, s.cfg.Live).Status.Members {
		if slices.Contains(members, m.Name) && m.Phase != api.MemberReady {
			return fail(codeNotReady, "member %q of cluster %q is %s; only files of ready members can be saved", m.Name, name, m.Phase)
		}
	}
	return nil
}

// checkSaved refuses a recipe that can't be, and a name that is taken.
func (s *Server) checkSaved(r savedRecipe) error {
	view := s.cfg.Reader.View()
	if s.isReserved(r.Name) {
		return fail(codeEnvironmentExists, "environment %q is the site's, built or not: a recipe of that name comes with Nearmetal; choose another name", r.Name)
	}
	taken := view.Environment(r.Name) != nil || slices.ContainsFunc(joinEnvironments(view), func(e api.Environment) bool { return e.Name == r.Name }) ||
		slices.ContainsFunc(view.Builds, func(b *api.Build) bool { return b.Environment == r.Name && !b.Phase.Ended() })
	if taken {
		return fail(codeEnvironmentExists, "environment %q exists or is being built; choose another name, or delete it: nearmetal env delete %s", r.Name, r.Name)
	}
	text, err := r.text()
	if err != nil {
		return err
	}
	_, _, err = s.parseRecipe(text)
	return err
}

// isReserved reports whether a name is that of an environment which machines of the site boot by its name, such as inspect. What a member's users made must never
// stand for it, also while it is not built.
func (s *Server) isReserved(name string) bool {
	return name == lifecycle.InspectEnvironment || slices.Contains(s.cfg.Recipes.ShippedNames(), name)
}

// receiveFiles stores the archive of the files that a member changed, searched for keys.
func (s *Server) receiveFiles(ctx context.Context, c *state.Cluster, a *api.Assignment, policy changedfiles.Policy, store MemberFiles) (blob image.Blob, err error) {
	ctx, cancel := context.WithTimeout(ctx, saveDeadline)
	defer cancel()
	policy.MaxBytes, policy.MaxFiles = cmp.Or(s.cfg.MaxSavedBytes, changedfiles.DefaultMaxBytes), changedfiles.DefaultMaxFiles
	if s.cfg.ClusterKeys != nil {
		if policy.Secrets, err = s.cfg.ClusterKeys(c.Intent, *a); err != nil {
			return blob, err
		}
	}
	opening, stop := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	conn, err := s.cfg.Tunnels.OpenFiles(opening, a.Node, a.ID, policy.Use)
	stop()
	if err != nil {
		return blob, fail(codeUnreachable, "member %q on node %q can't be read: %v", a.Member, a.Node, err)
	}
	defer func() { _ = conn.Close() }()
	in := newStalling(ctx, conn)
	defer in.stop()
	blob, err = store.Receive(ctx, func(out io.Writer) error {
		var tail archive.Tail
		from := io.TeeReader(in, io.MultiWriter(out, &tail))
		_, err := changedfiles.CheckArchive(ctx, from, policy)
		if errors.Is(err, archive.ErrDamaged) {
			// A member that failed says why at the end, which is not far from where it broke off.
			if _, cut := io.CopyN(io.Discard, from, 1<<20); errors.Is(cut, io.EOF) {
				if _, failure := tail.Trailer(); failure != nil && !errors.Is(failure, archive.ErrDamaged) {
					err = failure
				}
			}
		}
		return err
	})
	if err != nil {
		return image.Blob{}, s.saveFailure(ctx, c, a, err)
	}
	return blob, nil
}

// saveFailure tells why a member's files were not saved.
func (s *Server) saveFailure(ctx context.Context, c *state.Cluster, a *api.Assignment, err error) error {
	var keys *changedfiles.KeysError
	var full *imagestore.NoSpaceError
	switch {
	case errors.As(err, &keys):
		advice := "delete them, or save private keys of your own on purpose: --keep-key PATH"
		if len(keys.Private) == 0 {
			advice = "delete them"
		}
		f := fail(codeKeysFound, "the files of member %q were not saved: %v; %s", a.Member, err, advice)
		for _, at := range keys.Own {
			f.Errors = append(f.Errors, api.FieldProblem{Location: at, Message: "has a key of the cluster itself"})
		}
		for _, at := range keys.Private {
			f.Errors = append(f.Errors, api.FieldProblem{Location: at, Message: "has a private key"})
		}
		return f
	case errors.As(err, &full), errors.Is(err, syscall.ENOSPC):
		return fail(codeNoSpace, "%v", err)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, archive.ErrDamaged):
		err = fmt.Errorf("they did not come whole, since the member ended or changed what it sent: %w", err)
	}
	s.cfg.Log.InfoContext(ctx, "files of a member not saved", "cluster", c.Name(), "member", a.Member, "node", a.Node, "error", err)
	return fail(codeCantSave, "the files of member %q were not saved, and nothing is left of the attempt: %v", a.Member, err)
}

// buildOf stores the build that makes the environment.
func (s *Server) buildOf(ctx context.Context, c *state.Cluster, a *api.Assignment, r savedRecipe, saved *api.SavedCluster) (api.Build, error) {
	if err := s.checkSaved(r); err != nil { // it may have been taken meanwhile
		return api.Build{}, err
	}
	text, err := r.text()
	if err != nil {
		return api.Build{}, err
	}
	name, digest, err := s.parseRecipe(text)
	if err != nil {
		return api.Build{}, err
	}
	project, _ := tenancy.Split(c.Name())
	build := api.Build{
		ID: newID(buildLetters), Environment: name, Recipe: string(text), RecipeDigest: digest, Phase: api.BuildPending, CreatedAt: s.cfg.Now().UTC(), By: userOf(ctx),
		Project: projectOr(project), Saved: saved, Bases: map[string]string{a.Environment: a.EnvironmentDigest},
	}
	revision, err := s.cfg.Writer.CreateBuild(ctx, build)
	if err != nil {
		return api.Build{}, err
	}
	return s.buildAfter(ctx, build, revision), nil
}

// stalling reads as long as something comes: when nothing has come for blobStall, or ctx ends, it closes what it reads.
type stalling struct {
	in    io.Reader
	timer *time.Timer
	leave func() bool
}

func newStalling(ctx context.Context, in io.ReadCloser) *stalling {
	end := func() { _ = in.Close() }
	return &stalling{in: in, timer: time.AfterFunc(blobStall, end), leave: context.AfterFunc(ctx, end)}
}

func (s *stalling) Read(p []byte) (int, error) {
	n, err := s.in.Read(p)
	s.timer.Reset(blobStall)
	return n, err
}

// stop ends the watch.
func (s *stalling) stop() {
	s.timer.Stop()
	s.leave()
}
