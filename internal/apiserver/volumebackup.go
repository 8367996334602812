package apiserver

import (
	"context"
	"net/http"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// backUpVolume makes the request's connection a byte stream with a backup of a volume.
func (s *Server) backUpVolume(w http.ResponseWriter, r *http.Request) {
	node, copied, err := s.volumeToBackUp(r.Context(), r.PathValue("name"), r.URL.Query().Get("snapshot"))
	if err != nil {
		failureOf(err).write(w)
		return
	}
	if f := s.upgradable(w, r); f != nil {
		f.write(w)
		return
	}
	opening, stop := context.WithTimeout(r.Context(), s.cfg.RequestTimeout)
	defer stop()
	stream, err := s.cfg.Tunnels.OpenVolume(opening, node, copied)
	if err != nil {
		s.cfg.Log.InfoContext(r.Context(), "backup of a volume not begun", "volume", copied.UID, "node", node, "error", err)
		fail(codeUnreachable, "volume %q can't be read on node %q: %v", r.PathValue("name"), node, err).write(w)
		return
	}
	defer func() { _ = stream.Close() }()
	s.takeOver(w, r, stream)
}

// volumeToBackUp returns where a volume lies, and what a backup is made of. Who may change a volume may read all of it.
func (s *Server) volumeToBackUp(ctx context.Context, name, snapshot string) (node string, copied agentstream.VolumeCopy, err error) {
	v, err := s.volumeToChange(ctx, name)
	if err != nil {
		return "", copied, err
	}
	_, own := tenancy.Split(v.Intent.Name)
	copied.UID = v.Intent.UID
	switch {
	case v.Intent.DeleteRequestedAt != nil:
		return "", copied, fail(codeVolumeDeleted, "volume %q was deleted; bring it back first: nearmetal volume undelete %s", own, own)
	case v.Intent.Kind == api.VolumeBlock:
		return "", copied, fail(codeVolumeIsBlock, "volume %q is a block volume, and backups contain files; create a snapshot instead: nearmetal volume snapshot create %s@NAME", own, own)
	case v.Importing():
		return "", copied, noContentYet(own)
	case v.Node() == "":
		return "", copied, fail(codeUnreachable, "volume %q lies on no node yet; see nearmetal volume show %s", own, own)
	case snapshot != "":
		i := snapshotIndex(&v.Intent, snapshot)
		if i < 0 {
			return "", copied, noVolumeSnapshot(own, snapshot)
		}
		copied.Snapshot = v.Intent.Snapshots[i].UID
	}
	return v.Node(), copied, nil
}
