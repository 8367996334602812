package apiserver

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// defaultHomeBytes is the size of a user's home, unless the first cluster with it says otherwise.
const defaultHomeBytes = 10 << 30

// homeOf is the home that a request is for. One that asks for none gets the site's default, or what the cluster has that it is for; made is that, nil
// for a new one.
func (s *Server) homeOf(req api.ClusterRequest, made *state.Cluster) api.ClusterHome {
	switch {
	case req.Home != (api.ClusterHome{}) || !s.cfg.UserHomes:
		return req.Home
	case made != nil:
		return made.Intent.Spec.Home
	}
	// A volume at /home is the home then. Whole machines have volumes only where a node serves some to them.
	atHome := slices.ContainsFunc(req.Volumes, func(v api.VolumeAttachment) bool { return path.Clean(v.Path) == "/home" })
	metal := req.Stack == api.StackMetal || slices.ContainsFunc(req.Groups, func(g api.Group) bool { return g.Stack == api.StackMetal })
	if atHome || metal && !s.servesMachines() {
		return req.Home
	}
	return api.ClusterHome{Kind: api.HomeOfUser}
}

// servesMachines reports whether the site can have a volume reach whole machines.
func (s *Server) servesMachines() bool {
	view := s.cfg.Reader.View()
	return len(s.cfg.Offers.Switches) > 0 && slices.ContainsFunc(view.Nodes, func(n *state.Node) bool {
		return situation.UnservedToMachines(view, s.cfg.Encrypted, n.Name) == ""
	})
}

// ensureHome makes the home of a cluster's user in its project, if the cluster asks for it and there is none yet.
func (s *Server) ensureHome(ctx context.Context, in *api.ClusterIntent) error {
	home := in.Spec.Home
	if home.Kind != api.HomeOfUser {
		return nil
	}
	view, name := s.cfg.Reader.View(), api.HomeVolumeName(in.User)
	full := tenancy.FullName(projectOr(in.Project), name)
	if v := view.VolumeNamed(full); v != nil {
		if v.Intent.DeleteRequestedAt != nil {
			return fail(codeVolumeDeleted, "the home of user %q, volume %q, was deleted; bring it back first: nearmetal volume undelete %s", in.User, name, name)
		}
		return nil
	}
	size := cmp.Or(int64(home.Size), defaultHomeBytes)
	v := api.VolumeIntent{
		Name: full, UID: newID(uidLetters), Project: projectOr(in.Project), User: in.User, Home: true, SizeBytes: size, MaxFiles: filesFor(size),
		Access: api.VolumeShared, Retention: homeRetention, CreatedAt: s.cfg.Now().UTC(),
	}
	revision, err := s.storeVolume(ctx, view, &v)
	var refused *failure
	switch {
	case errors.As(err, &refused) && refused.Code == codeVolumeExists.Code: // another cluster of the user was quicker
		return nil
	case err != nil:
		return err
	}
	_, _ = s.readOwnWrite(ctx, revision)
	return nil
}

// homeRetention is how long a deleted home is kept: longer than other volumes, since nobody made it on purpose.
const homeRetention = api.Duration(7 * 24 * time.Hour)
