package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/fake"
)

// awaited is a volume that is made of a backup.
func awaited(clusters ...string) volume.Volume {
	v := wantedVolume(clusters...)
	v.Origin = &api.VolumeOrigin{Upload: true}
	return v
}

// awaiting is an agent whose leader wants such a volume.
func awaiting(t *testing.T, clusters ...string) (*Agent, *fake.Disk) {
	t.Helper()
	disk := fake.NewDisk(1 << 40)
	a := withVolumes(t, disk)
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{awaited(clusters...)}})
	settleVolumes(t, a)
	return a, disk
}

func importOf(uid string) agentstream.Tunnel {
	return agentstream.Tunnel{Target: agentstream.TargetContent, Volume: &agentstream.VolumeCopy{UID: uid}}
}

// wholeBackup is a backup of a volume of the fake pool that holds two files.
func wholeBackup(t *testing.T) []byte {
	t.Helper()
	disk := fake.NewDisk(1 << 40)
	var data bytes.Buffer
	if err := errors.Join(disk.Pool().Apply(t.Context(), wantedVolume()), disk.Use(volumeUID, 1<<20, 2), disk.Pool().Export(t.Context(), volumeUID, "", &data)); err != nil {
		t.Fatal(err)
	}
	return data.Bytes()
}

// send sends what there is of a backup to a volume, ends it, and returns the answer.
func send(t *testing.T, a *Agent, data []byte) error {
	t.Helper()
	conn, err := a.copyVolume(t.Context(), importOf(volumeUID))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		sent <- errors.Join(err, conn.(*pipe).CloseWrite())
	}()
	var tail archive.Tail
	read := make(chan error, 1)
	go func() {
		_, err := io.Copy(&tail, conn)
		read <- err
	}()
	nextEvent(t, a)
	if err := errors.Join(<-read, <-sent, conn.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = tail.Trailer()
	return err
}

// nextEvent lets the agent's loop do what comes next.
func nextEvent(t *testing.T, a *Agent) {
	t.Helper()
	select {
	case event := <-a.events:
		event()
	case <-time.After(10 * time.Second):
		t.Fatal("nothing happens")
	}
}

// seenVolume is what the agent reports of the volume.
func seenVolume(t *testing.T, a *Agent) volume.State {
	t.Helper()
	seen, _ := a.observedVolumes()
	if len(seen) != 1 {
		t.Fatalf("the agent reports %+v", seen)
	}
	return seen[0]
}

func TestAVolumeWaitsForItsBackupAndIsMadeOfNothingElse(t *testing.T) {
	a, disk := awaiting(t, "u1")
	m := claiming(t, a, "/volumes/data")
	if s := seenVolume(t, a); s.Ready || s.Import == nil || s.Import.Receiving || len(disk.Calls()) != 0 {
		t.Fatalf("it is %+v after %q, want it to wait", s, disk.Calls())
	}
	if a.volumesReady(m) || m.message != `volume "data" waits for a backup` {
		t.Errorf("a member waits with %q", m.message)
	}
	data := wholeBackup(t)
	for name, bad := range map[string][]byte{"nothing": nil, "all but its last byte": data[:len(data)-1], "the middle": data[1:]} {
		if err := send(t, a, bad); err == nil {
			t.Errorf("%s: it was taken for whole", name)
		}
		settleVolumes(t, a)
		if s := seenVolume(t, a); s.Ready || s.Import == nil || s.Import.Receiving || s.Import.Failure == "" || len(disk.Attached(volumeUID)) != 0 {
			t.Errorf("%s: it is %+v", name, s)
		}
	}
	if err := send(t, a, data); err != nil {
		t.Fatal(err)
	}
	settleVolumes(t, a)
	if s := seenVolume(t, a); !s.Ready || s.Import != nil || s.UsedFiles != 2 || len(s.Attached) != 1 || !a.volumesReady(m) {
		t.Errorf("it is %+v, and the member waits with %q", s, m.message)
	}
	if _, err := a.copyVolume(t.Context(), importOf(volumeUID)); err == nil || !strings.Contains(err.Error(), "waits for no backup") {
		t.Errorf("a second backup: %v", err)
	}
}

func TestARefusedBackupIsReadToItsEndSoThatItsSenderLearnsWhy(t *testing.T) {
	a, _ := awaiting(t)
	p := &refusing{Pool: a.cfg.Volumes, err: errors.New("no room for it today")}
	a.cfg.Volumes = p
	if err := send(t, a, make([]byte, 1<<20)); err == nil || err.Error() != p.err.Error() {
		t.Errorf("the answer is %v, want %v", err, p.err)
	}
	if s := a.volumes.states[volumeUID]; s.busy || s.copying != nil || a.volumes.copies != 0 {
		t.Error("it goes on")
	}
}

