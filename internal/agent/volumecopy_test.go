package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/fake"
)

// slowExport is a pool whose backups wait until they are told to go on, and may fail.
type slowExport struct {
	volume.Pool
	goOn chan struct{}
	err  error
}

func (p slowExport) Export(ctx context.Context, _, snapshot string, out io.Writer) error {
	if _, err := io.WriteString(out, "begin "+snapshot); err != nil {
		return err
	}
	select {
	case <-p.goOn:
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.err != nil {
		return p.err
	}
	return archive.Trailer{Files: 7}.Write(out)
}

// backedUp is an agent with a volume that is ready and a pool that writes backups slowly.
func backedUp(t *testing.T, p slowExport) *Agent {
	t.Helper()
	a := withVolumes(t, fake.NewDisk(1<<40))
	p.Pool, a.cfg.Volumes = a.cfg.Volumes, p
	a.cfg.Volumes = p
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{wantedVolume()}})
	settleVolumes(t, a)
	return a
}

func backupOf(uid string) agentstream.Tunnel {
	return agentstream.Tunnel{Target: agentstream.TargetVolume, Volume: &agentstream.VolumeCopy{UID: uid, Snapshot: "snap-a"}}
}

func TestABackupIsReadThroughATunnel(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"whole", nil, ""},
		{"with a reason why it is not whole", errors.New("the disk is broken"), "the disk is broken"},
	} {
		p := slowExport{goOn: make(chan struct{}), err: c.err}
		a := backedUp(t, p)
		conn, err := a.copyVolume(t.Context(), backupOf(volumeUID))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.copyVolume(t.Context(), backupOf(volumeUID)); err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("%s: a second backup at the same time: %v", c.name, err)
		}
		close(p.goOn)
		var data bytes.Buffer
		var tail archive.Tail
		read := make(chan error)
		go func() {
			_, err := io.Copy(io.MultiWriter(&data, &tail), conn)
			read <- err
		}()
		(<-a.events)()
		if err := <-read; err != nil {
			t.Errorf("%s: reading: %v", c.name, err)
		}
		trailer, err := tail.Trailer()
		if !strings.HasPrefix(data.String(), "begin snap-a") || c.err == nil && (err != nil || trailer.Files != 7) || c.err != nil && (err == nil || err.Error() != c.want) {
			t.Errorf("%s: it ends with %+v, %v", c.name, trailer, err)
		}
		if s := a.volumes.states[volumeUID]; s.copying != nil || a.volumes.copies != 0 {
			t.Errorf("%s: it is still being written", c.name)
		}
	}
}

func TestABackupEndsWithItsReaderAndWithItsVolume(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(a *Agent, conn io.Closer)
	}{
		{"its reader goes", func(_ *Agent, conn io.Closer) { _ = conn.Close() }},
		{"its volume is purged", func(a *Agent, _ io.Closer) {
			v := wantedVolume()
			v.Purge = true
			a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{v}})
		}},
		{"its volume is named no more", func(a *Agent, _ io.Closer) { a.wantVolumes(&agentstream.Desired{}) }},
	} {
		a := backedUp(t, slowExport{goOn: make(chan struct{})})
		conn, err := a.copyVolume(t.Context(), backupOf(volumeUID))
		if err != nil {
			t.Fatal(err)
		}
		s := a.volumes.states[volumeUID]
		c.end(a, conn)
		(<-a.events)()
		if s.copying != nil || a.volumes.copies != 0 {
			t.Errorf("%s: it goes on", c.name)
		}
		if n, err := io.Copy(io.Discard, conn); err == nil {
			t.Errorf("%s: its reader takes it for whole after %d bytes", c.name, n)
		}
	}
}

func TestABackupIsRefusedWithTheReason(t *testing.T) {
	a := backedUp(t, slowExport{goOn: make(chan struct{})})
	for want, change := range map[string]func(){
		"is not known on this node": func() { a.volumes.states[volumeUID].want = nil },
		"is being purged":           func() { v := wantedVolume(); v.Purge = true; a.volumes.states[volumeUID].want = &v },
		"is not ready":              func() { a.volumes.states[volumeUID].found = nil },
		"which is its limit":        func() { a.volumes.copies = maxCopies },
		"without a pool":            func() { a.cfg.Volumes = nil },
	} {
		pool, state, copies := a.cfg.Volumes, *a.volumes.states[volumeUID], a.volumes.copies
		change()
		if _, err := a.copyVolume(t.Context(), backupOf(volumeUID)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
		*a.volumes.states[volumeUID], a.cfg.Volumes, a.volumes.copies = state, pool, copies
	}
	if _, err := a.copyVolume(t.Context(), agentstream.Tunnel{Target: agentstream.TargetVolume}); err == nil {
		t.Error("a backup of no volume was begun")
	}
}
