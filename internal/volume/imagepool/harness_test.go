package imagepool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/diskserver"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/ext4"
	"github.com/nearmetal/nearmetal/internal/volume/imagepool"
	"github.com/nearmetal/nearmetal/internal/volume/loopdev"
	"github.com/nearmetal/nearmetal/internal/volume/mounts"
	"github.com/nearmetal/nearmetal/internal/volume/reflink"
	"github.com/nearmetal/nearmetal/internal/volume/volumetest"
)

// loopBytes is the size of the pool in a file: an XFS has to be so large, and its log is 64 MiB of it.
const loopBytes = 640 << 20

// open returns the pool in a directory, as a starting agent opens it.
func open(dir string) (*imagepool.Pool, error) {
	program, err := os.Executable() // see TestMain
	if err != nil {
		return nil, err
	}
	return imagepool.New(imagepool.Config{Dir: dir, Images: reflink.New(reflink.Config{Dir: dir, LoopBytes: loopBytes, Sparse: true}), Program: program})
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

func needPrograms(t testing.TB) {
	t.Helper()
	needs.Root(t, "mounts file systems")
	for _, name := range []string{"mkfs.ext4", "resize2fs", "e2fsck", "tune2fs", "debugfs", "mkfs.xfs"} {
		if _, err := os.Stat(filepath.Join("/usr/sbin", name)); err != nil {
			needs.Program(t, name)
		}
	}
}

// left are the mounts and loop devices of a directory.
func left(t testing.TB, dir string) (all []string) {
	t.Helper()
	below, err := mounts.Below(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range below {
		all = append(all, m.Path)
	}
	devices, err := loopdev.Backed(dir)
	if err != nil {
		t.Fatal(err)
	}
	return append(all, devices...)
}

// suite runs the suite on pools in directories of a parent, one for each node.
func suite(t *testing.T, parent string) {
	t.Helper()
	dir := func(node int) string { return filepath.Join(parent, fmt.Sprint("node-", node)) }
	volumetest.Run(t, volumetest.Harness{
		Files: true, GrowsDetached: !ext4.CanGrowMounted(),
		New: func(t *testing.T, node int) volume.Pool {
			t.Helper()
			t.Cleanup(func() { // after it was closed: others are on the same disk
				if err := os.RemoveAll(dir(node)); err != nil {
					t.Error(err)
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
}

func TestPoolContract(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	suite(t, inMemory(t))
}

// inMemory returns a directory in memory: the disk that everything else here is on has much to write already.
func inMemory(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4g"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mounts.Unmount(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// onFileSystem returns a directory on a new file system in a file.
func onFileSystem(t testing.TB, kind string, bytes int64, mkfs ...string) string {
	t.Helper()
	dir := inMemory(t)
	image, at := filepath.Join(dir, "disk.img"), filepath.Join(dir, "disk")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, bytes), os.Mkdir(at, 0o755)); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command(mkfs[0], append(mkfs[1:], image)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", mkfs, err, output)
	}
	device, err := loopdev.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Mount(device.Name(), at, kind, 0, "")
	if err := errors.Join(err, device.Close()); errors.Is(err, unix.ENODEV) {
		needs.Hardware(t, "the kernel has no %s", kind)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mounts.Unmount(context.Background(), at); err != nil {
			t.Error(err)
		}
	})
	return at
}

func TestPoolContractOnBtrfs(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	mkfs := needs.Program(t, "mkfs.btrfs")
	dir := onFileSystem(t, "btrfs", 2<<30, mkfs, "-q")
	suite(t, dir)
	if d := newPool(t, filepath.Join(dir, "other")).Describe(t.Context()); d.Kind != "btrfs" {
		t.Errorf("the pool is %+v", d)
	}
}

func TestPoolContractOnXFS(t *testing.T) {
	t.Parallel()
	needPrograms(t)
	mkfs := needs.Program(t, "mkfs.xfs")
	dir := onFileSystem(t, "xfs", 2<<30, mkfs, "-q", "-m", "reflink=1")
	suite(t, dir)
	if d := newPool(t, filepath.Join(dir, "other")).Describe(t.Context()); d.Kind != "xfs" {
		t.Errorf("the pool is %+v", d)
	}
}

// doomed is what a process that will crash does, by its environment.
type doomed struct {
	Dir    string
	Volume volume.Volume
	// Archive is the path of an archive that the volume is made of. Export: an archive of it is written.
	Archive string
	Export  bool
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
	switch {
	case job.Export:
		return p.Export(context.Background(), job.Volume.UID, "", io.Discard)
	case job.Archive != "":
		in, err := os.Open(job.Archive)
		if err != nil {
			return err
		}
		return errors.Join(p.Import(context.Background(), job.Volume, in), in.Close())
	}
	return p.Apply(context.Background(), job.Volume)
}

// crash applies a volume in a process that is killed at the failpoint.
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
		needs.Missing(t, "this build has no failpoints (make unit builds them in, with -tags failpoints)")
	case !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL:
		t.Fatalf("the process was not killed at %s: %v: %s", failpoint, err, strings.TrimSpace(string(output)))
	}
}
