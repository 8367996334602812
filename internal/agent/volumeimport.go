package agent

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// A volume that is made of a backup waits for it, and the pool is asked for nothing else meanwhile. The backup comes through a tunnel, and the pool reads
// it. The answer that goes back is a trailer of an archive: without a failure, the volume is whole and on the disk.

const (
	// importNews is how often the progress of an import goes up.
	importNews = 2 * time.Second
	// refusedPatience is how long what is still sent is thrown away after a backup was refused. Else the sender might not read the reason.
	refusedPatience = 30 * time.Second
)

// awaitsContent reports whether a volume is made of a backup, and not there yet.
func (s *volumeState) awaitsContent() bool {
	return s.want != nil && !s.want.Purge && !s.want.Made && s.want.Origin.IsUpload() && (s.found == nil || !s.found.Ready)
}

// takeContent begins to make a volume of the backup that comes. Loop calls it.
func (a *Agent) takeContent(life context.Context, s *volumeState) (io.ReadWriteCloser, error) {
	importer, ok := a.cfg.Volumes.(volume.Importer)
	switch {
	case !ok:
		return nil, errors.New("the pool of this node can't read backups")
	case !s.awaitsContent():
		return nil, errors.New("the volume waits for no backup")
	case s.busy:
		return nil, errors.New("the volume is being changed; try again in a moment")
	}
	here, there := newPipe()
	ctx, end := context.WithCancel(life)
	want := *s.want
	s.copying, s.busy, s.importing = end, true, volume.ImportState{Receiving: true}
	a.volumes.copies++
	a.work.Go(func() {
		defer end()
		stop := context.AfterFunc(ctx, func() { _ = here.Close() })
		failpoint.Hit("agent.before-import")
		err := importer.Import(ctx, want, a.tellProgress(life, s, here))
		failpoint.Hit("agent.after-import")
		// The state is known before the other end hears of it: what it asks for next is answered by that.
		a.post(life, func() { a.endImport(life, s, err) })
		if !stop() {
			return // nobody is there to hear of it
		}
		if err != nil {
			_ = archive.WriteFailure(here, err)
		} else {
			_ = archive.Trailer{}.Write(here)
		}
		_ = here.CloseWrite()
		if err != nil {
			here.discard(ctx)
		}
		_ = here.Close()
	})
	return there, nil
}

// endImport notes how an import ended. Loop calls it.
func (a *Agent) endImport(ctx context.Context, s *volumeState, err error) {
	s.copying, s.busy, s.applied, s.importing = nil, false, nil, volume.ImportState{}
	a.volumes.copies--
	if err != nil {
		s.importing.Failure = err.Error()
		a.cfg.Log.WarnContext(ctx, "a volume was not made of a backup", "error", err)
	}
	a.lookAtVolumes(ctx, time.Time{})
}

// discard reads what still comes, for a while, until the other end has closed.
func (p *pipe) discard(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, refusedPatience)
	defer cancel()
	defer context.AfterFunc(bounded, func() { _ = p.Close() })()
	_, _ = io.Copy(io.Discard, p)
}

// received counts what is read of a backup, and tells of it from time to time.
type received struct {
	in    io.Reader
	bytes int64
	now   func() time.Time
	told  time.Time
	tell  func(bytes int64)
}

func (r *received) Read(p []byte) (int, error) {
	n, err := r.in.Read(p)
	r.bytes += int64(n)
	if now := r.now(); now.Sub(r.told) >= importNews {
		r.told = now
		r.tell(r.bytes)
	}
	return n, err
}

// tellProgress lets the progress of an import be reported.
func (a *Agent) tellProgress(life context.Context, s *volumeState, in io.Reader) io.Reader {
	tell := func(bytes int64) { a.post(life, func() { s.importing.ReceivedBytes = bytes }) }
	return &received{in: in, now: a.cfg.Clock.Now, told: a.cfg.Clock.Now(), tell: tell}
}
