package gpu_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// cdiNode is a node with CDI files, by name, and the device nodes /dev/a and /dev/b.
func cdiNode(t *testing.T, files map[string]string) *gpu.Node {
	t.Helper()
	needs.Root(t, "makes device nodes")
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"a", "b", "ctl"} {
		file := filepath.Join(root, "dev", name)
		if err := errors.Join(unix.Mknod(file, unix.S_IFCHR, int(unix.Mkdev(1, uint32(20+i)))), os.Chmod(file, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		file := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return gpu.New(gpu.Config{Root: root, Run: answers(nil).run})
}

const vendorFile = `
cdiVersion: 0.6.0
kind: example.com/gpu
containerEdits:
  deviceNodes: [{path: /dev/ctl}]
devices:
- name: "0"
  containerEdits: {deviceNodes: [{path: /dev/a}]}
- name: uuid-of-0
  containerEdits: {deviceNodes: [{path: /dev/a}]}
- name: "1"
  containerEdits: {deviceNodes: [{path: /dev/b, permissions: r}]}
- name: all
  containerEdits: {deviceNodes: [{path: /dev/a}, {path: /dev/b}]}
`

func ids(found gpu.Found) string {
	var all []string
	for _, g := range found.GPUs {
		all = append(all, g.ID)
	}
	return strings.Join(all, " ")
}

func TestEachGPUOfACDIFileIsOfferedOnce(t *testing.T) {
	node := cdiNode(t, map[string]string{"etc/cdi/vendor.yaml": vendorFile})
	found := node.Read(t.Context())
	if got := ids(found); got != "example.com/gpu=0 example.com/gpu=1" || len(found.Devices()) != 2 || len(found.Problems) > 0 {
		t.Fatalf("got %s", text(t, found))
	}
	if d := found.Devices()[0]; d.Counters["gpus"] != 1 || len(d.Counters) != 1 || d.NUMANode != -1 {
		t.Errorf("got device %s", text(t, d))
	}
	edits, err := node.Edits(t.Context(), []api.DeviceClaim{{Device: "example.com/gpu=1"}})
	if err != nil || len(edits.Devices) != 2 || edits.Devices[0].Path != "/dev/ctl" || edits.Devices[1] != (gpu.DeviceNode{Path: "/dev/b", HostPath: "/dev/b", Major: 1, Minor: 21, Access: "r"}) {
		t.Errorf("got %s, %v", text(t, edits), err)
	}
}

func TestWhatMembersCanNotHaveOfCDIFilesIsShownWithTheReason(t *testing.T) {
	edits := func(more string) string {
		return "cdiVersion: 1.1.0\nkind: example.com/gpu\ndevices:\n- name: x\n  containerEdits:\n    deviceNodes: [{path: /dev/a}]\n" + more
	}
	for name, c := range map[string]struct{ file, want string }{
		"a hook":                  {edits("    hooks: [{hookName: createContainer, path: /usr/bin/vendor-ctk}]"), "wants a program run on the node for each container (/usr/bin/vendor-ctk)"},
		"a network interface":     {edits("    netDevices: [{hostInterfaceName: eth7, name: eth0}]"), "moves a network interface"},
		"cache classes":           {edits("    intelRdt: {closID: x}"), "sets cache classes"},
		"a mount over /usr":       {edits("    mounts: [{hostPath: /usr/lib/v, containerPath: /usr/lib/v}]"), "mounts /usr/lib/v at /usr/lib/v, and members have room for that below /run, /tmp, /var only"},
		"a mount that climbs":     {edits("    mounts: [{hostPath: /usr/lib/v, containerPath: /run/../etc/v}]"), "have room for that below"},
		"another file system":     {edits("    mounts: [{hostPath: none, containerPath: /run/v, type: proc}]"), "mounts a file system of type proc"},
		"what is not there":       {edits("    mounts: [{hostPath: /no/such, containerPath: /run/v}]"), "no such file or directory"},
		"the loader's variable":   {edits("    env: [LD_PRELOAD=/x.so]"), "sets the variable LD_PRELOAD"},
		"no device node":          {"cdiVersion: 0.6.0\nkind: example.com/gpu\ndevices: [{name: x, containerEdits: {env: [A=1]}}]", "no device node of its own"},
		"a node outside of /dev":  {"cdiVersion: 0.6.0\nkind: example.com/gpu\ndevices: [{name: x, containerEdits: {deviceNodes: [{path: /etc/a, hostPath: /dev/a}]}}]", "no character device below /dev"},
		"a node that is not made": {"cdiVersion: 0.6.0\nkind: example.com/gpu\ndevices: [{name: x, containerEdits: {deviceNodes: [{path: /dev/z}]}}]", "device node /dev/z"},
	} {
		t.Run(name, func(t *testing.T) {
			found := cdiNode(t, map[string]string{"etc/cdi/v.yaml": c.file}).Read(t.Context())
			if len(found.GPUs) != 1 || len(found.GPUs[0].Problems) != 1 || !strings.Contains(found.GPUs[0].Problems[0], c.want) || len(found.Devices()) > 0 {
				t.Errorf("got %s, want %q", text(t, found), c.want)
			}
		})
	}
}

func TestCDIFilesThatCanNotBeReadAreSaidAndOthersAreRead(t *testing.T) {
	found := cdiNode(t, map[string]string{
		"etc/cdi/broken.yaml": "kind: [", "etc/cdi/net.yaml": "cdiVersion: 0.6.0\nkind: example.com/net\ndevices: [{name: x, containerEdits: {env: [A=1]}}]",
		"var/run/cdi/vendor.yaml": vendorFile, "etc/cdi/notes.txt": "not CDI",
	}).Read(t.Context())
	if ids(found) != "example.com/gpu=0 example.com/gpu=1" || len(found.Problems) != 1 || !strings.Contains(found.Problems[0], "etc/cdi/broken.yaml: ") {
		t.Errorf("got %s", text(t, found))
	}
}

func TestTheFileOfTheLaterFolderCountsAndOneOfTheSameFolderIsAProblem(t *testing.T) {
	file := func(node string) string {
		return "cdiVersion: 0.6.0\nkind: example.com/gpu\ndevices: [{name: x, containerEdits: {deviceNodes: [{path: " + node + "}]}}]"
	}
	node := cdiNode(t, map[string]string{"etc/cdi/v.yaml": file("/dev/a"), "var/run/cdi/v.yaml": file("/dev/b")})
	edits, err := node.Edits(t.Context(), []api.DeviceClaim{{Device: "example.com/gpu=x"}})
	if err != nil || edits.Devices[0].Path != "/dev/b" {
		t.Errorf("got %s, %v", text(t, edits), err)
	}
	found := cdiNode(t, map[string]string{"etc/cdi/1.yaml": file("/dev/a"), "etc/cdi/2.yaml": file("/dev/b")}).Read(t.Context())
	if len(found.Problems) != 1 || !strings.Contains(found.Problems[0], "remove one of them") || ids(found) != "example.com/gpu=x" {
		t.Errorf("got %s", text(t, found))
	}
}
