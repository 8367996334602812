package layers

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// oneImage is a node that holds one image, with a root and a layer.
type oneImage struct {
	digest string
	image  environment.Image
}

func (o oneImage) Image(digest string) (environment.Image, error) {
	if digest != o.digest {
		return environment.Image{}, errors.New("it is not on this node")
	}
	return o.image, nil
}

// erofs makes an image with one file, which root owns.
func erofs(t *testing.T, name string) environment.Layer {
	t.Helper()
	needs.Program(t, "mkfs.erofs")
	tree, file := t.TempDir(), filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(filepath.Join(tree, name), []byte(name), 0o640); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.erofs", "--quiet", file, tree).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return environment.Layer{Path: file, Format: image.EROFS}
}

func newStore(t *testing.T) (*Store, string) {
	t.Helper()
	needs.Root(t, "mounts images")
	digest := string(image.DigestOf([]byte("foam")))
	s := New(filepath.Join(t.TempDir(), "layers"), oneImage{digest, environment.Image{Digest: digest, Layers: []environment.Layer{erofs(t, "root"), erofs(t, "own")}}}, slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		if err := s.Keep(nil); err != nil {
			t.Error(err)
		}
	})
	return s, digest
}

func TestAnImagesOwnLayerIsMountedReadOnlyWithItsMembersOwners(t *testing.T) {
	s, digest := newStore(t)
	ids := api.IDRange{First: 3_000_000_000, Count: 65536}
	for range 2 { // again changes nothing
		for _, as := range []api.IDRange{ids, {}} {
			if err := s.Mount(digest, as); err != nil {
				t.Fatal(err)
			}
		}
	}
	for owner, as := range map[uint32]api.IDRange{0: {}, ids.First: ids} {
		at := s.Path(digest, as)
		entries, err := os.ReadDir(at)
		if err != nil || len(entries) != 1 || entries[0].Name() != "own" {
			t.Errorf("%s has %v (%v), want the file of the own layer alone", at, entries, err)
		}
		info, err := os.Stat(filepath.Join(at, "own"))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Sys().(*syscall.Stat_t).Uid; got != owner && !s.plain {
			t.Errorf("the file at %s belongs to %d, want %d", at, got, owner)
		}
		if err := os.WriteFile(filepath.Join(at, "new"), nil, 0o644); !errors.Is(err, syscall.EROFS) {
			t.Errorf("a write to %s: %v", at, err)
		}
	}
	if err := s.Mount("sha256:"+strings.Repeat("0", 64), ids); err == nil || !strings.Contains(err.Error(), "is not on this node") {
		t.Errorf("an image that is not here: %v", err)
	}
}

func TestWhatNobodyHasIsTakenAwayAndWhatIsUsedStays(t *testing.T) {
	s, digest := newStore(t)
	ids := api.IDRange{First: 3_000_000_000, Count: 65536}
	if err := s.Mount(digest, ids); err != nil {
		t.Fatal(err)
	}
	at := s.Path(digest, ids)
	if err := s.Keep([]string{at}); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(filepath.Join(at, "own"))
	if err != nil {
		t.Fatalf("what was to be kept is gone: %v", err)
	}
	defer open.Close()
	again := New(s.dir, s.images, s.log) // as after a restart of the agent
	if err := again.Keep(nil); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(s.dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if table, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(table), s.dir) {
		t.Errorf("it is still mounted (%v)", err)
	}
	if _, err := open.Read(make([]byte, 3)); err != nil {
		t.Errorf("who has a file open can't read it any more: %v", err)
	}
}
