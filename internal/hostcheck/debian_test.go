package hostcheck

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// A Debian of its own, in a directory: packages are really installed there, from the machine's own package sources.
func TestPackagesAreInstalledOnceAndStartNothing(t *testing.T) {
	needs.Request(t, "NEARMETAL_GUESTS", "make test-testbed")
	needs.Root(t, "makes a Debian system")
	needs.Program(t, "mmdebstrap")
	root := filepath.Join(t.TempDir(), "root")
	if said, err := exec.CommandContext(t.Context(), "mmdebstrap", "--variant=apt", "--quiet", "bookworm", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	resolver, err := os.ReadFile("/etc/resolv.conf")
	if err = errors.Join(err, os.WriteFile(filepath.Join(root, "etc/resolv.conf"), resolver, 0o644)); err != nil {
		t.Fatal(err)
	}
	h := Host{Dir: root, Run: func(ctx context.Context, program string, args ...string) (string, error) {
		said, err := exec.CommandContext(ctx, "chroot", append([]string{root, program}, args...)...).CombinedOutput()
		return string(said), err
	}}
	w := Wanted{For: []Area{Builder}}
	f := Look(t.Context(), h)
	plan := Plan(f, w)
	want := []string{"apt-get update -q", "apt-get install -q -y --no-install-recommends crun erofs-utils mmdebstrap squashfs-tools"}
	if got := planned(plan); !slices.Equal(got, want) {
		t.Fatalf("planned %q, want %q", got, want)
	}
	if err := Apply(t.Context(), h, f, plan.Changes, func(c Change) { t.Log(c) }); err != nil {
		t.Fatal(err)
	}
	f = Look(t.Context(), h)
	if again := Plan(f, w); len(again.Changes) > 0 {
		t.Errorf("a second run would change %q", planned(again))
	}
	if _, there := f.Versions["crun"]; !there || !h.has("usr/bin/mmdebstrap") {
		t.Errorf("what was installed is not there; programs seen: %v", f.Versions)
	}
	if h.has(policyFile) {
		t.Error("the file that keeps services from starting is left")
	}
}
