package volumetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// archiver is a pool that writes and reads archives. A pool that does neither has no such rows.
func (r *rig) archiver(t *testing.T) (volume.Exporter, volume.Importer) {
	t.Helper()
	exporter, writes := r.Pool.(volume.Exporter)
	importer, reads := r.Pool.(volume.Importer)
	needs.Ability(t, writes && reads, "archives of volumes are written and read")
	return exporter, importer
}

// archiveOf returns the archive of a volume or, unless it is "", of a snapshot.
func (r *rig) archiveOf(t *testing.T, uid, snapshot string) []byte {
	t.Helper()
	exporter, _ := r.archiver(t)
	var out bytes.Buffer
	if err := exporter.Export(t.Context(), uid, snapshot, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// make2 makes volume 2 of an archive.
func (r *rig) make2(t *testing.T, data []byte) error {
	t.Helper()
	_, importer := r.archiver(t)
	return importer.Import(t.Context(), Volume(2), bytes.NewReader(data))
}

// nothingOf checks that nothing of volume 2 is ready, and that the host holds nothing of it.
func (r *rig) nothingOf(t *testing.T, what string) {
	t.Helper()
	if s := r.state(t, "vol-2"); s != nil && s.Ready {
		t.Errorf("%s: the volume is %+v", what, *s)
	}
	if r.Left != nil {
		for _, left := range r.Left(t, r.node) {
			if filepath.Base(left) == "vol-2" {
				t.Errorf("%s: the host holds %s", what, left)
			}
		}
	}
}

func archives(t *testing.T, r *rig) {
	v := Volume(1)
	r.hold(t, v, 1<<20)
	before := r.Describe(t.Context()).HeldBytes
	data := r.archiveOf(t, v.UID, "")
	if held := r.Describe(t.Context()).HeldBytes; held != before {
		t.Errorf("after the archive was written, the pool holds %d bytes, was %d", held, before)
	}
	if err := r.make2(t, data); err != nil {
		t.Fatal(err)
	}
	r.nothingLeft(t)
	from, made := r.ready(t, v.UID), r.ready(t, "vol-2")
	if made.UsedBytes < 1<<20 || made.UsedFiles != from.UsedFiles || made.SizeBytes != SizeBytes || len(made.Attached) > 0 || made.Generation != 1 {
		t.Errorf("it is %+v, of %+v", made, from)
	}
	if err := r.make2(t, data); err == nil {
		t.Error("a volume that is there was made again")
	}
	r.apply(t, Volume(2))
	stale := Volume(2)
	stale.Generation = 0
	_, importer := r.archiver(t)
	if err := importer.Import(t.Context(), stale, bytes.NewReader(data)); !errors.Is(err, volume.ErrStale) {
		t.Errorf("by an older decision: %v", err)
	}
	if r.Files {
		r.sameFile(t, "vol-2", "held", 1<<20)
	}
}

// nothingLeft checks that the host holds nothing in memory.
func (r *rig) nothingLeft(t *testing.T) {
	t.Helper()
	if r.Left == nil {
		return
	}
	for _, left := range r.Left(t, r.node) {
		if base := filepath.Base(left); base == "vol-1" || base == "vol-2" {
			t.Errorf("the host holds %s", left)
		}
	}
}

// sameFile checks the file that Write has made, by its size and its owner.
func (r *rig) sameFile(t *testing.T, uid, name string, size int64) {
	t.Helper()
	v := Volume(2)
	v.UID, v.Attachments = uid, []volume.Attachment{Attachment(1)}
	r.apply(t, v)
	err := As(t, r.Pool, uid, v.Attachments[0], user, func(root *os.Root) error {
		file, err := root.OpenFile(name, os.O_RDWR, 0) // its owner may write
		if err != nil {
			return err
		}
		defer file.Close()
		text, err := io.ReadAll(file)
		if err == nil && (int64(len(text)) != size || !bytes.HasPrefix(text, []byte(name+name))) {
			t.Errorf("%s has %d bytes", name, len(text))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// paused writes to a buffer, and stops before its first byte until it may go on.
type paused struct {
	bytes.Buffer
	reached, goOn chan struct{}
	stopped       bool
}

func newPaused() *paused { return &paused{reached: make(chan struct{}), goOn: make(chan struct{})} }

func (p *paused) Write(data []byte) (int, error) {
	if !p.stopped {
		p.stopped = true
		close(p.reached)
		<-p.goOn
	}
	return p.Buffer.Write(data)
}

func archivesInUse(t *testing.T, r *rig) {
	exporter, _ := r.archiver(t)
	v := Volume(1)
	r.hold(t, v, 1<<20)
	v.Attachments = []volume.Attachment{Attachment(1)}
	r.apply(t, v)
	out, done := newPaused(), make(chan error)
	go func() { done <- exporter.Export(t.Context(), v.UID, "", out) }()
	<-out.reached
	if err := exporter.Export(t.Context(), v.UID, "", io.Discard); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("a second archive at the same time: %v", err)
	}
	r.Hold(t, r.node, r.Pool, v.UID, v.Attachments[0].ClusterUID, 4<<20)
	v.Snapshots = []string{"snap-a"}
	r.apply(t, v)
	v.Attachments, v.Snapshots = nil, nil
	r.apply(t, v)
	if err := r.Purge(t.Context(), v.UID, v.Generation); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("purging it meanwhile: %v", err)
	}
	close(out.goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.nothingLeft(t)
	if err := r.make2(t, out.Bytes()); err != nil {
		t.Fatal(err)
	}
	if s := r.ready(t, "vol-2"); s.UsedBytes > 3<<20 {
		t.Errorf("it has what was written later: %+v", s)
	}
	if err := r.Purge(t.Context(), v.UID, v.Generation); err != nil {
		t.Errorf("purging it afterwards: %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	stopped := newPaused()
	go func() { done <- exporter.Export(canceled, "vol-2", "", stopped) }()
	<-stopped.reached
	cancel()
	close(stopped.goOn)
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	r.nothingLeft(t)
}

func archivesCut(t *testing.T, r *rig) {
	v := Volume(1)
	r.hold(t, v, 1<<20)
	data := r.archiveOf(t, v.UID, "")
	var failed bytes.Buffer
	if err := archive.WriteFailure(&failed, errors.New("the disk is broken")); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{
		"nothing": nil, "its beginning": data[:len(data)/2], "all but its last byte": data[:len(data)-1], "only its end": data[len(data)-archive.TrailerBytes:],
		"what has failed": append(data[:10:10], failed.Bytes()...),
	} {
		if err := r.make2(t, bad); err == nil {
			t.Errorf("%s: it was made", name)
		}
		r.nothingOf(t, name)
	}
	if err := r.make2(t, data); err != nil {
		t.Errorf("of the whole archive: %v", err)
	}
	r.ready(t, "vol-2")
}

func archivesOnly(t *testing.T, r *rig) {
	_, importer := r.archiver(t)
	v := Volume(1)
	r.hold(t, v, 1<<20)
	data := r.archiveOf(t, v.UID, "")
	waits := Volume(2)
	waits.Origin = &api.VolumeOrigin{Upload: true}
	waits.Attachments = []volume.Attachment{Attachment(1)}
	r.refused(t, waits, volume.ErrNoContent)
	r.nothingOf(t, "before the archive")
	if err := importer.Import(t.Context(), waits, bytes.NewReader(data[:len(data)-1])); err == nil {
		t.Error("it was made of an archive without its end")
	}
	r.refused(t, waits, volume.ErrNoContent)
	r.nothingOf(t, "after an archive without its end")
	if err := importer.Import(t.Context(), waits, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	r.apply(t, waits)
	if s := r.ready(t, waits.UID); s.UsedBytes < 1<<20 || len(s.Attached) != 1 {
		t.Errorf("it is %+v", s)
	}
	gone := Volume(3)
	gone.Made = true
	if err := importer.Import(t.Context(), gone, bytes.NewReader(data)); !errors.Is(err, volume.ErrLost) {
		t.Errorf("of one that is lost: %v", err)
	}
}

func archivesTooLarge(t *testing.T, r *rig) {
	_, importer := r.archiver(t)
	v := Volume(1)
	v.SizeBytes, v.MaxFiles = 2*SizeBytes, 2*MaxFiles
	r.hold(t, v, SizeBytes*5/4)
	data := r.archiveOf(t, v.UID, "")
	if err := r.make2(t, data); !errors.Is(err, volume.ErrTooSmall) {
		t.Errorf("a volume that is too small: %v", err)
	}
	r.nothingOf(t, "too small")
	larger := Volume(2)
	larger.SizeBytes, larger.MaxFiles = v.SizeBytes, v.MaxFiles
	if err := importer.Import(t.Context(), larger, bytes.NewReader(data)); err != nil {
		t.Error(err)
	}
}

func archivesOfSnapshots(t *testing.T, r *rig) {
	exporter, _ := r.archiver(t)
	v := Volume(1)
	r.hold(t, v, 1<<20)
	v.Snapshots = []string{"snap-a"}
	r.apply(t, v)
	r.hold(t, v, 16<<20)
	if err := exporter.Export(t.Context(), v.UID, "snap-b", io.Discard); err == nil {
		t.Error("an archive of a snapshot that is not there was written")
	}
	if err := r.make2(t, r.archiveOf(t, v.UID, "snap-a")); err != nil {
		t.Fatal(err)
	}
	if s := r.ready(t, "vol-2"); s.UsedBytes > 8<<20 || s.UsedBytes < 1<<20 {
		t.Errorf("it is %+v", s)
	}
}
