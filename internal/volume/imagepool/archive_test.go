package imagepool_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/imagepool"
	"github.com/nearmetal/nearmetal/internal/volume/volumetest"
)

// TestAProcessThatIsKilledAmidAnArchiveLeavesNothing needs a build with -tags failpoints.
func TestAProcessThatIsKilledAmidAnArchiveLeavesNothing(t *testing.T) {
	needPrograms(t)
	dir := filepath.Join(inMemory(t), "pool")
	p := newPool(t, dir)
	if err := p.Apply(t.Context(), made()); err != nil {
		t.Fatal(err)
	}
	hold(t, p, "held")
	before := filesIn(t, filepath.Join(dir, "images"))
	for _, failpoint := range []string{"imagepool.after-freeze", "reflink.after-copy", "imagepool.after-mount-copy"} {
		crash(t, failpoint, doomed{Dir: dir, Volume: made(), Export: true})
		p = newPool(t, dir)
		sane(t, p, dir, failpoint, true)
		if files := filesIn(t, filepath.Join(dir, "images")); !slices.Equal(files, before) {
			t.Errorf("after a crash at %s there are the files %q", failpoint, files)
		}
		hold(t, p, "held")
	}
	path := filepath.Join(t.TempDir(), "archive")
	out, err := os.Create(path)
	if err := errors.Join(err, p.Export(t.Context(), "vol-1", "", out), out.Close()); err != nil {
		t.Fatal(err)
	}
	waits := volumetest.Volume(2)
	waits.Origin = &api.VolumeOrigin{Upload: true}
	for _, failpoint := range []string{
		"imagepool.after-record", "reflink.after-draft", "imagepool.after-mount-draft", "archive.after-file", "imagepool.after-unpack", "reflink.before-commit",
	} {
		crash(t, failpoint, doomed{Dir: dir, Volume: waits, Archive: path})
		p = newPool(t, dir)
		sane(t, p, dir, failpoint, true)
		for _, mounted := range left(t, dir) {
			if filepath.Base(mounted) == "vol-2" {
				t.Errorf("after a crash at %s %s is mounted", failpoint, mounted)
			}
		}
		if s := stateOf(t, p, "vol-2"); s == nil || s.Ready {
			t.Errorf("after a crash at %s it is %+v", failpoint, s)
		}
		if err := p.Apply(t.Context(), waits); !errors.Is(err, volume.ErrNoContent) {
			t.Errorf("after a crash at %s it may be made without its archive: %v", failpoint, err)
		}
	}
	crash(t, "reflink.after-commit", doomed{Dir: dir, Volume: waits, Archive: path})
	p = newPool(t, dir)
	if s := stateOf(t, p, "vol-2"); s == nil || !s.Ready || s.UsedBytes < 1<<20 {
		t.Errorf("after a crash behind its last step it is %+v", s)
	}
	detach := made()
	detach.Attachments = nil
	if err := p.Apply(t.Context(), detach); err != nil {
		t.Fatal(err)
	}
	complete(t, p, dir, waits, true)
}

// stateOf returns what a pool finds of a volume.
func stateOf(t *testing.T, p *imagepool.Pool, uid string) *volume.State {
	t.Helper()
	all, err := p.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if all[i].UID == uid {
			return &all[i]
		}
	}
	return nil
}

// TestAnImportAfterAKillIsWhole needs a build with -tags failpoints.
func TestAnImportAfterAKillIsWhole(t *testing.T) {
	needPrograms(t)
	dir := filepath.Join(inMemory(t), "pool")
	p := newPool(t, dir)
	if err := p.Apply(t.Context(), made()); err != nil {
		t.Fatal(err)
	}
	hold(t, p, "held")
	path := filepath.Join(t.TempDir(), "archive")
	out, err := os.Create(path)
	if err := errors.Join(err, p.Export(t.Context(), "vol-1", "", out), out.Close()); err != nil {
		t.Fatal(err)
	}
	waits := volumetest.Volume(2)
	waits.Origin = &api.VolumeOrigin{Upload: true}
	crash(t, "imagepool.after-unpack", doomed{Dir: dir, Volume: waits, Archive: path})
	p = newPool(t, dir)
	in, err := os.Open(path)
	if err := errors.Join(err, p.Import(t.Context(), waits, in)); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	detach := made()
	detach.Attachments = nil
	if err := p.Apply(t.Context(), detach); err != nil {
		t.Fatal(err)
	}
	complete(t, p, dir, waits, true)
}
