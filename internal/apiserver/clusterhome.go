package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// defaultHomeBytes is the size of a user's home that is made without one.
const defaultHomeBytes = 10 << 30

// makeHome makes the home of a cluster's user in its project, unless it exists.
func (s *Server) makeHome(ctx context.Context, intent *api.ClusterIntent) error {
	if intent.Spec.Home.Kind != api.HomeOfUser {
		return nil
	}
	view, name := s.cfg.Reader.View(), api.HomeVolumeName(intent.User)
	full := state.VolumeName(intent.Project, name)
	if view.VolumeNamed(full) != nil {
		return nil
	}
	size := cmp.Or(int64(intent.Spec.Home.Size), int64(defaultHomeBytes))
	home := api.VolumeIntent{
		Name: full, UID: newID(uidLetters), Project: intent.Project, User: intent.User, Home: true, SizeBytes: size, MaxFiles: size / api.VolumeBytesPerFile,
		Access: api.VolumeShared, Retention: api.DefaultVolumeRetention, CreatedAt: s.cfg.Now().UTC(),
	}
	quota := int64(0)
	if p := view.Project(intent.Project); p != nil {
		quota = int64(p.Quota.Storage)
	}
	revision, err := s.cfg.Writer.CreateVolume(ctx, home, func(others []api.VolumeIntent) error {
		held := int64(0)
		for i := range others {
			held += others[i].SizeBytes
		}
		if quota > 0 && held+size > quota {
			return fail(codeOverQuota, "project %q may have %s of storage and has %s, so a home of %s can't be made; give another size (--home user:SIZE), or delete volumes",
				intent.Project, api.Bytes(quota), api.Bytes(held), api.Bytes(size))
		}
		return nil
	})
	switch {
	case errors.Is(err, state.ErrExists): // made by another cluster at the same moment
		return nil
	case errors.Is(err, state.ErrNoProject):
		return noProject(intent.Project)
	case err != nil:
		return err
	}
	s.readOwnWrite(ctx, revision)
	return nil
}

// volumeRefusal is the answer to a cluster whose volumes it can't have, nil for another error.
func volumeRefusal(err error) error {
	switch {
	case errors.Is(err, state.ErrNoVolume):
		return fail(codeUnknownVolume, "%v; 'nearmetal volume list' lists the volumes", err)
	case errors.Is(err, state.ErrInUse), errors.Is(err, state.ErrAccess):
		return fail(codeVolumeTaken, "%v", err)
	default:
		return nil
	}
}

// homeText says what kind of home a cluster has.
func homeText(spec api.ClusterSpec) string { return cmp.Or(spec.Home.Kind, api.HomeOfCluster) }

// attachmentsText lists the volumes of a cluster.
func attachmentsText(spec api.ClusterSpec) string {
	if len(spec.Volumes) == 0 {
		return "none"
	}
	texts := make([]string, len(spec.Volumes))
	for i, v := range spec.Volumes {
		texts[i] = fmt.Sprintf("%s at %s", v.Name, v.MountPath())
		if v.ReadOnly {
			texts[i] += " (read-only)"
		}
	}
	return strings.Join(texts, ", ")
}

// keepsHome reports whether a cluster's home outlives it, or there is none to speak of.
func keepsHome(spec *api.ClusterSpec) bool {
	if spec.Home.Kind == api.HomeOfUser || spec.Home.Kind == api.HomeNone {
		return true
	}
	for _, v := range spec.Volumes {
		if v.MountPath() == "/home" {
			return true
		}
	}
	return false
}
