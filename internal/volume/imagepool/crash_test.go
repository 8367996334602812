package imagepool_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/ext4"
	"github.com/nearmetal/nearmetal/internal/volume/imagepool"
	"github.com/nearmetal/nearmetal/internal/volume/volumetest"
)

// The decisions at which a process is killed, about volume 1, which holds a file and is attached unless it says otherwise; volume 2 begins as its
// snapshot.
func made() volume.Volume {
	v := volumetest.Volume(1)
	v.Attachments = []volume.Attachment{volumetest.Attachment(1)}
	return v
}

func withSnapshot(v volume.Volume) volume.Volume {
	v.Snapshots = []string{"snap-a"}
	return v
}

func detached(v volume.Volume) volume.Volume {
	v.Attachments = nil
	return v
}

func sized(v volume.Volume, bytes int64) volume.Volume {
	v.SizeBytes = bytes
	return v
}

func restored(v volume.Volume) volume.Volume {
	v.Restore = &api.VolumeRestoreIntent{SnapshotUID: "snap-a", Number: 1}
	return v
}

func purged(v volume.Volume) volume.Volume {
	v.Purge = true
	return v
}

func cloned() volume.Volume {
	v := volumetest.Volume(2)
	v.Origin = &api.VolumeOrigin{VolumeUID: "vol-1", SnapshotUID: "snap-a"}
	return v
}

const larger = 2 * volumetest.SizeBytes

// TestAProcessThatIsKilledAtAnyStepLeavesTheOldOrTheNew needs a build with -tags failpoints.
func TestAProcessThatIsKilledAtAnyStepLeavesTheOldOrTheNew(t *testing.T) {
	needPrograms(t)
	one := made()
	for _, c := range []struct {
		name string
		// before are decisions that were carried out; the file is written after the first.
		before []volume.Volume
		doomed volume.Volume
		// failpoints are where the process is killed, one after another.
		failpoints []string
	}{
		{"a volume is made", nil, one, []string{
			"imagepool.after-record", "reflink.after-pool-allocation", "reflink.after-pool-format", "reflink.after-pool-commit", "reflink.after-draft",
			"imagepool.after-format", "reflink.before-commit", "reflink.after-commit", "imagepool.after-mount", "imagepool.after-attach",
		}},
		{"a snapshot is made", []volume.Volume{one}, withSnapshot(one), []string{
			"imagepool.after-freeze", "reflink.before-clone", "reflink.after-clone", "reflink.before-commit", "reflink.after-commit",
		}},
		{"a snapshot is removed", []volume.Volume{one, withSnapshot(one)}, one, []string{"reflink.after-remove-snapshot"}},
		{"a volume goes back", []volume.Volume{one, detached(withSnapshot(one))}, restored(detached(withSnapshot(one))), []string{
			"reflink.before-commit", "reflink.after-commit", "imagepool.after-restore",
		}},
		{"a volume shrinks", []volume.Volume{sized(one, larger), detached(sized(one, larger))}, detached(one), []string{
			"imagepool.after-rework", "reflink.before-commit", "reflink.after-commit",
		}},
		{"a volume has shrunk", []volume.Volume{sized(one, larger), detached(sized(one, larger))}, detached(one), []string{"reflink.after-resize"}},
		{"a volume grows", []volume.Volume{one, detached(one)}, sized(detached(one), larger), []string{"reflink.after-resize"}},
		{"a volume begins as a snapshot", []volume.Volume{one, withSnapshot(one)}, cloned(), []string{
			"imagepool.after-format", "reflink.before-commit", "reflink.after-commit",
		}},
		{"a volume is detached", []volume.Volume{one}, detached(one), []string{"imagepool.after-detach"}},
		{"a volume is purged", []volume.Volume{one, detached(withSnapshot(one))}, purged(detached(one)), []string{
			"reflink.after-remove", "imagepool.before-forget",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(inMemory(t), "pool")
			p := newPool(t, dir)
			for i, v := range c.before {
				if err := p.Apply(t.Context(), v); err != nil {
					t.Fatal(err)
				}
				if i == 0 {
					hold(t, p, "held")
				}
			}
			for _, failpoint := range c.failpoints {
				crash(t, failpoint, doomed{Dir: dir, Volume: c.doomed})
				p = newPool(t, dir)
				sane(t, p, dir, failpoint, len(c.before) > 0 && !c.doomed.Purge)
			}
			complete(t, p, dir, c.doomed, len(c.before) > 0)
		})
	}
}

