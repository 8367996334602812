package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/changedfiles"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
)

// pauseCluster asks for a pause. The root of a whole machine is in memory and ends with its power: what its member has changed there is saved first, for all
// such members, or nothing is asked for.
func (s *Server) pauseCluster(ctx context.Context, in *byName) (*body[api.Cluster], error) {
	c, err := s.findCluster(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	name, machines := shownName(who(ctx), c.Name()), wholeMembers(c)
	var files []api.MemberFiles
	if !isPausing(c, &c.Intent, machines) {
		if c.Intent.DeleteRequestedAt != nil {
			return nil, deleting(name)
		}
		if err := canPause(name, c, &c.Intent); err != nil {
			return nil, err
		}
		if files, err = s.saveMachines(ctx, c, name, machines); err != nil {
			return nil, err
		}
	}
	return s.changeIntent(ctx, c, func(intent *api.ClusterIntent) error {
		if isPausing(c, intent, machines) {
			return nil
		}
		if err := canPause(name, c, intent); err != nil {
			return err
		}
		intent.Paused, intent.PausedFiles = true, files
		return nil
	})
}

// isPausing reports whether the pause that is asked for was asked for before. With whole machines it may have come to nothing: one of them was replaced before
// the leader took it up.
func isPausing(c *state.Cluster, intent *api.ClusterIntent, machines []*api.Assignment) bool {
	return intent.Paused && (lifecycle.Frozen(phaseOf(c)) || len(machines) == 0)
}

// canPause refuses a pause in a phase that does not allow it.
func canPause(name string, c *state.Cluster, intent *api.ClusterIntent) error {
	if lifecycle.WantsSaved(intent, c.Record) || lifecycle.Shelving(phaseOf(c)) {
		return isSaved(name)
	}
	switch phase := phaseOf(c); phase {
	case api.ClusterReady, api.ClusterScaling, api.ClusterDegraded, api.ClusterResuming, api.ClusterPausing, api.ClusterPaused:
		if c.Record.ExpiredAt != nil {
			return isExpired(name)
		}
		return nil
	case api.ClusterPending, api.ClusterQueued, api.ClusterStarting:
		return fail(codeWrongPhase, "cluster %q is %s and has never been ready; wait until it is, then pause it", name, phase)
	default:
		return fail(codeWrongPhase, "cluster %q is %s, and only a cluster that has been ready can be paused", name, phase)
	}
}

// wholeMembers are the members that have whole machines.
func wholeMembers(c *state.Cluster) []*api.Assignment {
	var machines []*api.Assignment
	for a := range c.Held() {
		if a.IsMember() && a.Whole {
			machines = append(machines, a)
		}
	}
	return machines
}

// savesAtOnce bounds how many members of a cluster are read at once.
const savesAtOnce = 8

// saveMachines saves what members have changed in their roots. If one save fails, the others end, and nothing of them is used.
func (s *Server) saveMachines(ctx context.Context, c *state.Cluster, name string, machines []*api.Assignment) ([]api.MemberFiles, error) {
	if len(machines) == 0 {
		return nil, nil
	}
	if s.cfg.MemberFiles == nil {
		return nil, fail(codeUnavailable, "this server keeps no files of machines")
	}
	files, names := make([]api.MemberFiles, len(machines)), make([]string, len(machines))
	for i, a := range machines {
		names[i] = a.Member
	}
	if err := s.areReady(c, name, names...); err != nil {
		return nil, notPaused(name, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(savesAtOnce)
	for i, a := range machines {
		group.Go(func() error {
			blob, err := s.receiveFiles(ctx, c, a, changedfiles.Policy{Use: changedfiles.ForMember}, s.cfg.MemberFiles)
			files[i] = api.MemberFiles{
				Member: a.Member, Assignment: a.ID, SavedFiles: api.SavedFiles{Digest: string(blob.Digest), Bytes: blob.SizeBytes}, SavedAt: s.cfg.Now().UTC().Round(time.Second),
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, notPaused(name, err)
	}
	return files, nil
}

// notPaused says of a failure that the cluster goes on.
func notPaused(name string, err error) error {
	var f *failure
	if !errors.As(err, &f) {
		return err
	}
	said := *f
	if f.Code == codeCantSave.Code {
		said = *fail(codeCantPause, "%s", f.Detail)
	}
	said.Detail = fmt.Sprintf("cluster %q was not paused, and its machines stay on: %s", name, f.Detail)
	return &said
}

// pausedFiles tells what is kept of members in a pause.
func pausedFiles(c *state.Cluster) (told []api.PausedFiles) {
	if c.Record == nil {
		return nil
	}
	for _, f := range c.Record.Files {
		told = append(told, api.PausedFiles{Member: f.Member, Bytes: f.Bytes, SavedAt: f.SavedAt})
	}
	return told
}
