package imagepool_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/imagepool"
	"github.com/nearmetal/nearmetal/internal/volume/volumetest"
)

// blockVolume is volume 1 of the suite as a block volume, attached to cluster 1.
func blockVolume() volume.Volume {
	v := made()
	v.Block, v.MaxFiles = true, 0
	return v
}

// onDisk runs commands of qemu-io at the socket of a cluster.
func onDisk(t *testing.T, p *imagepool.Pool, uid, cluster string, commands ...string) (string, error) {
	t.Helper()
	var args []string
	if !slices.ContainsFunc(commands, func(c string) bool { return strings.HasPrefix(c, "write") }) {
		args = append(args, "-r")
	}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	out, err := exec.Command("qemu-io", append(args, "-f", "raw", "nbd+unix:///disk?socket="+p.Socket(uid, cluster))...).CombinedOutput()
	return string(out), err
}

// holds fails unless the disk has a byte again and again at the beginning.
func holds(t *testing.T, p *imagepool.Pool, uid, what string, pattern string) {
	t.Helper()
	if out, err := onDisk(t, p, uid, "cluster-1", "read -P "+pattern+" 0 1M"); err != nil || strings.Contains(out, "failed") {
		t.Errorf("%s: it does not hold %s: %v\n%s", what, pattern, err, out)
	}
}

func writes(t *testing.T, p *imagepool.Pool, uid, pattern string) {
	t.Helper()
	if out, err := onDisk(t, p, uid, "cluster-1", "write -P "+pattern+" 0 1M", "flush"); err != nil || strings.Contains(out, "failed") {
		t.Fatalf("writing: %v\n%s", err, out)
	}
}

func TestABlockVolumeIsServedAndNeverMounted(t *testing.T) {
	needPrograms(t)
	needs.Program(t, "qemu-io")
	dir := filepath.Join(inMemory(t), "pool")
	p := newPool(t, dir)
	apply := func(v volume.Volume) {
		t.Helper()
		if err := p.Apply(t.Context(), v); err != nil {
			t.Fatal(err)
		}
	}
	one := blockVolume()
	apply(one)
	apply(one)
	writes(t, p, one.UID, "1")
	state := func() volume.State {
		t.Helper()
		all, err := p.Observe(t.Context())
		i := slices.IndexFunc(all, func(s volume.State) bool { return s.UID == one.UID })
		if err != nil || i < 0 {
			t.Fatalf("%+v, %v", all, err)
		}
		return all[i]
	}
	if s := state(); !s.Ready || s.SizeBytes != one.SizeBytes || s.UsedBytes != one.SizeBytes || s.MaxFiles != 0 || !slices.Equal(s.Attached, []string{"cluster-1"}) {
		t.Errorf("it is %+v", s)
	}
	if all := left(t, dir); len(all) != 2 { // the pool's own mount and device
		t.Errorf("a host has of it: %q", all)
	}

	one.Snapshots = []string{"snap-a"}
	apply(one)
	writes(t, p, one.UID, "2")
	one.Restore = &api.VolumeRestoreIntent{SnapshotUID: "snap-a", Number: 1}
	detach := one
	detach.Attachments = nil
	if err := p.Purge(t.Context(), one.UID, one.Generation); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("it is purged while it is attached: %v", err)
	}
	apply(detach)
	apply(one)
	holds(t, p, one.UID, "after a restore", "1")

	one.SizeBytes *= 2
	apply(one)
	writes(t, p, one.UID, "3")
	if out, err := onDisk(t, p, one.UID, "cluster-1", "write -P 4 "+sizeText(one.SizeBytes-4096)+" 4096"); err != nil || strings.Contains(out, "failed") {
		t.Errorf("the room it grew by can't be written: %v\n%s", err, out)
	}
	smaller := one
	smaller.SizeBytes /= 2
	if err := p.Apply(t.Context(), smaller); !errors.Is(err, volume.ErrTooSmall) {
		t.Errorf("it shrinks: %v", err)
	}

	two := blockVolume()
	two.UID, two.Origin, two.SizeBytes = "vol-2", &api.VolumeOrigin{VolumeUID: one.UID, SnapshotUID: "snap-a"}, one.SizeBytes
	apply(two)
	holds(t, p, two.UID, "a clone", "1")

	readOnly := one
	readOnly.Attachments = []volume.Attachment{volumetest.Attachment(1), volumetest.Attachment(2)}
	for i := range readOnly.Attachments {
		readOnly.Attachments[i].ReadOnly = true
	}
	apply(readOnly)
	if out, err := onDisk(t, p, one.UID, "cluster-1", "write -P 5 0 4k"); err == nil && !strings.Contains(out, "failed") && !strings.Contains(out, "read-only") {
		t.Errorf("it is written to, but is read-only: %s", out)
	}
	holds(t, p, one.UID, "after a write in vain", "3")

	files := one
	files.Block, files.MaxFiles = false, 100
	if err := p.Apply(t.Context(), files); err == nil || !strings.Contains(err.Error(), "no host may mount") {
		t.Errorf("what a guest wrote is mounted: %v", err)
	}
	if err := p.Export(t.Context(), one.UID, "", nil); err == nil || !strings.Contains(err.Error(), "no files") {
		t.Errorf("it is exported: %v", err)
	}
	for _, uid := range []string{one.UID, two.UID} {
		gone := volume.Volume{UID: uid, Generation: 9, Purge: true}
		apply(gone)
		if err := p.Purge(t.Context(), uid, 9); err != nil {
			t.Error(err)
		}
	}
	if all, err := p.Observe(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("after the purge there is %+v, %v", all, err)
	}
	if files := filesIn(t, dir); !slices.Equal(files, []string{"pool.img"}) {
		t.Errorf("after the purge there are the files %q", files)
	}
}

