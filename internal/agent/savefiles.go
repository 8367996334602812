package agent

import (
	"context"
	"io"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/changedfiles"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// giveFiles begins to write an archive of the files that a member changed, and returns the end that it is read from. An archive that fails says why.
func (a *Agent) giveFiles(life context.Context, saver driver.FileSaver, id string, use changedfiles.Use) io.ReadWriteCloser {
	here, there := newPipe()
	ctx, end := context.WithCancel(life)
	a.work.Go(func() {
		defer end()
		stop := context.AfterFunc(ctx, func() { _ = here.Close() })
		err := saver.SaveFiles(ctx, id, use, here)
		if err != nil {
			a.cfg.Log.WarnContext(life, "the files of a member were not saved whole", "member", id, "error", err)
		}
		if !stop() {
			return // the other end has broken off, which tells enough
		}
		if err != nil {
			_ = archive.WriteFailure(here, err)
		}
		_ = here.CloseWrite()
		_ = here.Close()
	})
	return there
}
