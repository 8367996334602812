package imagepool_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/imagepool"
	"github.com/nearmetal/nearmetal/internal/volume/reflink"
	"github.com/nearmetal/nearmetal/internal/volume/volumetest"
)

const boundsVariable = "NEARMETAL_VOLUME_BOUNDS"

// boundsPool is a pool in a file of so many bytes, which programs of members get to.
func boundsPool(t *testing.T, bytes int64, sparse bool) *imagepool.Pool {
	t.Helper()
	needs.Request(t, boundsVariable, "make test-volume-bounds")
	needPrograms(t)
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	p, err := imagepool.New(imagepool.Config{Dir: dir, Images: reflink.New(reflink.Config{Dir: dir, LoopBytes: bytes, Sparse: sparse})})
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

// freeBytes is what the user of a member may still write in a directory.
func freeBytes(t *testing.T, dir string) int64 {
	t.Helper()
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	return int64(s.Bavail) * s.Bsize
}

// fio runs fio in an attached volume as the user of the cluster's members. It writes one file, block by block, and reads it back.
func fio(t *testing.T, p volume.Pool, v volume.Volume, file string, bytes int64) (string, error) {
	t.Helper()
	id := v.Attachments[0].UserIDs.First + 1000
	cmd := exec.Command(needs.Program(t, "fio"), "--name=bound", "--filename="+file, "--rw=write", "--bs=1M", "--ioengine=psync", "--fallocate=none", "--end_fsync=1",
		"--verify=crc32c", "--do_verify=1", "--verify_fatal=1", fmt.Sprint("--size=", bytes))
	cmd.Dir = p.Dir(v.UID, v.Attachments[0].ClusterUID)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	output, err := cmd.CombinedOutput()
	return string(output), err
}

// TestAVolumeThatIsFullDisturbsNoOther: one volume is filled again and again, while another in the same pool, which has nothing left, is written to its
// full size.
func TestAVolumeThatIsFullDisturbsNoOther(t *testing.T) {
	p := boundsPool(t, 1<<30, false)
	one := sized(made(), 128<<20)
	if err := p.Apply(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	other := fill(t, p)
	other.Attachments = []volume.Attachment{volumetest.Attachment(2)}
	if err := p.Apply(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if d := p.Describe(t.Context()); d.Kind != "loop" || d.HeldBytes != d.CapacityBytes {
		t.Fatalf("the pool is %+v, want it full, in a file", d)
	}
	dir := p.Dir(one.UID, one.Attachments[0].ClusterUID)
	room, wanted := freeBytes(t, dir), freeBytes(t, p.Dir(other.UID, other.Attachments[0].ClusterUID))
	wanted = wanted / (1 << 20) * (1 << 20)
	done := make(chan error, 1)
	go func() {
		output, err := fio(t, p, other, "whole", wanted-2<<20) // what ext4 needs to find the blocks is less
		if err != nil {
			err = fmt.Errorf("%w: %s", err, output)
		}
		done <- err
	}()
	rounds := 0
	for running := true; running; rounds++ {
		output, err := fio(t, p, one, "too-large", 2*one.SizeBytes)
		if err == nil || !strings.Contains(output, "No space left on device") {
			t.Fatalf("writing twice the size of a volume: %v: %s", err, output)
		}
		if left := freeBytes(t, dir); left > room/100 {
			t.Errorf("the writer got %d bytes of %d", room-left, room)
		}
		if err := os.Remove(filepath.Join(dir, "too-large")); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			running = false
			if err != nil {
				t.Errorf("writing the other volume meanwhile: %v", err)
			}
		default:
		}
	}
	t.Logf("a volume of %d MiB was filled %d times, until its writer got ENOSPC, while %d MiB of %d MiB were written to another and read back", one.SizeBytes>>20, rounds,
		wanted>>20-2, other.SizeBytes>>20)
}

// TestAVolumeHoldsAMillionFilesAndNoMoreThanItsBound also measures what a million files cost those who make, copy and delete volumes.
func TestAVolumeHoldsAMillionFilesAndNoMoreThanItsBound(t *testing.T) {
	p := boundsPool(t, 100<<30, true)
	apply := func(v volume.Volume) {
		t.Helper()
		if err := p.Apply(t.Context(), v); err != nil {
			t.Fatal(err)
		}
	}
	const million = 1_000_000
	v := sized(made(), 10<<30)
	v.MaxFiles = million + 2000 // a directory for each thousand
	apply(v)
	empty := measureVolumes(t, apply, v)
	a := v.Attachments[0]
	begun, count := time.Now(), int64(0)
	err := volumetest.As(t, p, v.UID, a, 1000, func(root *os.Root) error {
		for ; ; count++ {
			if count%1000 == 0 {
				if err := root.Mkdir(fmt.Sprint(count/1000), 0o755); err != nil {
					return err
				}
			}
			file, err := root.Create(fmt.Sprintf("%d/%d", count/1000, count))
			if err != nil {
				return err
			}
			if err := file.Close(); err != nil {
				return err
			}
		}
	})
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("after %d files: %v, want ENOSPC", count, err)
	}
	s := stateOf(t, p, v.UID)
	if count < million || s.UsedFiles != s.MaxFiles || s.MaxFiles < v.MaxFiles || s.MaxFiles > v.MaxFiles*101/100 {
		t.Errorf("it took %d files, and is %+v", count, s)
	}
	t.Logf("a volume with --files %d took %d files and directories, %d files among them, in %v; the next got ENOSPC", v.MaxFiles, s.UsedFiles, count, time.Since(begun).Round(time.Second))
	if free := freeBytes(t, p.Dir(v.UID, a.ClusterUID)); free < 8<<30 {
		t.Errorf("of its bytes %d are left", free)
	}
	full := measureVolumes(t, apply, v)
	for _, step := range []string{"create", "snapshot", "clone", "delete"} {
		t.Logf("%s: median of %d: %v with no files, %v with a million, ratio %.2f", step, measuredRounds, empty[step].Round(time.Millisecond), full[step].Round(time.Millisecond),
			float64(full[step])/float64(empty[step]))
	}
}

const measuredRounds = 15

// measureVolumes returns how long it takes, in the middle, to make an empty volume beside one, a snapshot of that, a clone of the snapshot, and to delete
// the clone.
func measureVolumes(t *testing.T, apply func(volume.Volume), v volume.Volume) map[string]time.Duration {
	t.Helper()
	times := map[string][]time.Duration{}
	timed := func(step string, v volume.Volume) {
		begun := time.Now()
		apply(v)
		times[step] = append(times[step], time.Since(begun))
	}
	clone, beside := sized(cloned(), v.SizeBytes), sized(volumetest.Volume(3), v.SizeBytes)
	clone.MaxFiles, beside.MaxFiles = v.MaxFiles, v.MaxFiles
	for range measuredRounds {
		unix.Sync()
		timed("create", beside)
		timed("snapshot", withSnapshot(v))
		timed("clone", clone)
		timed("delete", purged(clone))
		apply(purged(beside))
		apply(v)
	}
	medians := map[string]time.Duration{}
	for step, all := range times {
		slices.Sort(all)
		medians[step] = all[len(all)/2]
	}
	return medians
}