func sizeText(bytes int64) string { return strconv.FormatInt(bytes, 10) }

// A volume that is a file system never becomes a disk of a machine: what the machine wrote there a host would mount later.
func TestAFileSystemIsNoBlockVolume(t *testing.T) {
	needPrograms(t)
	p := newPool(t, filepath.Join(inMemory(t), "pool"))
	v := made()
	if err := p.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	v.Block, v.MaxFiles, v.Attachments = true, 0, []volume.Attachment{volumetest.Attachment(2)}
	if err := p.Apply(t.Context(), v); err == nil || !strings.Contains(err.Error(), "no block volume") {
		t.Errorf("it is served: %v", err)
	}
	if _, err := os.Stat(p.Socket(v.UID, "cluster-2")); err == nil {
		t.Error("there is a socket")
	}
}

// TestABlockVolumeSurvivesKills needs a build with -tags failpoints.
func TestABlockVolumeSurvivesKills(t *testing.T) {
	needPrograms(t)
	needs.Program(t, "qemu-io")
	dir := filepath.Join(inMemory(t), "pool")
	p := newPool(t, dir)
	one := blockVolume()
	for _, failpoint := range []string{"imagepool.after-record", "imagepool.after-format", "reflink.before-commit", "diskserver.after-pid", "diskserver.after-start", "imagepool.after-disk"} {
		crash(t, failpoint, doomed{Dir: dir, Volume: one})
		p = newPool(t, dir)
		if _, err := p.Observe(t.Context()); err != nil {
			t.Fatalf("after a crash at %s: %v", failpoint, err)
		}
	}
	if err := p.Apply(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	writes(t, p, one.UID, "1")
	one.Attachments = nil
	crash(t, "imagepool.after-disk-end", doomed{Dir: dir, Volume: one})
	p = newPool(t, dir)
	one.Attachments = []volume.Attachment{volumetest.Attachment(1)}
	if err := p.Apply(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	holds(t, p, one.UID, "after kills", "1")
	crash(t, "imagepool.before-forget", doomed{Dir: dir, Volume: volume.Volume{UID: one.UID, Generation: 9, Purge: true}})
	p = newPool(t, dir)
	if err := p.Purge(t.Context(), one.UID, 9); err != nil {
		t.Fatal(err)
	}
	if files := filesIn(t, dir); !slices.Equal(files, []string{"pool.img"}) {
		t.Errorf("after the purge there are the files %q", files)
	}
}
