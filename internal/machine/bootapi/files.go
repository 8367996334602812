package bootapi

import (
	"errors"
	"io/fs"
	"net/http"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// files sends the files of a member that was paused to the machine that boots for it, while it boots: they are nobody else's.
func (s *Server) files(w http.ResponseWriter, r *http.Request) {
	claims, err := s.session(r)
	if err != nil {
		s.answer(w, r, nil, err)
		return
	}
	m := s.cfg.Reader.View().MachineByUID(claims.Machine)
	if m == nil || m.Record == nil || m.Record.Boot == nil || m.Record.Boot.Generation != claims.Generation || !lifecycle.MayBoot(m.Record) {
		s.answer(w, r, nil, s.over(claims))
		return
	}
	b := m.Record.Boot
	if b.Purpose != api.BootMember || b.Files == nil {
		s.answer(w, r, nil, refuse(http.StatusNotFound, "no files belong to this boot"))
		return
	}
	f, err := s.cfg.OpenFiles(image.Digest(b.Files.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		err = refuse(http.StatusGone, "the files of the member are no longer there")
	}
	if err != nil {
		s.answer(w, r, nil, err)
		return
	}
	defer func() { _ = f.Close() }()
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, f)
}
