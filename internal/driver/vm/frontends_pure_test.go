package vm

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// withServer is a member with a remote GPU, whose server is on another node.
func withServer() driver.Member {
	m := goldenMember()
	m.GPUServer = &driver.GPUServer{ID: "uid.c1-0.1-d0", Node: "n2"}
	return m
}

func TestAMachineMountsTheFrontEndsOfItsRemoteGPUReadOnly(t *testing.T) {
	m, plain := withServer(), goldenMember()
	m.Mounts = []driver.Mount{{Source: "/pool/data", Path: "/volumes/data"}}
	ends := guestlink.Volume{Path: "/run/nearmetal-gpu/lib", ReadOnly: true}
	if got := volumesOf(m); len(got) != 2 || got[1] != ends {
		t.Errorf("it mounts %+v, want its volume and %+v", got, ends)
	}
	if got := exportsOf(m); !slices.Contains(got, ends.Path) {
		t.Errorf("it is served %v, want the front ends among them", got)
	}
	if got := exportsOf(plain); slices.Contains(got, ends.Path) || slices.Contains(volumesOf(plain), ends) {
		t.Errorf("a member without a remote GPU is served %v", got)
	}
}

// The guest's root may mount what it is served as it likes: the server's own mount is what can't be written to.
func TestTheNodesFrontEndsAreServedReadOnly(t *testing.T) {
	needs.Root(t, "opens trees of mounts")
	m, folder := withServer(), t.TempDir()
	m.HomeDir, m.Mounts = "", nil
	trees, closeTrees, err := (&Driver{cfg: Config{GPUs: &cards{folder: folder}}}).openServed(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	defer closeTrees()
	if len(trees) != 1 || trees[0].export != "/run/nearmetal-gpu/lib" {
		t.Fatalf("it is served %+v, want the front ends", trees)
	}
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(trees[0].file.Fd()), &stat); err != nil || stat.Flags&unix.ST_RDONLY == 0 {
		t.Errorf("the tree has the flags %#x, %v; want a read-only one", stat.Flags, err)
	}
}

func TestProgramsOfAMachineFindTheFrontEnds(t *testing.T) {
	d := &Driver{cfg: Config{GPUs: &cards{}}}
	var s, none guestlink.Setup
	if err := errors.Join(d.withFrontEnds(&s, withServer()), d.withFrontEnds(&none, goldenMember())); err != nil {
		t.Fatal(err)
	}
	if s.Libraries["libcuda.so.1"] != "/run/nearmetal-gpu/lib/libcuda.so.1" {
		t.Errorf("its loader is to find %v", s.Libraries)
	}
	if len(s.Files) != 1 || s.Files[0].Path != loaderConfig || string(s.Files[0].Content) != "/run/nearmetal-gpu/lib\n" {
		t.Errorf("its ldconfig finds %+v", s.Files)
	}
	if len(none.Libraries) > 0 || len(none.Files) > 0 {
		t.Errorf("a member without a remote GPU gets %+v", none)
	}
}

func TestANodeWithoutFrontEndsStartsNoMachineThatNeedsThem(t *testing.T) {
	broken := errors.New("the programs of remote GPUs are not installed")
	for name, d := range map[string]*Driver{"no GPUs at all": {}, "no programs": {cfg: Config{GPUs: &cards{err: broken}}}} {
		if err := d.withFrontEnds(&guestlink.Setup{}, withServer()); err == nil || !strings.Contains(err.Error(), "programs of remote GPUs") {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := d.openServed(t.Context(), withServer()); err == nil {
			t.Errorf("%s: its files are served", name)
		}
	}
}

// The server of a GPU may be lost, and another one placed: the machine has the front ends that it mounted when it began.
func TestARunningMachineKeepsItsFrontEnds(t *testing.T) {
	began, lost := withServer(), goldenMember()
	keepsFrontEnds(&lost, began)
	if lost.GPUServer == nil || !slices.Contains(exportsOf(lost), frontEndsDir) {
		t.Error("a machine whose GPU server is lost loses its front ends")
	}
	later := withServer()
	keepsFrontEnds(&later, goldenMember())
	if later.GPUServer != nil {
		t.Error("a machine that began without front ends is served what it has not mounted")
	}
}

func TestAMachineWithTheDiskOfAnotherSystemHasNoRemoteGPU(t *testing.T) {
	d := &Driver{cfg: Config{GPUs: &cards{}}}
	if err := d.begin(t.Context(), nil, withServer(), environment.Image{Disk: &api.ForeignDisk{}}, nil); err == nil || !strings.Contains(err.Error(), "the disk of another system") {
		t.Errorf("got %v", err)
	}
}

func TestAMachineWithARemoteGPUIsNeitherSavedNorMoved(t *testing.T) {
	for _, v := range []verb{verbSave, verbMove, verbSnapshot} {
		if err := surviveAll(withServer(), v); err == nil || !strings.Contains(err.Error(), "it can't be "+string(v)+": it has a remote GPU") {
			t.Errorf("%s: got %v", v, err)
		}
	}
}
