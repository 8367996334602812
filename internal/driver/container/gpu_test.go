package container_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/container"
	"github.com/nearmetal/nearmetal/internal/gpu"
)

// fakeVendor makes a CDI file of two GPUs, whose device nodes are those of other devices of the kernel: gpu0 is a second /dev/zero, and gpu1 a second
// /dev/fuse, which containers have otherwise not.
func fakeVendor(t *testing.T) (*gpu.Node, string) {
	t.Helper()
	dir := t.TempDir()
	nodes := map[string]uint64{"gpu0": unix.Mkdev(1, 5), "gpu1": unix.Mkdev(10, 229)}
	var devices []string
	for _, name := range []string{"gpu0", "gpu1"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(unix.Mknod(path, unix.S_IFCHR|0o666, int(nodes[name])), os.Chmod(path, 0o666)); err != nil {
			t.Fatal(err)
		}
		devices = append(devices, fmt.Sprintf(`{"name": %q, "containerEdits": {"deviceNodes": [{"path": "/dev/fake%s", "hostPath": %q}]}}`, name, name, path))
	}
	file := fmt.Sprintf(`{"cdiVersion": "0.5.0", "kind": "example.com/gpu", "containerEdits": {"env": ["FAKE_VENDOR=1"],
		"mounts": [{"hostPath": %q, "containerPath": "/run/fake-vendor/notes"}]}, "devices": [%s]}`, filepath.Join(dir, "notes"), strings.Join(devices, ","))
	cdi := filepath.Join(dir, "cdi")
	err := errors.Join(os.WriteFile(filepath.Join(dir, "notes"), []byte("of the vendor"), 0o644), os.Mkdir(cdi, 0o755), os.WriteFile(filepath.Join(cdi, "fake.json"), []byte(file), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	return gpu.New(gpu.Config{CDIDirs: []string{cdi}}), dir
}

// withGPU lets a member hold a whole GPU.
func withGPU(m driver.Member, id string) driver.Member {
	m.Assignment.Devices = append(m.Assignment.Devices, api.DeviceClaim{Class: api.ClassGPU, Device: id, Way: api.WayWhole, Takes: map[string]int64{api.CounterGPUs: 1}})
	return m
}

func TestAMemberReachesTheGPUThatItHoldsAndNoOther(t *testing.T) {
	node, dir := fakeVendor(t)
	r := newRig(t, "crun", func(c *container.Config) { c.GPUs = node })
	with, without := withGPU(r.member(t), "example.com/gpu=gpu0"), r.member(t)
	for _, m := range []driver.Member{with, without} {
		if err := r.Start(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	id := with.Assignment.ID
	if got := r.run(t, id, "head", "-c", "4", "/dev/fakegpu0"); got != "\x00\x00\x00\x00" {
		t.Errorf("the member reads %q from its GPU", got)
	}
	if got := r.run(t, id, "cat", "/run/fake-vendor/notes", "/proc/1/environ"); !strings.HasPrefix(got, "of the vendor") || !strings.Contains(got, "FAKE_VENDOR=1") {
		t.Errorf("the member has %q of the vendor", got)
	}
	if got := r.tell(t, id, order{Run: []string{"ls", "/dev/fakegpu1"}}); got.Err == "" {
		t.Error("the member sees the other GPU")
	}
	if got := r.tell(t, without.Assignment.ID, order{Run: []string{"ls", "/dev/fakegpu0"}}); got.Err == "" {
		t.Error("a member without a GPU sees one")
	}
	for _, c := range []struct {
		what, id, node string
		want           bool
	}{
		{"the GPU that the member holds", id, "gpu0", true},
		{"a GPU that it does not hold", id, "gpu1", false},
		{"a GPU, for a member that holds none", without.Assignment.ID, "gpu1", false},
	} {
		if err := openInGroup(t, r, c.id, filepath.Join(dir, c.node)); (err == nil) != c.want {
			t.Errorf("%s, opened within its control group by the host's root: %v", c.what, err)
		}
	}
}

func TestAMemberOpensTheGPUThatItHolds(t *testing.T) {
	node, dir := fakeVendor(t)
	r := newRig(t, "crun", func(c *container.Config) { c.GPUs = node })
	m := withGPU(r.member(t), "example.com/gpu=gpu1")
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := openInGroup(t, r, m.Assignment.ID, filepath.Join(dir, "gpu1")); err != nil {
		t.Errorf("its control group keeps it from its GPU: %v", err)
	}
	if got := r.tell(t, m.Assignment.ID, order{Run: []string{"sh", "-c", "exec 3<>/dev/fakegpu1"}}); got.Err != "" {
		t.Errorf("it can't open its GPU: %s", got.Output)
	}
}

func TestAMemberWhoseGPUIsNotThereIsRefusedWithTheReason(t *testing.T) {
	node, dir := fakeVendor(t)
	for name, c := range map[string]struct {
		gpus container.GPUs
		id   string
		want string
	}{
		"of no node that hands out GPUs": {nil, "example.com/gpu=gpu0", "this node hands out no GPUs"},
		"not known":                      {node, "example.com/gpu=gpu7", "GPU example.com/gpu=gpu7: the node does not have it any more"},
		"taken away":                     {node, "example.com/gpu=gpu1", "gpu1: no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			node.Read(t.Context())
			if name == "taken away" {
				if err := os.Remove(filepath.Join(dir, "gpu1")); err != nil {
					t.Fatal(err)
				}
			}
			r := newRig(t, "crun", func(cfg *container.Config) {
				if c.gpus != nil {
					cfg.GPUs = c.gpus
				}
			})
			if err := r.Driver.Start(t.Context(), withGPU(r.member(t), c.id)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// openInGroup opens a file as the host's root, in the control group of a member.
func openInGroup(t *testing.T, r *rig, id, file string) error {
	t.Helper()
	observations, err := r.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	for _, o := range observations {
		if o.ID == id {
			pid = o.PID
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	var group string
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case fields[1] == "devices":
			group = filepath.Join("/sys/fs/cgroup/devices", fields[2])
		case fields[0] == "0" && group == "":
			group = filepath.Join("/sys/fs/cgroup", fields[2])
		}
	}
	out, err := exec.Command("sh", "-c", `echo $$ >"$1/cgroup.procs" && { exec 3<>"$2"; } 2>&1`, "sh", group, file).CombinedOutput()
	if err != nil && !bytes.Contains(out, []byte("not permitted")) {
		t.Fatalf("in %s: %v: %s", group, err, out)
	}
	return err
}
