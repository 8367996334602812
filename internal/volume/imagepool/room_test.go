package imagepool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/imagepool"
	"github.com/nearmetal/nearmetal/internal/volume/reflink"
	"github.com/nearmetal/nearmetal/internal/volume/volumetest"
)

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

// contains reports whether a file has a pattern anywhere in it.
func contains(t *testing.T, path, pattern string) bool {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	chunk, kept := make([]byte, 4<<20), 0
	for {
		n, err := file.Read(chunk[kept:])
		if bytes.Contains(chunk[:kept+n], []byte(pattern)) {
			return true
		}
		if errors.Is(err, io.EOF) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		kept = copy(chunk, chunk[max(0, kept+n-len(pattern)):kept+n])
	}
}

func TestWhatAPurgedVolumeHeldCanNotBeReadByTheNext(t *testing.T) {
	needPrograms(t)
	dir := t.TempDir()
	p := newPool(t, dir)
	v, a := made(), volumetest.Attachment(1)
	if err := p.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	const pattern = "what-the-first-owner-has-written" // 32 bytes
	if err := volumetest.Write(t, p, v.UID, a, pattern, 40<<20); err != nil {
		t.Fatal(err)
	}
	// In a snapshot, too: its blocks are shared.
	if err := errors.Join(p.Apply(t.Context(), withSnapshot(v)), p.Apply(t.Context(), detached(v)), p.Purge(t.Context(), v.UID, 1)); err != nil {
		t.Fatal(err)
	}
	next := fill(t, p)
	if contains(t, filepath.Join(dir, "images", next.UID, "volume"), pattern) {
		t.Error("the next volume has what the first held")
	}
	// Without this, the test shows nothing: the blocks have not been overwritten.
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !contains(t, filepath.Join(dir, "pool.img"), pattern) {
		t.Error("the disk has nothing of the first volume any more")
	}
}

func TestAVolumeIsRewrittenThoughThePoolIsFull(t *testing.T) {
	needPrograms(t)
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
	fill(t, p)
	if d := p.Describe(t.Context()); d.HeldBytes != d.CapacityBytes {
		t.Fatalf("the pool is %+v, want it full", d)
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
	if err := volumetest.Write(t, p, v.UID, a, "more", 64<<20); err == nil || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("writing more than the volume has room for: %v", err)
	}
	v.Restore = &api.VolumeRestoreIntent{SnapshotUID: "snap-a", Number: 1}
	if err := errors.Join(p.Apply(t.Context(), detached(v)), p.Apply(t.Context(), v)); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(p.Dir(v.UID, a.ClusterUID), "old")); err != nil || bytes.Contains(data, []byte("new!")) || len(data) != 48<<20 {
		t.Errorf("the snapshot has %d bytes, %v; or what was written later", len(data), err)
	}
}

func TestAVolumeThatAnotherNamespaceHasMountedIsInUse(t *testing.T) {
	needPrograms(t)
	unshare := needs.Program(t, "unshare")
	p := newPool(t, t.TempDir())
	v := withSnapshot(made())
	if err := p.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	// As a member has it, whose processes are still there: at a place of its own.
	member := exec.Command(unshare, "--mount", "--propagation", "private", "sh", "-c", `mount --bind "$0" "$1" && echo ready && cat`,
		p.Dir(v.UID, "cluster-1"), t.TempDir())
	in, err := member.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := member.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := member.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	impatient := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	if err := p.Apply(impatient(), detached(v)); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("detaching it: got %v, want ErrInUse", err)
	}
	if err := p.Apply(impatient(), restored(detached(v))); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("going back to a snapshot: got %v, want ErrInUse", err)
	}
	if err := p.Purge(impatient(), v.UID, 1); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("purging it: got %v, want ErrInUse", err)
	}
	// Nor has another cluster it before the one that should have it no longer is gone.
	other := v
	other.Attachments = []volume.Attachment{volumetest.Attachment(2)}
	if err := p.Apply(impatient(), other); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("attaching it to another cluster: got %v, want ErrInUse", err)
	}
	if err := errors.Join(in.Close(), member.Wait()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Apply(t.Context(), other), p.Apply(t.Context(), detached(v)), p.Purge(t.Context(), v.UID, 1)); err != nil {
		t.Error(err)
	}
}

