package agent

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// A backup of a volume goes through a tunnel to whoever asked the server for it. It ends with the trailer of an archive, which tells how it went.

// maxCopies bounds how many backups a node writes and reads at once: each takes a processor from members.
const maxCopies = 4

// pipe is both ways of a connection within this process, each of which is closed for itself.
type pipe struct {
	in  *io.PipeReader
	out *io.PipeWriter
}

// newPipe returns both ends.
func newPipe() (here, there *pipe) {
	toHere, fromThere := io.Pipe()
	toThere, fromHere := io.Pipe()
	return &pipe{toHere, fromHere}, &pipe{toThere, fromThere}
}

func (p *pipe) Read(data []byte) (int, error)  { return p.in.Read(data) }
func (p *pipe) Write(data []byte) (int, error) { return p.out.Write(data) }

// CloseWrite ends this end's data.
func (p *pipe) CloseWrite() error { return p.out.Close() }

// Close ends both ways. What was not ended before has broken off.
func (p *pipe) Close() error {
	return errors.Join(p.in.CloseWithError(io.ErrClosedPipe), p.out.CloseWithError(io.ErrUnexpectedEOF))
}

// reachVolume begins to write a backup of a volume to the returned connection, or to read one from there. life is that of the connection.
func (a *Agent) reachVolume(ctx, life context.Context, asked agentstream.Tunnel) (io.ReadWriteCloser, error) {
	type answer struct {
		conn io.ReadWriteCloser
		err  error
	}
	answered := make(chan answer)
	a.post(ctx, func() {
		conn, err := a.copyVolume(life, asked)
		select {
		case answered <- answer{conn, err}:
		case <-ctx.Done():
			if conn != nil {
				_ = conn.Close()
			}
		}
	})
	select {
	case got := <-answered:
		return got.conn, got.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// copyVolume begins what reachVolume was asked for, if the leader wants that. Loop calls it.
func (a *Agent) copyVolume(life context.Context, asked agentstream.Tunnel) (io.ReadWriteCloser, error) {
	if asked.Volume == nil {
		return nil, errors.New("no volume was named")
	}
	s := a.volumes.states[asked.Volume.UID]
	switch {
	case a.cfg.Volumes == nil:
		return nil, errors.New("this node keeps no volumes: its agent was started without a pool")
	case !a.hearing.current() || !a.volumes.looked:
		return nil, errNotKnown
	case s == nil || s.want == nil:
		return nil, errors.New("the volume is not known on this node yet")
	case s.want.Purge:
		return nil, errors.New("the volume is being purged")
	case s.copying != nil && s.importing.Receiving:
		return nil, fmt.Errorf("a backup is being read into the volume already, %d bytes of it; wait for its end", s.importing.ReceivedBytes)
	case s.copying != nil:
		return nil, errors.New("a backup of the volume is being written already; wait for its end")
	case a.volumes.copies >= maxCopies:
		return nil, fmt.Errorf("this node already writes or reads %d backups, which is its limit; wait for one of them", maxCopies)
	case asked.Target == agentstream.TargetContent:
		return a.takeContent(life, s)
	}
	return a.giveContent(life, s, asked.Volume.Snapshot)
}

// giveContent begins to write a backup.
func (a *Agent) giveContent(life context.Context, s *volumeState, snapshot string) (io.ReadWriteCloser, error) {
	exporter, ok := a.cfg.Volumes.(volume.Exporter)
	if !ok {
		return nil, errors.New("the pool of this node can't write backups")
	}
	if s.found == nil || !s.found.Ready {
		return nil, errors.New("the volume is not ready on this node")
	}
	uid := s.want.UID
	return a.beginCopy(life, s, func(ctx context.Context, conn *pipe) error { return exporter.Export(ctx, uid, snapshot, conn) }), nil
}

// beginCopy writes a backup, tells the other end why it failed, and notes that it has ended. It returns that other end. Loop calls it.
func (a *Agent) beginCopy(life context.Context, s *volumeState, write func(context.Context, *pipe) error) io.ReadWriteCloser {
	here, there := newPipe()
	ctx, end := context.WithCancel(life)
	s.copying = end
	a.volumes.copies++
	a.work.Go(func() {
		defer end()
		stop := context.AfterFunc(ctx, func() { _ = here.Close() })
		err := write(ctx, here)
		// The state is known before the other end hears of it: what it asks for next is answered by that.
		a.post(life, func() {
			s.copying = nil
			a.volumes.copies--
		})
		if err != nil {
			a.cfg.Log.WarnContext(life, "a backup of a volume was not written whole", "error", err)
		}
		if !stop() {
			return // the other end has broken off, which tells enough
		}
		if err != nil {
			_ = archive.WriteFailure(here, err) // who is gone is not told
		}
		_ = here.CloseWrite()
		_ = here.Close()
	})
	return there
}

// endUnwantedCopy ends a copy of a volume that is to be purged, or that the leader does not name any more.
func (s *volumeState) endUnwantedCopy() {
	if s.copying != nil && (s.want == nil || s.want.Purge) {
		s.copying()
	}
}
