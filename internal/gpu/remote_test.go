package gpu

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

// remoteNode is a node with an OpenCL driver and the programs of remote GPUs.
func remoteNode(t *testing.T, change func(*Config)) *Node {
	t.Helper()
	root, programs := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(root, vendors, "pocl.icd"): "libpocl.so\n", filepath.Join(programs, ServerProgram): "\x7fELF", filepath.Join(programs, "libcuda.so.1"): "\x7fELF",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Config{Root: root, CDIDirs: []string{}, Run: func(context.Context, []string, string, ...string) ([]byte, error) { return nil, exec.ErrNotFound }, Remote: Remote{Programs: programs, OpenCLBytes: 1 << 30}}
	if change != nil {
		change(&cfg)
	}
	return New(cfg)
}

func TestTheHostsOwnOpenCLDeviceIsHandedOutInPartsOnly(t *testing.T) {
	n := remoteNode(t, nil)
	want := []api.Device{{
		ID: "opencl0", Class: "gpu", NUMANode: -1, Model: "OpenCL device of the host", MemoryBytes: 1 << 30, Counters: map[string]int64{"remote-mib": 1024},
		Ways: map[string]api.DeviceWay{"remote": {Mode: "remote", Takes: map[string]int64{"remote-mib": 1}}},
	}}
	if diff := cmp.Diff(want, n.Read(t.Context()).Devices()); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	claim := []api.DeviceClaim{{Class: "gpu", Device: "opencl0", Way: "remote", Takes: map[string]int64{"remote-mib": 8}}}
	edits, err := n.Served(t.Context(), claim)
	if err != nil || !slices.Contains(edits.Env, "OCL_ICD_VENDORS=/run/nearmetal-gpu/vendors") || len(edits.Mounts) != 2 || !edits.Mounts[1].ReadOnly || len(edits.Devices) > 0 {
		t.Errorf("its server needs %+v (%v), want the program and the node's drivers", edits, err)
	}
	if _, err := n.Edits(t.Context(), claim); err == nil {
		t.Error("a member got the device itself")
	}
}

func TestWhatKeepsANodeFromHandingOutGPUsIsSaid(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"names no OpenCL driver":  func(c *Config) { c.Root = t.TempDir() },
		"are not installed":       func(c *Config) { c.Remote.Programs = "" },
		"nearmetal-gpu-server is": func(c *Config) { c.Remote.Programs = t.TempDir() },
	} {
		n := remoteNode(t, change)
		found := n.Read(t.Context())
		if len(found.GPUs) != 1 || !strings.Contains(strings.Join(found.GPUs[0].Problems, "; "), want) || len(found.Devices()) > 0 {
			t.Errorf("want %q, found %+v, offered %+v", want, found.GPUs, found.Devices())
		}
	}
}

func TestAGPUOfTheVendorIsOfferedWholeOrInPartsWithoutAReserve(t *testing.T) {
	for _, c := range []struct {
		remote Remote
		want   int64
	}{{Remote{}, 0}, {Remote{GPUs: true}, 7 << 10}} {
		found := Found{GPUs: []api.NodeGPU{{ID: "GPU-a", MemoryBytes: 8 << 30}, {ID: "GPU-small", MemoryBytes: 1 << 29}, {ID: "GPU-bad", MemoryBytes: 8 << 30, Problems: []string{"x"}}}}
		c.remote.Programs = remoteNode(t, nil).cfg.Remote.Programs
		c.remote.addRemote(&found, "/")
		devices := found.Devices()
		if len(devices) != 2 || devices[0].Counters["remote-mib"] != c.want || devices[1].Counters["remote-mib"] != 0 || devices[0].Ways["whole"].Takes["remote-mib"] != 0 {
			t.Errorf("%+v: offered %+v, want %d MiB of the first", c.remote, devices, c.want)
		}
	}
}

func TestMembersHaveTheFrontEndsThatThereAre(t *testing.T) {
	edits, err := remoteNode(t, nil).FrontEnds()
	if err != nil || len(edits.Mounts) != 1 || edits.Mounts[0].Path != "/run/nearmetal-gpu/lib" || !edits.Mounts[0].ReadOnly ||
		!cmp.Equal(edits.Libraries, map[string]string{"libcuda.so.1": "/run/nearmetal-gpu/lib/libcuda.so.1"}) {
		t.Errorf("got %+v (%v)", edits, err)
	}
}