func TestCopiesOfMountsInOtherNamespacesGoWithThem(t *testing.T) {
	needPrograms(t)
	unshare := needs.Program(t, "unshare")
	dir := t.TempDir()
	p := newPool(t, dir)
	if err := p.Apply(t.Context(), made()); err != nil {
		t.Fatal(err)
	}
	// As a driver's helper would be, which has every mount of the host as it was.
	helper := exec.Command(unshare, "--mount", "--propagation", "private", "sh", "-c", "echo ready && cat")
	in, err := helper.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := helper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Apply(t.Context(), detached(made())), p.Close(t.Context())); err != nil {
		t.Error(err)
	}
	if all := left(t, dir); len(all) > 0 {
		t.Errorf("left in memory: %q", all)
	}
	if err := errors.Join(in.Close(), helper.Wait()); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyRootEntersWhatIsNotAttached(t *testing.T) {
	needPrograms(t)
	dir := t.TempDir()
	p := newPool(t, dir)
	if err := p.Apply(t.Context(), made()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"images": 0o700, "roots": 0o700, "records": 0o700, "pool.img": 0o600, "clusters": 0o711, "clusters/vol-1": 0o711} {
		info, err := os.Stat(filepath.Join(dir, name))
		if name == "images" { // the root of the file system that is mounted there
			info, err = os.Stat(filepath.Join(dir, name, "vol-1"))
		}
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
}

func TestWhatACrashLeftOfARecordIsPurged(t *testing.T) {
	needPrograms(t)
	dir := t.TempDir()
	p := newPool(t, dir)
	v := volumetest.Volume(1)
	if err := p.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"vol-1", "vol-11"} {
		if err := os.WriteFile(filepath.Join(dir, "records", "."+uid+".new-123"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := p.Observe(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("there is %+v, %v", all, err)
	}
	if err := p.Purge(t.Context(), v.UID, 1); err != nil {
		t.Fatal(err)
	}
	if files := filesIn(t, filepath.Join(dir, "records")); !slices.Equal(files, []string{".vol-11.new-123"}) {
		t.Errorf("left: %q", files)
	}
}

func TestAPoolIsNeverMadeOverAnother(t *testing.T) {
	needPrograms(t)
	dir := t.TempDir()
	// Something that can't be mounted, such as a pool on a disk with faults.
	broken := bytes.Repeat([]byte("what is left of a pool"), 1000)
	if err := os.WriteFile(filepath.Join(dir, "pool.img"), broken, 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPool(t, dir)
	if d := p.Describe(t.Context()); d.Kind != "" || len(d.Problems) == 0 {
		t.Errorf("it is %+v", d)
	}
	if err := p.Apply(t.Context(), volumetest.Volume(1)); err == nil {
		t.Error("it made a volume")
	}
	if data, err := os.ReadFile(filepath.Join(dir, "pool.img")); err != nil || !bytes.Equal(data, broken) {
		t.Errorf("the file was changed: %v", err)
	}
}

func TestAPoolSaysWhatItLacks(t *testing.T) {
	needs.Root(t, "looks at file systems")
	dir := t.TempDir()
	p, err := imagepool.New(imagepool.Config{Dir: dir, Images: reflink.New(reflink.Config{Dir: dir})})
	if err != nil {
		t.Fatal(err)
	}
	d := p.Describe(t.Context())
	if d.Kind != "" || d.CapacityBytes != 0 || len(d.Problems) == 0 || !strings.Contains(strings.Join(d.Problems, "\n"), "neither Btrfs nor an XFS with reflinks") {
		t.Errorf("it is %+v", d)
	}
	if err := p.Apply(t.Context(), volumetest.Volume(1)); err == nil {
		t.Error("it made a volume")
	}
	large := filepath.Join(dir, "large")
	p, err = imagepool.New(imagepool.Config{Dir: large, Images: reflink.New(reflink.Config{Dir: large, LoopBytes: 1 << 60})})
	if err != nil {
		t.Fatal(err)
	}
	if d := p.Describe(t.Context()); len(d.Problems) == 0 || !strings.Contains(strings.Join(d.Problems, "\n"), "does not fit on the disk") {
		t.Errorf("larger than the disk, it is %+v", d)
	}
	if _, err := os.Stat(large); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("looking at it made %s: %v", large, err)
	}
}

func TestASnapshotUnderLoadIsWhole(t *testing.T) {
	needPrograms(t)
	dir := t.TempDir()
	p := newPool(t, dir)
	v, a := made(), volumetest.Attachment(1)
	if err := p.Apply(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	busy := make(chan error, 1)
	begun := make(chan struct{})
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
	for i := range 4 {
		v.Snapshots = append(v.Snapshots, fmt.Sprint("snap-", i))
		if err := p.Apply(t.Context(), v); err != nil {
			t.Error(err)
		}
	}
	cancel()
	if err := <-busy; err != nil {
		t.Errorf("the member that writes meanwhile: %v", err)
	}
	// A snapshot needs no recovery, so that it may be read as it is.
	for _, snapshot := range v.Snapshots {
		path := filepath.Join(dir, "images", v.UID, "snapshot-"+snapshot)
		output, err := exec.Command("dumpe2fs", "-h", path).CombinedOutput()
		if err != nil || bytes.Contains(output, []byte("needs_recovery")) {
			t.Errorf("%s is of a file system in use: %v", snapshot, err)
		}
		if output, err := exec.Command("e2fsck", "-f", "-n", path).CombinedOutput(); err != nil && !bytes.Contains(output, []byte("orphan")) {
			t.Errorf("%s is not whole: %v: %s", snapshot, err, output)
		}
	}
}
