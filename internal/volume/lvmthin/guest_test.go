package lvmthin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/diskserver"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/ext4"
	"github.com/nearmetal/nearmetal/internal/volume/imagepool"
	"github.com/nearmetal/nearmetal/internal/volume/loopdev"
	"github.com/nearmetal/nearmetal/internal/volume/lvmthin"
	"github.com/nearmetal/nearmetal/internal/volume/mounts"
	"github.com/nearmetal/nearmetal/internal/volume/volumetest"
)

// The volume group that these tests make on a loop device, and what is in it. The hyphen is doubled in names of devices.
const (
	group       = "nmtest-vg"
	pool        = "thin"
	poolMiB     = 700
	deviceStart = "nmtest--vg-nearmetal+"
)

// open returns the pool with the mounts in a directory, as a starting agent opens it.
func open(dir string) (*imagepool.Pool, error) {
	program, err := os.Executable() // see TestMain
	if err != nil {
		return nil, err
	}
	return imagepool.New(imagepool.Config{Dir: dir, Images: lvmthin.New(lvmthin.Config{Group: group, Pool: pool}), Program: program})
}

// lvm runs a command of LVM as an operator does in a machine without udev.
func lvm(t testing.TB, args ...string) string {
	t.Helper()
	args = slices.Insert(args, 1, "--config", "activation/udev_sync=0 activation/udev_rules=0 backup/archive=0")
	output, err := exec.Command("lvm", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", args, err, output)
	}
	return string(output)
}

// newGroup makes the volume group with a thin pool, and removes it after the test.
func newGroup(t testing.TB) {
	t.Helper()
	needs.Request(t, "NEARMETAL_LVM", "make test-volume-guest")
	needs.Root(t, "makes logical volumes")
	image := filepath.Join(inMemory(t), "disk.img")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, (poolMiB+100)<<20)); err != nil {
		t.Fatal(err)
	}
	device, err := loopdev.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(device.Close(), loopdev.Await(context.Background(), image)); err != nil {
			t.Error(err)
		}
	})
	lvm(t, "vgcreate", "-q", group, device.Name())
	t.Cleanup(func() { lvm(t, "vgremove", "-q", "-f", "-y", group) })
	lvm(t, "lvcreate", "-q", "-y", "--type", "thin-pool", "-L", fmt.Sprint(poolMiB, "M"), "-n", pool, group)
}