// refusing is a pool that refuses a backup without reading it.
type refusing struct {
	volume.Pool
	err error
}

func (p *refusing) Import(context.Context, volume.Volume, io.Reader) error { return p.err }

func TestAnImportEndsWithItsSenderAndWithItsVolume(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(a *Agent, conn io.Closer)
	}{
		{"its sender goes", func(_ *Agent, conn io.Closer) { _ = conn.Close() }},
		{"its volume is purged", func(a *Agent, _ io.Closer) {
			v := awaited()
			v.Purge = true
			a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{v}})
		}},
		{"its volume is named no more", func(a *Agent, _ io.Closer) { a.wantVolumes(&agentstream.Desired{}) }},
	} {
		a, disk := awaiting(t)
		conn, err := a.copyVolume(t.Context(), importOf(volumeUID))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := conn.Write([]byte("begin")); err != nil {
			t.Fatal(err)
		}
		if s := seenVolume(t, a); s.Import == nil || !s.Import.Receiving {
			t.Errorf("%s: meanwhile it is %+v", c.name, s)
		}
		if _, err := a.copyVolume(t.Context(), importOf(volumeUID)); err == nil || !strings.Contains(err.Error(), "is being read into the volume already") {
			t.Errorf("%s: a second backup at the same time: %v", c.name, err)
		}
		a.convergeVolumes(t.Context(), a.cfg.Clock.Now())
		s := a.volumes.states[volumeUID]
		c.end(a, conn)
		nextEvent(t, a)
		if s.copying != nil || s.busy || a.volumes.copies != 0 {
			t.Errorf("%s: it goes on", c.name)
		}
		if data, err := io.ReadAll(conn); err == nil {
			t.Errorf("%s: its sender takes it for made by %q", c.name, data)
		}
		settleVolumes(t, a)
		for _, call := range disk.Calls() {
			if strings.HasPrefix(call, "make") || strings.HasPrefix(call, "import") {
				t.Errorf("%s: the pool did %q", c.name, call)
			}
		}
	}
}

func TestTheProgressOfAnImportIsReported(t *testing.T) {
	now := time.Unix(0, 0)
	var told []int64
	r := &received{in: io.LimitReader(zeros{}, 10), now: func() time.Time { return now }, told: now, tell: func(bytes int64) { told = append(told, bytes) }}
	for _, wait := range []time.Duration{0, importNews, 0, importNews} {
		now = now.Add(wait)
		if _, err := r.Read(make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
	}
	if len(told) != 2 || told[0] != 4 || told[1] != 8 {
		t.Errorf("told of %d, want 4 and 8", told)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestAnImportIsRefusedWithTheReason(t *testing.T) {
	a, _ := awaiting(t)
	for want, change := range map[string]func(){
		"is not known on this node": func() { a.volumes.states[volumeUID].want = nil },
		"is being purged":           func() { v := awaited(); v.Purge = true; a.volumes.states[volumeUID].want = &v },
		"waits for no backup":       func() { v := wantedVolume(); a.volumes.states[volumeUID].want = &v },
		"try again in a moment":     func() { a.volumes.states[volumeUID].busy = true },
		"which is its limit":        func() { a.volumes.copies = maxCopies },
		"can't read backups":        func() { a.cfg.Volumes = struct{ volume.Pool }{a.cfg.Volumes} },
	} {
		pool, state, copies := a.cfg.Volumes, *a.volumes.states[volumeUID], a.volumes.copies
		change()
		if _, err := a.copyVolume(t.Context(), importOf(volumeUID)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
		*a.volumes.states[volumeUID], a.cfg.Volumes, a.volumes.copies = state, pool, copies
	}
}

func TestAVolumeIsNotChangedWhileItsBackupIsRead(t *testing.T) {
	a, disk := awaiting(t)
	conn, err := a.copyVolume(t.Context(), importOf(volumeUID))
	if err != nil {
		t.Fatal(err)
	}
	if !a.volumes.states[volumeUID].busy {
		t.Error("the pool may be asked for something else meanwhile")
	}
	purge := awaited()
	purge.Generation, purge.Purge = 2, true
	a.wantVolumes(&agentstream.Desired{Volumes: []volume.Volume{purge}}) // it ends the import, whose end is not known yet
	a.convergeVolumes(t.Context(), a.cfg.Clock.Now())
	if s := a.volumes.states[volumeUID]; !s.busy || s.purged || len(a.events) != 0 {
		t.Error("the purge has begun before the import has ended")
	}
	_ = conn.Close()
	nextEvent(t, a)
	settleVolumes(t, a)
	if s := a.volumes.states[volumeUID]; s == nil || !s.purged {
		t.Errorf("the purge has not ended: %+v after %q", s, disk.Calls())
	}
}