func TestAProcessThatIsKilledAmidGrowthWhileMountedLeavesTheOldOrTheNew(t *testing.T) {
	needPrograms(t)
	if !ext4.CanGrowMounted() {
		needs.Hardware(t, "this process has not CAP_SYS_RESOURCE")
	}
	dir := filepath.Join(inMemory(t), "pool")
	p := newPool(t, dir)
	if err := p.Apply(t.Context(), made()); err != nil {
		t.Fatal(err)
	}
	hold(t, p, "held")
	crash(t, "imagepool.after-grow", doomed{Dir: dir, Volume: sized(made(), larger)})
	p = newPool(t, dir)
	sane(t, p, dir, "imagepool.after-grow", true)
	complete(t, p, dir, sized(made(), larger), true)
}

// hold writes a file to volume 1, by the attachment to cluster 1.
func hold(t *testing.T, p *imagepool.Pool, name string) {
	t.Helper()
	if err := volumetest.Write(t, p, "vol-1", volumetest.Attachment(1), name, 1<<20); err != nil {
		t.Fatal(err)
	}
}

// sane checks what a crash has left: no file system is frozen, and volume 1 is whole if it was.
func sane(t *testing.T, p *imagepool.Pool, dir, failpoint string, there bool) {
	t.Helper()
	all, err := p.Observe(t.Context())
	if err != nil {
		t.Fatalf("after a crash at %s: %v", failpoint, err)
	}
	i := slices.IndexFunc(all, func(s volume.State) bool { return s.UID == "vol-1" })
	if there && (i < 0 || !all[i].Ready) {
		t.Fatalf("after a crash at %s volume 1 is not ready: %+v", failpoint, all)
	}
	root := filepath.Join(dir, "roots", "vol-1")
	if fd, err := unix.Open(root, unix.O_RDONLY, 0); err == nil {
		const thaw = 0xc0045878
		if err := unix.IoctlSetInt(fd, thaw, 0); err == nil {
			t.Errorf("after a crash at %s the volume was frozen", failpoint)
		}
		_ = unix.Close(fd)
	}
}

// complete carries out the decision, checks that the file is there and the file system whole, and that nothing is left after a purge.
func complete(t *testing.T, p *imagepool.Pool, dir string, v volume.Volume, held bool) {
	t.Helper()
	if err := p.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	v.Generation++
	if !v.Purge {
		v.Attachments = []volume.Attachment{volumetest.Attachment(1)}
		if err := p.Apply(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(p.Dir(v.UID, "cluster-1"), "held"))
		if held && (err != nil || len(data) != 1<<20) {
			t.Errorf("the file has %d bytes, %v", len(data), err)
		}
		all, err := p.Observe(t.Context())
		i := slices.IndexFunc(all, func(s volume.State) bool { return s.UID == v.UID })
		if err != nil || i < 0 || all[i].SizeBytes != v.SizeBytes || len(all[i].Snapshots) != len(v.Snapshots) || (v.Restore != nil) != (all[i].Restored == 1) {
			t.Errorf("the volume is %+v, %v", all, err)
		}
		v.Attachments = nil
		if err := p.Apply(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		if output, err := exec.Command("e2fsck", "-f", "-n", filepath.Join(dir, "images", v.UID, "volume")).CombinedOutput(); err != nil {
			t.Errorf("the file system is not whole: %v: %s", err, output)
		}
	}
	for _, uid := range []string{"vol-1", "vol-2"} {
		if uid != v.UID {
			w := volumetest.Volume(1)
			w.UID, w.Generation, w.Purge = uid, 9, true
			if err := p.Apply(t.Context(), w); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Purge(t.Context(), uid, 9); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := p.Observe(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("after the purge there is %+v, %v", all, err)
	}
	if files := filesIn(t, dir); !slices.Equal(files, []string{"pool.img"}) {
		t.Errorf("after the purge there are the files %q", files)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := left(t, dir); len(all) > 0 {
		t.Errorf("left in memory: %q", all)
	}
}

// filesIn lists the files below a directory, without directories.
func filesIn(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			name, _ := filepath.Rel(dir, path)
			all = append(all, name)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return all
}
