package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
)

// dividedGPU is a GPU in MIG mode: an nvidia-smi that answers from files, and a CDI file whose device nodes are further ones of /dev/zero.
type dividedGPU struct {
	t *testing.T
	// dir has the answers, cdi the CDI file.
	dir, cdi string
}

const parentGPU = "GPU-5d7a1c3e-0b42-4f6e-9a11-2c8f00d1e001"

// slice is the UUID of the n-th slice.
func (dividedGPU) slice(n int) string {
	return fmt.Sprintf("MIG-0b0f6a51-6a53-5d2c-8b1f-0000000000a%d", n)
}

// layout are the slices as profile and MiB, in the order of nvidia-smi. The last has no CDI device.
var layout = []struct {
	profile string
	mib     int
}{{"3g.40gb", 40448}, {"1g.10gb", 9856}, {"1g.10gb", 9856}, {"1g.20gb", 19968}}

func newDividedGPU(t *testing.T) *dividedGPU {
	t.Helper()
	g := &dividedGPU{t: t, dir: t.TempDir(), cdi: t.TempDir()}
	g.answer(0, 1, 2, 3)
	node := func(name string, mode os.FileMode) string {
		file := filepath.Join(g.cdi, name)
		if err := errors.Join(unix.Mknod(file, unix.S_IFCHR, int(unix.Mkdev(1, 5))), os.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	parent := fmt.Sprintf(`{"path": "/dev/nvidia0", "hostPath": %q}`, node("gpu", 0o666))
	var devices []string
	for n, name := range []string{g.slice(0), "0:1", "mig0:2"} {
		devices = append(devices, fmt.Sprintf(`{"name": %q, "containerEdits": {"deviceNodes": [%s, {"path": "/dev/nvidia-caps/nvidia-cap%d", "hostPath": %q, "permissions": "r"}]}}`,
			name, parent, 10+n, node(fmt.Sprint("cap", n), 0o444)))
	}
	file := fmt.Sprintf(`{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [%s]}`, strings.Join(devices, ", "))
	if err := os.WriteFile(filepath.Join(g.cdi, "nvidia.json"), []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\ncase $1 in\n-q|-L) exec cat %s/\"$1\" ;;\n*) echo \"unknown option $1\" >&2; exit 6 ;;\nesac\n", g.dir)
	if err := os.WriteFile(filepath.Join(g.dir, "nvidia-smi"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", g.dir+":"+os.Getenv("PATH"))
	return g
}

// answer writes what nvidia-smi answers while the GPU has these slices of the layout.
func (g *dividedGPU) answer(numbers ...int) {
	g.t.Helper()
	var xml, list strings.Builder
	for _, n := range numbers {
		fmt.Fprintf(&xml, "<mig_device><index>%d</index><gpu_instance_id>%d</gpu_instance_id><compute_instance_id>0</compute_instance_id><fb_memory_usage><total>%d MiB</total></fb_memory_usage></mig_device>", n, n+5, layout[n].mib)
		fmt.Fprintf(&list, "  MIG %s     Device  %d: (UUID: %s)\n", layout[n].profile, n, g.slice(n))
	}
	log := fmt.Sprintf(`<?xml version="1.0" ?><nvidia_smi_log><driver_version>580.95.05</driver_version><gpu id="00000000:3B:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name>`+
		`<mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices>%s</mig_devices><uuid>%s</uuid><minor_number>0</minor_number><fb_memory_usage><total>81559 MiB</total></fb_memory_usage></gpu></nvidia_smi_log>`,
		&xml, parentGPU)
	for name, content := range map[string]string{"-q": log, "-L": fmt.Sprintf("GPU 0: NVIDIA H100 80GB HBM3 (UUID: %s)\n%s", parentGPU, &list)} {
		file := filepath.Join(g.dir, name)
		if err := errors.Join(os.WriteFile(file+".new", []byte(content), 0o644), os.Rename(file+".new", file)); err != nil {
			g.t.Fatal(err)
		}
	}
}

// A slice of a GPU belongs to one member at a time. When its operator destroys it under a member, that is said, and nobody gets more of that GPU before the
// member has ended.
func TestASliceOfAGPUIsOneMembersUntilItIsDeleted(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	g := newDividedGPU(t)
	s := startSite(t, 1, "--cdi-dir", g.cdi)
	out := s.must("node", "show", "n1")
	for _, want := range []string{g.slice(0), g.slice(1), g.slice(2), g.slice(3), "nvidia.com/gpu=" + g.slice(0), "nvidia.com/gpu=0:1", "nvidia.com/gpu=mig0:2", "3g.40gb", "40448MiB", "no CDI file of the node has it"} {
		if !strings.Contains(out, want) {
			t.Errorf("node show lacks %q: %s", want, out)
		}
	}
	c1 := s.cluster("c1", 1, "--gpu", "2:mig:1g.10gb")
	for i, d := range c1.Status.Members[0].Devices {
		want := api.MemberDevice{Class: "gpu", Node: "n1", Device: g.slice(1 + i), Way: "mig", Parent: parentGPU, Profile: "1g.10gb", Why: "a slice of GPU " + parentGPU}
		if d != want || len(c1.Status.Members[0].Devices) != 2 {
			t.Errorf("its member has the device %+v, want %+v", d, want)
		}
	}
	if out := s.must("run", "c1", "--", "sh", "-c", "head -c 3 /dev/nvidia-caps/nvidia-cap11; head -c 3 /dev/nvidia-caps/nvidia-cap12; head -c 3 /dev/nvidia0; ls /dev/nvidia-caps"); out != strings.Repeat("\x00", 9)+"nvidia-cap11\nnvidia-cap12\n" {
		t.Errorf("its member reads %q from its slices", out)
	}
	g.wantRefusals(s)
	c2 := s.cluster("c2", 1, "--gpu", "1:mig:30GiB")
	if d := c2.Status.Members[0].Devices; len(d) != 1 || d[0].Device != g.slice(0) {
		t.Errorf("a member that needs 30 GiB has %+v", d)
	}
	if out := s.must("cluster", "explain", "c2"); !strings.Contains(out, "slice 3g.40gb") || !strings.Contains(out, "a slice of GPU "+parentGPU) {
		t.Errorf("cluster explain: %s", out)
	}
	if out := s.must("cluster", "show", "c1"); !strings.Contains(out, g.slice(1)+" (slice 1g.10gb)") {
		t.Errorf("cluster show: %s", out)
	}

	g.answer(0, 2, 3)
	const gone = "(slice 1g.10gb, gone)"
	s.eventually(3*time.Minute, "the slice that is gone is shown with its member", func() bool { return strings.Contains(s.must("cluster", "show", "c1"), gone) })
	if out := s.must("cluster", "show", "c1"); !strings.Contains(out, "node n1 does not offer its slice "+g.slice(1)+" of GPU "+parentGPU+" any more") {
		t.Errorf("cluster show: %s", out)
	}
	s.must("cluster", "delete", "c2", "--yes")
	if a := s.cli("cluster", "create", "c3", "--gpu", "1:mig"); a.code != exitRefused || !strings.Contains(a.err, "nothing more of GPU "+parentGPU+" is handed out while a member holds its slice "+g.slice(1)+", which is gone") {
		t.Errorf("beside a slice that is gone: %d %q", a.code, a.err)
	}
	s.must("cluster", "delete", "c1", "--yes")
	s.must("project", "set", "default", "--device", "gpu/slices=3")
	s.cluster("c3", 1, "--gpu", "1:mig:3g.40gb")
	if a := s.cli("cluster", "create", "c4", "--gpu", "1:mig:1g.10gb"); a.code != exitRefused || !strings.Contains(a.err, "gpu/slices") {
		t.Errorf("beyond the quota: %d %q", a.code, a.err)
	}
	g.wantUsage(s)
	s.must("cluster", "delete", "c3", "--yes")
}

// wantRefusals asks for what can't be had while the slices of 1g.10gb are taken.
func (g *dividedGPU) wantRefusals(s *site) {
	g.t.Helper()
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"c3", "--gpu", "1:mig:1g.10gb"}, exitRefused, "needs a slice of a GPU of profile 1g.10gb: node n1: all 2 slices of that kind are taken"},
		{[]string{"c3", "--gpu", "1:mig:1g.20gb"}, exitRefused, "needs a slice of a GPU of profile 1g.20gb: node n1: it has slices 1g.10gb of NVIDIA H100 80GB HBM3 with 9856MiB, slices 3g.40gb"},
		{[]string{"c3", "--gpu", "1"}, exitRefused, "needs a whole GPU: no node has a GPU"},
		{[]string{"c3", "--gpu", "1:mig", "--stack", "vm"}, exitUsage, `members on the stack "vm" get no slices of GPUs (a slice is no PCI device of its own)`},
		{[]string{"c3", "--gpu", "1:mig", "--stack", "metal"}, exitUsage, `members on the stack "metal" get no slices of GPUs`},
	} {
		if a := s.cli(append([]string{"cluster", "create"}, c.args...)...); a.code != c.code || !strings.Contains(a.err, c.want) {
			g.t.Errorf("cluster create %v: %d %q, want %d and %q", c.args, a.code, a.err, c.code, c.want)
		}
	}
}

// wantUsage wants slice-seconds in the usage of clusters, and none of whole GPUs.
func (g *dividedGPU) wantUsage(s *site) {
	g.t.Helper()
	var usage struct {
		Rows []struct {
			DeviceSeconds map[string]float64 `json:"device_seconds"`
		} `json:"rows"`
	}
	if err := json.Unmarshal([]byte(s.must("usage", "--by", "cluster", "-o", "json")), &usage); err != nil {
		g.t.Fatal(err)
	}
	held := 0.0
	for _, row := range usage.Rows {
		held += row.DeviceSeconds["gpu/slices"]
		if row.DeviceSeconds["gpu/gpus"] > 0 {
			g.t.Errorf("usage has whole GPUs: %+v", row)
		}
	}
	if held <= 0 {
		g.t.Errorf("usage has %v slice-seconds: %+v", held, usage)
	}
}