// inMemory returns a directory in memory.
func inMemory(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2g"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mounts.Unmount(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// newPool opens a pool that is closed when the test ends.
func newPool(t testing.TB, dir string) *imagepool.Pool {
	t.Helper()
	p, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// left are the mounts in a directory and the devices of volumes.
func left(t testing.TB, dir string) (all []string) {
	t.Helper()
	below, err := mounts.Below(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range below {
		all = append(all, m.Path)
	}
	nodes, err := filepath.Glob("/dev/mapper/" + deviceStart + "*")
	if err != nil {
		t.Fatal(err)
	}
	return append(all, nodes...)
}

// volumes lists the logical volumes that are volumes.
func volumes(t testing.TB) []string {
	t.Helper()
	return strings.Fields(lvm(t, "lvs", "--noheadings", "-o", "lv_name", "-S", "lv_tags=nearmetal", group))
}

func TestPoolContract(t *testing.T) {
	newGroup(t)
	lvm(t, "lvcreate", "-q", "-y", "-V", "64M", "--thinpool", group+"/"+pool, "-n", "others")
	const device = "/dev/mapper/nmtest--vg-others"
	content := bytes.Repeat([]byte("what others keep"), 1<<20)
	if err := os.WriteFile(device, content, 0); err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	dir := func(node int) string { return filepath.Join(parent, fmt.Sprint("node-", node)) }
	volumetest.Run(t, volumetest.Harness{
		Files: true, GrowsDetached: !ext4.CanGrowMounted(),
		New: func(t *testing.T, node int) volume.Pool {
			t.Helper()
			t.Cleanup(func() { // after it was closed: all nodes have one volume group here, one after another
				if names := volumes(t); len(names) > 0 {
					lvm(t, "lvremove", "-q", "-f", "-y", "@nearmetal")
				}
			})
			return newPool(t, dir(node))
		},
		Hold: func(t *testing.T, _ int, p volume.Pool, uid, cluster string, bytes int64) {
			t.Helper()
			var number int
			if _, err := fmt.Sscanf(cluster, "cluster-%d", &number); err != nil {
				t.Fatal(err)
			}
			if err := volumetest.Write(t, p, uid, volumetest.Attachment(number), "held", bytes); err != nil {
				t.Fatal(err)
			}
		},
		Left: func(t *testing.T, node int) []string { t.Helper(); return left(t, dir(node)) },
	})
	if now, err := readDevice(device, len(content)); err != nil || !bytes.Equal(now, content) {
		t.Errorf("a logical volume of others was changed: %v", err)
	}
}

func readDevice(path string, count int) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content := make([]byte, count)
	_, err = io.ReadFull(file, content)
	return content, err
}

// doomed is what a process that will crash does, by its environment.
type doomed struct {
	Dir    string
	Volume volume.Volume
	Export bool
}

const doomedVariable = "NEARMETAL_TEST_DOOMED_VOLUME"

// TestMain is what serves a block volume, too.
func TestMain(m *testing.M) {
	if os.Args[0] == diskserver.Name {
		_ = diskserver.Hold()
		os.Exit(1)
	}
	if text := os.Getenv(doomedVariable); text != "" {
		if err := beDoomed(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// beDoomed returns only when no failpoint killed the process.
func beDoomed(text string) error {
	var job doomed
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return err
	}
	p, err := open(job.Dir)
	if err != nil {
		return err
	}
	if job.Export {
		return p.Export(context.Background(), job.Volume.UID, "", io.Discard)
	}
	return p.Apply(context.Background(), job.Volume)
}

// crash does a job in a process that is killed at the failpoint.
func crash(t *testing.T, failpoint string, job doomed) {
	t.Helper()
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "NEARMETAL_FAILPOINT="+failpoint, fmt.Sprintf("%s=%s", doomedVariable, text))
	output, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		needs.Missing(t, "this build has no failpoints (make test-volume-guest builds them in, with -tags failpoints)")
	case !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL:
		t.Fatalf("the process was not killed at %s: %v: %s", failpoint, err, strings.TrimSpace(string(output)))
	}
}

// The decisions at which a process is killed, about volume 1; volume 2 begins as its snapshot.
func made() volume.Volume {
	v := volumetest.Volume(1)
	v.Attachments = []volume.Attachment{volumetest.Attachment(1)}
	return v
}

func withSnapshot(v volume.Volume) volume.Volume { v.Snapshots = []string{"snap-a"}; return v }
func detached(v volume.Volume) volume.Volume     { v.Attachments = nil; return v }
func purged(v volume.Volume) volume.Volume       { v.Purge = true; return detached(v) }

func sized(v volume.Volume, bytes int64) volume.Volume { v.SizeBytes = bytes; return v }

func restored(v volume.Volume) volume.Volume {
	v.Restore = &api.VolumeRestoreIntent{SnapshotUID: "snap-a", Number: 1}
	return v
}

func cloned() volume.Volume {
	v := volumetest.Volume(2)
	v.Origin = &api.VolumeOrigin{VolumeUID: "vol-1", SnapshotUID: "snap-a"}
	return v
}

const larger = 2 * volumetest.SizeBytes

func TestAProcessThatIsKilledAtAnyStepLeavesTheOldOrTheNew(t *testing.T) {
	newGroup(t)
	one := made()
	for _, c := range []struct {
		name       string
		before     []volume.Volume // carried out; the file is written after the first
		doomed     volume.Volume
		failpoints []string
	}{
		{"a volume is made", nil, one, []string{"lvmthin.after-draft", "imagepool.after-format", "lvmthin.before-commit", "lvmthin.after-commit"}},
		{"a snapshot is made", []volume.Volume{one}, withSnapshot(one), []string{"lvmthin.after-share", "lvmthin.before-snapshot", "lvmthin.after-snapshot"}},
		{"a snapshot is removed", []volume.Volume{one, withSnapshot(one)}, one, []string{"lvmthin.after-remove-snapshot"}},
		{"a volume goes back", []volume.Volume{one, detached(withSnapshot(one))}, restored(detached(withSnapshot(one))), []string{
			"lvmthin.before-commit", "lvmthin.after-old", "lvmthin.after-commit", "imagepool.after-restore",
		}},
		{"a volume shrinks", []volume.Volume{sized(one, larger), detached(sized(one, larger))}, detached(one), []string{
			"imagepool.after-rework", "lvmthin.after-trim", "lvmthin.before-commit", "lvmthin.after-old", "lvmthin.after-commit",
		}},
		{"a volume grows", []volume.Volume{one, detached(one)}, sized(detached(one), larger), []string{"lvmthin.after-extend", "lvmthin.after-resize"}},
		{"a volume begins as a snapshot", []volume.Volume{one, withSnapshot(one)}, cloned(), []string{"imagepool.after-format", "lvmthin.after-commit"}},
		{"a volume is purged", []volume.Volume{one, detached(withSnapshot(one))}, purged(one), []string{"lvmthin.after-remove", "imagepool.before-forget"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pool")
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
				if s := stateOf(t, p, "vol-1"); len(c.before) > 0 && !c.doomed.Purge && (s == nil || !s.Ready) {
					t.Fatalf("after a crash at %s volume 1 is not ready: %+v", failpoint, s)
				}
			}
			complete(t, p, dir, c.doomed, len(c.before) > 0)
		})
	}
}

func TestWhatAVolumeGrewByIsGivenBackIfItShouldNotAfterAll(t *testing.T) {
	newGroup(t)
	dir := filepath.Join(t.TempDir(), "pool")
	p := newPool(t, dir)
	if err := p.Apply(t.Context(), made()); err != nil {
		t.Fatal(err)
	}
	hold(t, p, "held")
	if err := p.Apply(t.Context(), detached(made())); err != nil {
		t.Fatal(err)
	}
	crash(t, "lvmthin.after-extend", doomed{Dir: dir, Volume: sized(detached(made()), larger)})
	p = newPool(t, dir)
	if d := p.Describe(t.Context()); d.HeldBytes != larger {
		t.Errorf("after the crash the pool is %+v", d)
	}
	complete(t, p, dir, detached(made()), true)
}

// hold writes a file to volume 1, by the attachment to cluster 1.
func hold(t *testing.T, p *imagepool.Pool, name string) {
	t.Helper()
	if err := volumetest.Write(t, p, "vol-1", volumetest.Attachment(1), name, 1<<20); err != nil {
		t.Fatal(err)
	}
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
		s := stateOf(t, p, v.UID)
		if s == nil || s.SizeBytes != v.SizeBytes || len(s.Snapshots) != len(v.Snapshots) || (v.Restore != nil) != (s.Restored == 1) {
			t.Errorf("the volume is %+v", s)
		}
		v.Attachments = nil
		if err := p.Apply(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		device := "/dev/mapper/" + deviceStart + strings.ReplaceAll(v.UID, "-", "--") + "+volume"
		if output, err := exec.Command("e2fsck", "-f", "-n", device).CombinedOutput(); err != nil {
			t.Errorf("the file system is not whole: %v: %s", err, output)
		}
		// No room is lost to what a crash has left.
		want := v.SizeBytes
		for _, uid := range []string{"vol-1", "vol-2"} {
			if other := stateOf(t, p, uid); other != nil {
				if uid != v.UID {
					want += other.SizeBytes
				}
				for _, snapshot := range other.Snapshots {
					want += snapshot.HeldBytes
					if snapshot.HeldBytes < 1<<20 || snapshot.HeldBytes > other.SizeBytes/2 { // it has a file of 1 MiB
						t.Errorf("the snapshot holds %d bytes", snapshot.HeldBytes)
					}
				}
			}
		}
		if d := p.Describe(t.Context()); d.HeldBytes != want {
			t.Errorf("the pool is %+v, want %d bytes held", d, want)
		}
	}
	for _, uid := range []string{"vol-1", "vol-2"} {
		if err := p.Apply(t.Context(), detached(volume.Volume{UID: uid, Generation: 9, Purge: true})); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := p.Observe(t.Context()); err != nil || len(all) > 0 {
		t.Errorf("after the purge there is %+v, %v", all, err)
	}
	if names := volumes(t); len(names) > 0 {
		t.Errorf("after the purge there are the logical volumes %q", names)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := left(t, dir); len(all) > 0 {
		t.Errorf("left in memory: %q", all)
	}
}

func TestAProcessThatIsKilledAmidAnArchiveLeavesNothing(t *testing.T) {
	newGroup(t)
	dir := filepath.Join(t.TempDir(), "pool")
	p := newPool(t, dir)
	if err := p.Apply(t.Context(), made()); err != nil {
		t.Fatal(err)
	}
	hold(t, p, "held")
	for _, failpoint := range []string{"lvmthin.after-copy", "imagepool.after-mount-copy"} {
		crash(t, failpoint, doomed{Dir: dir, Volume: made(), Export: true})
		p = newPool(t, dir)
		if s := stateOf(t, p, "vol-1"); s == nil || !s.Ready {
			t.Errorf("after a crash at %s the volume is %+v", failpoint, s)
		}
		if names := volumes(t); !slices.Equal(names, []string{"nearmetal+vol-1+volume"}) {
			t.Errorf("after a crash at %s there are %q", failpoint, names)
		}
		hold(t, p, "held")
	}
	complete(t, p, dir, made(), true)
}

// fill takes all the room that a pool has left.
func fill(t *testing.T, p *imagepool.Pool) volume.Volume {
	t.Helper()
	d := p.Describe(t.Context())
	v := volumetest.Volume(99)
	v.SizeBytes = d.CapacityBytes - d.HeldBytes
	if err := p.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestAVolumeIsRewrittenThoughThePoolIsFull(t *testing.T) {
	newGroup(t)
	p := newPool(t, t.TempDir())
	v, a := made(), volumetest.Attachment(1)
	if err := p.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if err := volumetest.Write(t, p, v.UID, a, "old", 48<<20); err != nil {
		t.Fatal(err)
	}
	v = withSnapshot(v)
	if err := p.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	other := fill(t, p)
	if d := p.Describe(t.Context()); d.HeldBytes != d.CapacityBytes {
		t.Fatalf("the pool is %+v, want it full", d)
	}
	// The other volume takes all that it may, as far as its file system lets it.
	other.Attachments = []volume.Attachment{volumetest.Attachment(2)}
	if err := p.Apply(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := volumetest.Write(t, p, other.UID, other.Attachments[0], "all", other.SizeBytes); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("writing more than the other volume has room for: %v", err)
	}
	// Every block that the snapshot shares is copied now, block by block in no order.
	err := volumetest.As(t, p, v.UID, a, 1000, func(root *os.Root) error {
		file, err := root.OpenFile("old", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		block := bytes.Repeat([]byte("new!"), 4096/4)
		const blocks = 48 << 20 / 4096
		for i := range int64(blocks) {
			if _, err := file.WriteAt(block, i*7919%blocks*4096); err != nil {
				return err
			}
		}
		return errors.Join(file.Sync(), file.Close())
	})
	if err != nil {
		t.Fatalf("rewriting it: %v", err)
	}
	if err := volumetest.Write(t, p, v.UID, a, "more", 64<<20); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("writing more than the volume has room for: %v", err)
	}
	v.Restore = &api.VolumeRestoreIntent{SnapshotUID: "snap-a", Number: 1}
	if err := errors.Join(p.Apply(t.Context(), detached(v)), p.Apply(t.Context(), v)); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(p.Dir(v.UID, a.ClusterUID), "old")); err != nil || bytes.Contains(data, []byte("new!")) || len(data) != 48<<20 {
		t.Errorf("the snapshot has %d bytes, %v; or what was written later", len(data), err)
	}
	if health := strings.TrimSpace(lvm(t, "lvs", "--noheadings", "-o", "lv_health_status", group+"/"+pool)); health != "" {
		t.Errorf("the thin pool is %s", health)
	}
}

// What a member has written is on its way to the disk for a while, and is mapped only when the snapshot is made.
func TestASnapshotOfWhatIsNotWrittenYetIsRefusedWithoutRoom(t *testing.T) {
	newGroup(t)
	p := newPool(t, t.TempDir())
	v := made()
	if err := p.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	needs.Request(t, "NEARMETAL_GUEST", "make test-volume-guest") // the kernel is this test's alone
	const pauses = "/proc/sys/vm/dirty_writeback_centisecs"
	before, err := os.ReadFile(pauses)
	if err := errors.Join(err, os.WriteFile(pauses, []byte("0"), 0)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(pauses, before, 0); err != nil {
			t.Error(err)
		}
	})
	d := p.Describe(t.Context())
	filler := sized(volumetest.Volume(2), d.CapacityBytes-d.HeldBytes-16<<20)
	if err := p.Apply(t.Context(), filler); err != nil {
		t.Fatal(err)
	}
	err = volumetest.As(t, p, v.UID, v.Attachments[0], 1000, func(root *os.Root) error {
		return root.WriteFile("unwritten", bytes.Repeat([]byte("x"), 24<<20), 0o600) // more, and ext4 begins to write at once
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(t.Context(), withSnapshot(v)); !errors.Is(err, volume.ErrFull) {
		t.Errorf("a snapshot of 24 MiB where 16 MiB are left: got %v, want ErrFull", err)
	}
	if names := volumes(t); !slices.Equal(names, []string{"nearmetal+vol-1+volume", "nearmetal+vol-2+volume"}) {
		t.Errorf("there are %q", names)
	}
}

func TestWhatAPurgedVolumeHeldCanNotBeReadByTheNext(t *testing.T) {
	newGroup(t)
	p := newPool(t, t.TempDir())
	v := made()
	if err := p.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	const pattern = "what-the-first-owner-has-written" // 32 bytes
	if err := volumetest.Write(t, p, v.UID, volumetest.Attachment(1), pattern, 40<<20); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Apply(t.Context(), withSnapshot(v)), p.Apply(t.Context(), detached(v)), p.Purge(t.Context(), v.UID, 1)); err != nil {
		t.Fatal(err)
	}
	// Without this, the test shows nothing: the disk has it still, beneath the pool.
	if beneath, err := readDevice("/dev/mapper/nmtest--vg-thin_tdata", poolMiB<<20); err != nil || !bytes.Contains(beneath, []byte(pattern)) {
		t.Errorf("the disk has nothing of the first volume any more; %v", err)
	}
	// One byte in each chunk gives the next volume blocks everywhere.
	next := fill(t, p)
	path := "/dev/mapper/" + deviceStart + strings.ReplaceAll(next.UID, "-", "--") + "+volume"
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(1); at < next.SizeBytes; at += 64 << 10 {
		if _, err := device.WriteAt([]byte{1}, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(device.Sync(), device.Close()); err != nil {
		t.Fatal(err)
	}
	content, err := readDevice(path, int(next.SizeBytes))
	if err != nil || bytes.Contains(content, []byte(pattern)) {
		t.Errorf("the next volume has what the first held; %v", err)
	}
}

func TestASnapshotUnderLoadIsWhole(t *testing.T) {
	newGroup(t)
	p := newPool(t, t.TempDir())
	v, a := made(), volumetest.Attachment(1)
	if err := p.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	busy, begun := make(chan error, 1), make(chan struct{})
	go func() {
		busy <- volumetest.As(t, p, v.UID, a, 1000, func(root *os.Root) error {
			content := bytes.Repeat([]byte("x"), 20000)
			for i := 0; ctx.Err() == nil; i++ {
				if i == 200 {
					close(begun)
				}
				name := fmt.Sprint(i % 500)
				if err := errors.Join(root.WriteFile(name+".new", content, 0o600), root.Rename(name+".new", name)); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	<-begun
	for i := range 3 {
		v.Snapshots = append(v.Snapshots, fmt.Sprint("snap-", i))
		if err := p.Apply(t.Context(), v); err != nil {
			t.Error(err)
		}
	}
	cancel()
	if err := <-busy; err != nil {
		t.Errorf("the member that writes meanwhile: %v", err)
	}
	for _, snapshot := range v.Snapshots {
		name := "nearmetal+vol-1+snapshot+" + snapshot
		lvm(t, "lvchange", "-q", "-ay", "-K", group+"/"+name)
		path := "/dev/mapper/nmtest--vg-" + strings.ReplaceAll(name, "-", "--")
		output, err := exec.Command("dumpe2fs", "-h", path).CombinedOutput()
		if err != nil || bytes.Contains(output, []byte("needs_recovery")) {
			t.Errorf("%s is of a file system in use: %v", snapshot, err)
		}
		if output, err := exec.Command("e2fsck", "-f", "-n", path).CombinedOutput(); err != nil && !bytes.Contains(output, []byte("orphan")) {
			t.Errorf("%s is not whole: %v: %s", snapshot, err, output)
		}
	}
}

// As where the agent has not CAP_SYS_RESOURCE, without which no mounted file system grows.
func TestAVolumeGrowsInADraft(t *testing.T) {
	newGroup(t)
	store := lvmthin.New(lvmthin.Config{Group: group, Pool: pool})
	draft, err := store.Draft(t.Context(), "vol-1", volumetest.SizeBytes)
	if err := errors.Join(err, ext4.Make(t.Context(), draft, volumetest.SizeBytes, 100, ext4.Owner{}), store.Commit("vol-1")); err != nil {
		t.Fatal(err)
	}
	if draft, err = store.Rework(t.Context(), "vol-1", volumetest.SizeBytes, larger+5<<20); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ext4.Resize(t.Context(), draft, larger+5<<20), store.Commit("vol-1"), store.Resize("vol-1", larger+5<<20)); err != nil {
		t.Fatal(err)
	}
	fits, err := ext4.Fits(store.Path("vol-1"), larger+5<<20)
	all, more := store.List()
	if err := errors.Join(err, more); err != nil || !fits || len(all["vol-1"]) != 1 || all["vol-1"][0].SizeBytes != larger+5<<20 || all["vol-1"][0].HeldBytes != larger+8<<20 {
		t.Errorf("it fits: %v; there is %+v, %v", fits, all, err)
	}
	if err := errors.Join(store.Remove(t.Context(), "vol-1"), store.Close(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestWhatIsOpenIsInUse(t *testing.T) {
	newGroup(t)
	p, store := newPool(t, t.TempDir()), lvmthin.New(lvmthin.Config{Group: group, Pool: pool})
	if err := errors.Join(p.Apply(t.Context(), made()), p.Apply(t.Context(), detached(made()))); err != nil {
		t.Fatal(err)
	}
	device, err := store.Open("vol-1")
	if err != nil {
		t.Fatal(err)
	}
	impatient, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for what, err := range map[string]error{
		"Await": store.Await(impatient, "vol-1"), "Remove": store.Remove(t.Context(), "vol-1"), "Close": store.Close(t.Context()),
	} {
		if !errors.Is(err, volume.ErrInUse) {
			t.Errorf("%s: got %v, want ErrInUse", what, err)
		}
	}
	if err := device.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Purge(t.Context(), "vol-1", 1); err != nil {
		t.Error(err)
	}
}

func TestAPoolSaysWhatItLacks(t *testing.T) {
	newGroup(t)
	lvm(t, "lvcreate", "-q", "-y", "-L", "8M", "-n", "thick", group)
	describe := func(group, pool string) string {
		d := lvmthin.New(lvmthin.Config{Group: group, Pool: pool}).Describe(t.Context())
		return d.Kind + strings.Join(d.Problems, "\n")
	}
	if d := describe(group, pool); d != "lvm" {
		t.Errorf("it is %s", d)
	}
	for _, c := range []struct{ group, pool, want string }{
		{"nmtest-other", pool, "there is no volume group nmtest-other; connect its disks, or make it: vgcreate nmtest-other DEVICE"},
		{group, "other", "volume group nmtest-vg has no thin pool named other; make it: lvcreate --type thin-pool -l 95%FREE -n other nmtest-vg"},
		{group, "thick", "volume group nmtest-vg has no thin pool named thick; make it: "},
	} {
		if d := describe(c.group, c.pool); !strings.HasPrefix(d, c.want) {
			t.Errorf("%s/%s: %s, want %s", c.group, c.pool, d, c.want)
		}
	}
	lvm(t, "lvchange", "-q", "-an", group+"/"+pool)
	if d := describe(group, pool); d != "lvm" {
		t.Errorf("of a pool without devices: %s", d)
	}
	lvm(t, "lvchange", "-q", "--zero", "n", group+"/"+pool)
	if d := describe(group, pool); !strings.HasSuffix(d, "run: lvchange --zero y nmtest-vg/thin") {
		t.Errorf("of a pool without zeroing: %s", d)
	}
	p := newPool(t, t.TempDir())
	if err := p.Apply(t.Context(), detached(made())); err == nil || !strings.Contains(err.Error(), "does not zero new blocks") {
		t.Errorf("a volume in a pool without zeroing: %v", err)
	}
	lvm(t, "lvchange", "-q", "--zero", "y", group+"/"+pool)
	if err := p.Apply(t.Context(), detached(made())); err != nil {
		t.Fatal(err)
	}
	lvm(t, "lvchange", "-q", "--zero", "n", group+"/"+pool)
	if err := p.Apply(t.Context(), made()); err == nil || !strings.Contains(err.Error(), "does not zero new blocks") {
		t.Errorf("attaching a volume in a pool that no longer zeroes: %v", err)
	}
}
