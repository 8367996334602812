package imagepool_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/internal/volume"
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
	for _, failpoint := range []string{"imagepool.after-mount-draft", "imagepool.after-unpack", "reflink.before-commit"} {
		crash(t, failpoint, doomed{Dir: dir, Volume: volumetest.Volume(2), Archive: path})
		p = newPool(t, dir)
		sane(t, p, dir, failpoint, true)
		for _, mounted := range left(t, dir) {
			if filepath.Base(mounted) == "vol-2" {
				t.Errorf("after a crash at %s %s is mounted", failpoint, mounted)
			}
		}
		all, err := p.Observe(t.Context())
		if i := slices.IndexFunc(all, func(s volume.State) bool { return s.UID == "vol-2" }); err != nil || i < 0 || all[i].Ready {
			t.Errorf("after a crash at %s there is %+v, %v", failpoint, all, err)
		}
	}
	in, err := os.Open(path)
	if err := errors.Join(err, p.Import(t.Context(), volumetest.Volume(2), in)); err != nil {
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
	complete(t, p, dir, volumetest.Volume(2), true)
}
