package apiserver

import (
	"context"
	"net/http"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// noContentYet refuses what can't be done with a volume that waits for its backup.
func noContentYet(own string) *failure {
	return fail(codeVolumeImporting, "volume %q waits for a backup, and has no content yet; send it with 'nearmetal volume create %s --from-backup FILE'", own, own)
}

// sendVolumeContent makes the request's connection a byte stream into a volume that waits for its backup.
func (s *Server) sendVolumeContent(w http.ResponseWriter, r *http.Request) {
	v, err := s.volumeToFill(r.Context(), r.PathValue("name"))
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
	stream, err := s.cfg.Tunnels.OpenContent(opening, v.Node(), v.UID())
	if err != nil {
		s.cfg.Log.InfoContext(r.Context(), "import of a volume not begun", "volume", v.UID(), "node", v.Node(), "error", err)
		fail(codeUnreachable, "volume %q on node %q can't take a backup: %v", r.PathValue("name"), v.Node(), err).write(w)
		return
	}
	defer func() { _ = stream.Close() }()
	s.takeOver(w, r, stream)
}

// volumeToFill returns a volume that waits for its backup and has a node.
func (s *Server) volumeToFill(ctx context.Context, name string) (*state.Volume, error) {
	v, err := s.volumeToChange(ctx, name)
	if err != nil {
		return nil, err
	}
	_, own := tenancy.Split(v.Intent.Name)
	switch {
	case v.Intent.DeleteRequestedAt != nil:
		return nil, fail(codeVolumeDeleted, "volume %q was deleted; bring it back first: nearmetal volume undelete %s", own, own)
	case !v.Importing():
		return nil, fail(codeVolumeNotImporting, "volume %q waits for no backup; create a new volume of it", own)
	case v.Node() == "":
		return nil, fail(codeUnreachable, "volume %q lies on no node yet; see nearmetal volume show %s", own, own)
	}
	return v, nil
}

func (s *Server) giveUpImport(ctx context.Context, in *volumeInput) (*body[api.VolumeStatus], error) {
	v, err := s.volumeToChange(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	_, own := tenancy.Split(v.Intent.Name)
	next, revision, err := s.cfg.Writer.GiveUpImport(ctx, v.Intent.Name, v.Intent.UID, s.cfg.Now().UTC())
	if err != nil {
		return nil, volumeFailure(err, own)
	}
	return &body[api.VolumeStatus]{s.afterVolumeWrite(ctx, next, revision)}, nil
}
