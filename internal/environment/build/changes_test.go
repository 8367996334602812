package build_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/environment/build"
	"github.com/nearmetal/nearmetal/internal/environment/recipe"
)

// changedTree is the upper directory of a member's root.
type changedTree struct {
	t   *testing.T
	dir string
}

func (c changedTree) write(name, text string, mode os.FileMode) {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
		c.t.Fatal(err)
	}
}

// whiteout says that a file of the base is gone.
func (c changedTree) whiteout(name string) {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), unix.Mknod(path, unix.S_IFCHR, 0)); err != nil {
		c.t.Fatal(err)
	}
}

// archive writes it to a file.
func (c changedTree) archive() string {
	c.t.Helper()
	in, err := os.Open(c.dir)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	path := filepath.Join(c.t.TempDir(), "changes")
	out, err := os.Create(path)
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = archive.Pack(c.t.Context(), archive.Source{Dir: in, VolumeBytes: 1 << 30, Scratch: c.t.TempDir(), Layer: true}, out)
	if err := errors.Join(err, out.Close()); err != nil {
		c.t.Fatal(err)
	}
	return path
}

const changesRecipe = `
name: saved
base: {environment: lower}
changes: sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
`

// buildChanges builds the layer of an archive.
func (s *site) buildChanges(text, changes string) (build.Result, error) {
	s.t.Helper()
	r, err := recipe.Parse([]byte(text))
	if err != nil {
		s.t.Fatal(err)
	}
	result, err := s.Run(s.t.Context(), build.Job{
		ID: "changes", Recipe: r, Scratch: s.scratch, Output: s.output, Bases: s.bases, Changes: changes, Progress: func(string, int) {}, Log: io.Discard,
	})
	if left, readErr := os.ReadDir(s.scratch); readErr != nil || len(left) > 0 {
		s.t.Errorf("the build left in its scratch: %v, %v", left, readErr)
	}
	return result, err
}

func lowerBase(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	s.tinyRoot("tiny")
	s.write("tiny/etc/gone", "gone", 0o644)
	s.write("tiny/opt/old/file", "old", 0o644)
	s.mustBuild("name: lower\nbase: {directory: tiny}\nrequirements: {memory: 1GiB}\n")
	return s
}

func TestChangedFilesBecomeALayerOverTheirBase(t *testing.T) {
	s := lowerBase(t)
	c := changedTree{t, t.TempDir()}
	c.write("opt/solver/run", "#!/bin/sh\n", 0o755|os.ModeSetuid)
	c.write("etc/shadow", "root:$2a$04$secret:20000:0:99999:7:::\nsolver:!:20000::::::\n", 0o640)
	c.write("opt/old/new", "new", 0o600)
	c.whiteout("etc/gone")
	if err := errors.Join(unix.Setxattr(filepath.Join(c.dir, "opt/old"), "trusted.overlay.opaque", []byte("y"), 0), os.Chown(filepath.Join(c.dir, "opt/old/new"), 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	changes := c.archive()
	result, err := s.buildChanges(changesRecipe, changes)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.buildChanges(changesRecipe, changes); err != nil || again.Digest != result.Digest {
		t.Errorf("the same changes made %s and %s, %v", result.Digest, again.Digest, err)
	}
	m := result.Manifest
	if base := s.bases["lower"].Manifest; m.Root.Digest != base.Root.Digest || len(m.Layers) != 1 || m.Requirements.MemoryBytes != 1<<30 || !slices.Equal(m.Stacks, base.Stacks) {
		t.Errorf("the manifest is %+v, want a layer over %+v", m, base)
	}
	root := s.mount(m)
	if info, err := os.Stat(filepath.Join(root, "opt/solver/run")); err != nil || info.Mode() != 0o755|os.ModeSetuid {
		t.Errorf("the program: %v, %v", info, err)
	}
	if got := read(t, filepath.Join(root, "etc/shadow")); got != "root:*:20000:0:99999:7:::\nsolver:!:20000::::::\n" {
		t.Errorf("the passwords are %q", got)
	}
	var stat unix.Stat_t
	if err := unix.Stat(filepath.Join(root, "opt/old/new"), &stat); err != nil || stat.Uid != 1000 {
		t.Errorf("a file of a user is of %d, %v", stat.Uid, err)
	}
	for _, gone := range []string{"etc/gone", "opt/old/file"} {
		if _, err := os.Lstat(filepath.Join(root, gone)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", gone, err)
		}
	}
	// Over it goes what a member that has it changes.
	s.bases["saved"] = build.Base{Manifest: m, Blobs: s.output}
	c = changedTree{t, t.TempDir()}
	c.write("opt/second", "second", 0o644)
	second, err := s.buildChanges(strings.Replace(strings.Replace(changesRecipe, "saved", "again", 1), "lower", "saved", 1), c.archive())
	if err != nil || len(second.Manifest.Layers) != 2 || second.Manifest.Layers[0].Digest != m.Layers[0].Digest {
		t.Fatalf("over what was saved: %+v, %v", second.Manifest, err)
	}
	root = s.mount(second.Manifest)
	if got := read(t, filepath.Join(root, "opt/second")) + read(t, filepath.Join(root, "opt/old/new")); got != "secondnew" {
		t.Errorf("both layers have %q", got)
	}
	// Without a change there is no layer.
	result, err = s.buildChanges(changesRecipe, changedTree{t, t.TempDir()}.archive())
	if err != nil || len(result.Manifest.Layers) != 0 {
		t.Errorf("without changes: %+v, %v", result.Manifest, err)
	}
}

// aKey looks like a private key.
var aKey = "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("MIGHAgEAMBMGByqGSM49AgEGCCqGSM49", 5) + "\n-----END PRIVATE KEY-----\n"

func TestALayerIsReadBackAndHoldsNoKeys(t *testing.T) {
	s := lowerBase(t)
	for name, tc := range map[string]struct {
		path, text, more, want string
	}{
		"a private key":              {"home/hpc/key", aKey, "", `private keys are in "/home/hpc/key"`},
		"a private key that is kept": {"home/hpc/key", aKey, "keep_keys: [/home/hpc/key]\n", ""},
		"what is never saved":        {"etc/machine-id", "1", "", "/etc/machine-id"},
		"a key of the product":       {"etc/nearmetal/ssh/id_ed25519", aKey, "keep_keys: [/etc/nearmetal/ssh/id_ed25519]\n", "/etc/nearmetal"},
	} {
		c := changedTree{t, t.TempDir()}
		c.write(tc.path, tc.text, 0o600)
		_, err := s.buildChanges(changesRecipe+tc.more, c.archive())
		var failure *build.Failure
		if tc.want == "" && err != nil || tc.want != "" && (!errors.As(err, &failure) || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestChangesThatAreDamagedOrMissingMakeNothing(t *testing.T) {
	s := lowerBase(t)
	c := changedTree{t, t.TempDir()}
	c.write("opt/a", "a", 0o600)
	data, err := os.ReadFile(c.archive())
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut")
	if err := os.WriteFile(cut, data[:len(data)-1100], 0o600); err != nil {
		t.Fatal(err)
	}
	var failure *build.Failure
	if _, err := s.buildChanges(changesRecipe, cut); !errors.As(err, &failure) || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("one that is cut: %v", err)
	}
	if _, err := s.buildChanges(changesRecipe, ""); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("none: %v", err)
	}
}
