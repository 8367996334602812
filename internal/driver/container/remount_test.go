package container_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/patience"
	"github.com/nearmetal/nearmetal/internal/patience/patiencetest"
)

// given is a directory that a member may have.
func given(t *testing.T, m driver.Member) string {
	t.Helper()
	dir, owner := t.TempDir(), int(m.Assignment.UserIDs.First)
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, owner, owner)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAnAgentMayDieAmidARemount(t *testing.T) {
	for _, mark := range []string{"container.before-remount", "container.after-mount"} {
		for _, back := range []bool{false, true} {
			r := newRig(t, "crun")
			m := r.member(t)
			one, two := driver.Mount{Source: given(t, m), Path: "/volumes/one"}, driver.Mount{Source: given(t, m), Path: "/volumes/two"}
			m.Mounts = []driver.Mount{one}
			if err := r.Start(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			m.Mounts, m.Assignment.VolumesNumber = []driver.Mount{two}, 1
			crash(t, r, mark, doomed{StateDir: r.cfg.StateDir, Node: r.cfg.Node, MemberBinary: r.cfg.MemberBinary, Remount: true, Member: m})
			want := "/volumes/two"
			if back {
				m.Mounts, m.Assignment.VolumesNumber, want = []driver.Mount{one}, 2, "/volumes/one"
			}
			if err := r.open(t).Remount(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			if got := strings.Fields(r.run(t, m.Assignment.ID, "sh", "-c", "grep -o ' /volumes/[a-z]*' /proc/self/mountinfo")); len(got) != 1 || got[0] != want {
				t.Errorf("%s, taken back %t: it has %q mounted, want %s", mark, back, got, want)
			}
		}
	}
}

func TestAMemberCantKeepAVolumeByMovingIt(t *testing.T) {
	r := newRig(t, "crun")
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	r.run(t, id, "sh", "-c", "mkdir -p /tmp/a; ln -s /usr /tmp/link; touch /tmp/file")
	to := func(paths ...string) error {
		m.Assignment.VolumesNumber++
		m.Mounts = nil
		for _, p := range paths {
			m.Mounts = append(m.Mounts, driver.Mount{Source: given(t, m), Path: p})
		}
		return r.Remount(t.Context(), m)
	}
	for path, want := range map[string]string{
		"/tmp/link/data": "/tmp/link is no directory of the member", "/tmp/file": "/tmp/file is no directory of the member", "/usr/nothing/here": "none can be made there",
	} {
		if err := to(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a volume at %s: %v, want %q", path, err, want)
		}
	}
	if err := to("/tmp/a/data"); err != nil {
		t.Fatal(err)
	}
	r.run(t, id, "sh", "-c", `echo x > /tmp/a/data/file; mv /tmp/a "/tmp/b c\\d"`)
	if err := to(); err != nil {
		t.Fatal(err)
	}
	if got := r.run(t, id, "sh", "-c", `ls -A /tmp/b*/data; grep -c /data /proc/self/mountinfo; true`); strings.TrimSpace(got) != "0" {
		t.Errorf("after it was taken, the member has %q of the volume, want nothing", got)
	}
}

// TestAVolumeThatDoesNotAnswerBlocksNoRemount which gives and takes volumes whose files nobody can reach at the moment, and says of one that has to be
// looked up that it does not answer.
func TestAVolumeThatDoesNotAnswerBlocksNoRemount(t *testing.T) {
	disk := patiencetest.Mount(t)
	r := newRig(t, "crun")
	m := r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	remount := func(mounts ...driver.Mount) error {
		m.Assignment.VolumesNumber++
		m.Mounts = mounts
		return r.Remount(t.Context(), m)
	}
	far, near := driver.Mount{Source: disk.Dir, Path: "/volumes/far"}, driver.Mount{Source: given(t, m), Path: "/volumes/near"}
	disk.Silence()
	for _, mounts := range [][]driver.Mount{{far}, {far, near}, {near}} {
		if err := remount(mounts...); err != nil {
			t.Errorf("remount to %v: %v", mounts, err)
		}
		var want []string
		for _, v := range mounts {
			want = append(want, v.Path)
		}
		got := strings.Fields(r.run(t, m.Assignment.ID, "sh", "-c", "grep -o ' /volumes/[a-z]*' /proc/self/mountinfo"))
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("it has %q mounted, want %q", got, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		disk.Await(1) // as nothing before has asked it
		cancel()
	}()
	m.Assignment.VolumesNumber++
	m.Mounts = []driver.Mount{near, {Source: filepath.Join(disk.Dir, "file"), Path: "/volumes/deep"}}
	if err := r.Remount(ctx, m); !errors.Is(err, patience.ErrSilent) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "the volume at /volumes/deep") {
		t.Errorf("remount with a directory that has to be looked up: %v", err)
	}
}
