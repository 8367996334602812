package gpu_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/inventory"
	"github.com/nearmetal/nearmetal/internal/needs"
)

const (
	first  = "GPU-5d7a1c3e-0b42-4f6e-9a11-2c8f00d1e001"
	second = "GPU-5d7a1c3e-0b42-4f6e-9a11-2c8f00d1e002"
)

// answers are what nvidia-smi answers, by its first argument; an error stands for a program that fails.
type answers map[string]any

func (a answers) run(_ context.Context, _ []string, program string, args ...string) ([]byte, error) {
	if program != "nvidia-smi" || a == nil {
		return nil, fmt.Errorf("%s: %w", program, exec.ErrNotFound)
	}
	switch answer := a[args[0]].(type) {
	case string:
		return []byte(answer), nil
	case error:
		return nil, answer
	default:
		return nil, errors.New("nvidia-smi: unknown option")
	}
}

// pair are the answers of a node with two GPUs.
func pair(t *testing.T) answers {
	t.Helper()
	text, err := os.ReadFile("testdata/h200.xml")
	if err != nil {
		t.Fatal(err)
	}
	one := string(text)
	from, to := strings.Index(one, "\t<gpu id"), strings.Index(one, "</nvidia_smi_log>")
	other := strings.NewReplacer("3B", "86", "e001", "e002", "<minor_number>0", "<minor_number>1").Replace(one[from:to])
	return answers{
		"-q": one[:to] + other + one[to:], "--query-gpu=uuid,compute_cap": first + ", 9.0\n" + second + ", 9.0\n",
		"topo": "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n" +
			"GPU0\t X \tNV18\tPIX\t0-31\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\t32-63\t1\t\tN/A\nNIC0\tPIX\tSYS\t X \n\nLegend:\n\n  X    = Self\n",
	}
}

// machine makes the file system of a machine with two GPUs and the driver's libraries.
func machine(t *testing.T) string {
	t.Helper()
	needs.Root(t, "makes device nodes")
	cc := needs.Program(t, "cc")
	root := t.TempDir()
	for pci, numa := range map[string]string{"0000:3b:00.0": "0\n", "0000:86:00.0": "1\n"} {
		dir := filepath.Join(root, "sys/bus/pci/devices", pci)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "numa_node"), []byte(numa), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	lib := filepath.Join(root, "usr/local/nvidia/lib64")
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "dev"), 0o755), os.MkdirAll(lib, 0o755), os.MkdirAll(filepath.Join(root, "usr/local/nvidia/bin"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"} {
		file := filepath.Join(root, "dev", name)
		if err := errors.Join(unix.Mknod(file, unix.S_IFCHR, int(unix.Mkdev(195, uint32(i)))), os.Chmod(file, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	for file, soname := range map[string]string{"libcuda.so.580.95.05": "libcuda.so.1", "libnvidia-ml.so.580.95.05": "libnvidia-ml.so.1", "libnvidia-eglcore.so.580.95.05": "libnvidia-eglcore.so.580.95.05"} {
		out, err := exec.Command(cc, "-shared", "-nostdlib", "-o", filepath.Join(lib, file), "-Wl,-soname,"+soname, "-x", "c", "/dev/null").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	err := errors.Join(os.Symlink("libcuda.so.580.95.05", filepath.Join(lib, "libcuda.so.1")), os.WriteFile(filepath.Join(root, "usr/local/nvidia/bin/nvidia-smi"), []byte("\x7fELF"), 0o755))
	// Some machines have a script in its place, which names the program by a path that members don't have.
	err = errors.Join(err, os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755), os.WriteFile(filepath.Join(root, "usr/bin/nvidia-smi"), []byte("#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi \"$@\"\n"), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func TestAGPUIsReportedWithWhatPlacementNeeds(t *testing.T) {
	found := gpu.New(gpu.Config{Root: machine(t), Run: pair(t).run}).Read(t.Context())
	want := []api.NodeGPU{
		{
			ID: first, Model: "NVIDIA H200", MemoryBytes: 143771 << 20, PCI: "0000:3b:00.0", NUMANode: 0, Driver: "580.95.05", CUDA: "13.0", ComputeCapability: "9.0",
			MIG: "disabled", NVLinkPeers: []string{second},
		},
		{
			ID: second, Model: "NVIDIA H200", MemoryBytes: 143771 << 20, PCI: "0000:86:00.0", NUMANode: 1, Driver: "580.95.05", CUDA: "13.0", ComputeCapability: "9.0",
			MIG: "disabled", NVLinkPeers: []string{first},
		},
	}
	if len(found.Problems) > 0 || text(t, found.GPUs) != text(t, want) {
		t.Errorf("got %s, %q\nwant %s", text(t, found.GPUs), found.Problems, text(t, want))
	}
	devices := found.Devices()
	if len(devices) != 2 {
		t.Fatalf("got %d devices, want 2", len(devices))
	}
	d := devices[1]
	if d.ID != second || d.Class != "gpu" || d.NUMANode != 1 || d.Counters["gpus"] != 1 || d.Counters["slices"] != 7 || text(t, d.Ways["whole"].Takes) != text(t, d.Counters) {
		t.Errorf("got device %s", text(t, d))
	}
}

func TestNodesOfOneMachineShareItsGPUs(t *testing.T) {
	root, seen := machine(t), map[string]string{}
	for _, part := range []inventory.Part{{N: 1, Of: 3}, {N: 2, Of: 3}, {N: 3, Of: 3}, {N: 0, Of: 1}} {
		node := gpu.New(gpu.Config{Root: root, Run: pair(t).run, Part: part})
		for _, d := range node.Read(t.Context()).Devices() {
			if other := seen[d.ID]; other != "" {
				t.Errorf("part %s offers %s, and so does %s", part, d.ID, other)
			}
			seen[d.ID] = part.String()
		}
		for _, id := range []string{first, second} {
			if _, err := node.Edits(t.Context(), []api.DeviceClaim{{Device: id}}); (err == nil) != (seen[id] == part.String()) {
				t.Errorf("part %s gives %s to a container: %v", part, id, err)
			}
		}
	}
	if len(seen) != 2 {
		t.Errorf("the parts together offer %v, want both GPUs", seen)
	}
}

func TestAMembersStartDoesNotWaitForNvidiaSMI(t *testing.T) {
	var asked atomic.Int32
	a := pair(t)
	node := gpu.New(gpu.Config{Root: machine(t), Every: time.Nanosecond, Run: func(ctx context.Context, env []string, program string, args ...string) ([]byte, error) {
		asked.Add(1)
		return a.run(ctx, env, program, args...)
	}})
	node.Read(t.Context())
	before := asked.Load()
	if _, err := node.Edits(t.Context(), []api.DeviceClaim{{Device: first}}); err != nil || asked.Load() != before {
		t.Errorf("it was asked %d times, %v", asked.Load()-before, err)
	}
	if node.Read(t.Context()); asked.Load() == before {
		t.Error("what is too old is not read again")
	}
}

func TestAContainerNeedsTheDriversNodesAndLibrariesForAGPU(t *testing.T) {
	node := gpu.New(gpu.Config{Root: machine(t), Run: pair(t).run})
	edits, err := node.Edits(t.Context(), []api.DeviceClaim{{Class: "gpu", Device: second, Way: "whole"}})
	if err != nil {
		t.Fatal(err)
	}
	var nodes, mounts []string
	for _, d := range edits.Devices {
		nodes = append(nodes, fmt.Sprintf("%s %d:%d %s", d.Path, d.Major, d.Minor, d.Access))
	}
	if want := []string{"/dev/nvidia1 195:1 rw", "/dev/nvidiactl 195:2 rw", "/dev/nvidia-uvm 195:3 rw"}; !slices.Equal(nodes, want) {
		t.Errorf("got device nodes %q, want %q", nodes, want)
	}
	for _, m := range edits.Mounts {
		mounts = append(mounts, m.HostPath+" "+m.Path)
		if !m.ReadOnly {
			t.Errorf("%s can be written to", m.Path)
		}
	}
	want := []string{
		"/usr/local/nvidia/lib64/libcuda.so.580.95.05 /run/nearmetal-gpu/lib/libcuda.so.1",
		"/usr/local/nvidia/lib64/libnvidia-ml.so.580.95.05 /run/nearmetal-gpu/lib/libnvidia-ml.so.1",
		"/usr/local/nvidia/bin/nvidia-smi /run/nearmetal-gpu/bin/nvidia-smi",
	}
	if !slices.Equal(mounts, want) {
		t.Errorf("got mounts %q, want %q", mounts, want)
	}
	if edits.Libraries["libcuda.so.1"] != "/run/nearmetal-gpu/lib/libcuda.so.1" || edits.Libraries["libcuda.so"] != "/run/nearmetal-gpu/lib/libcuda.so.1" || len(edits.Libraries) != 4 {
		t.Errorf("got libraries %q", edits.Libraries)
	}
	both, err := node.Edits(t.Context(), []api.DeviceClaim{{Class: "gpu", Device: second}, {Class: "gpu", Device: first}})
	if err != nil || len(both.Devices) != 4 || len(both.Mounts) != len(mounts) {
		t.Errorf("two GPUs at once: %+v, %v", both, err)
	}
}

func TestAGPUThatCanNotBeUsedIsShownWithTheReasonAndOfferedToNobody(t *testing.T) {
	root := machine(t)
	for name, c := range map[string]struct {
		from, to string
		break_   func() error
		want     string
	}{
		"in MIG mode":             {"<current_mig>Disabled", "<current_mig>Enabled", nil, "it is in MIG mode and has no slices; make some by nvidia-smi mig -i 0000:3b:00.0 -cgi PROFILE -C, or end the mode by nvidia-smi -i 0000:3b:00.0 -mig 0"},
		"fallen off its bus":      {"<uuid>GPU-5d7a1c3e-0b42-4f6e-9a11-2c8f00d1e001", "<uuid>[Unknown Error]", nil, "can't read its UUID"},
		"waiting for a reset":     {"<gpu_recovery_action>None", "<gpu_recovery_action>GPU Reset", nil, `asks for "GPU Reset"`},
		"without a number":        {"<minor_number>0", "<minor_number>N/A", nil, "neither nvidia-smi nor the driver tells the number of its device node"},
		"of a driver not at hand": {"580.95.05", "580.95.06", nil, "has no libcuda.so.580.95.06"},
		"without its device node": {"<minor_number>0", "<minor_number>5", nil, "/dev/nvidia5 is not there; run: nvidia-modprobe -c 5 -u"},
		"closed to users":         {"", "", func() error { return os.Chmod(filepath.Join(root, "dev/nvidia0"), 0o660) }, `/dev/nvidia0 has mode 0660, so that users of members can't use it; write a udev rule with MODE="0666"`},
	} {
		t.Run(name, func(t *testing.T) {
			a := pair(t)
			a["-q"] = strings.Replace(a["-q"].(string), c.from, c.to, 1)
			if c.break_ != nil {
				if err := c.break_(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "dev/nvidia0"), 0o666) })
			}
			found := gpu.New(gpu.Config{Root: root, Run: a.run}).Read(t.Context())
			if len(found.GPUs) != 2 || len(found.GPUs[0].Problems) == 0 || !strings.Contains(found.GPUs[0].Problems[0], c.want) {
				t.Fatalf("got %s, want %q", text(t, found), c.want)
			}
			for _, d := range found.Devices() {
				if d.ID == found.GPUs[0].ID {
					t.Error("it is offered")
				}
			}
		})
	}
}

func TestABrokenAnswerOfNvidiaSMIIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		answer any
		want   string
	}{
		"no XML":                {"No devices were found\n", "answered with something else than its XML"},
		"cut short":             {"<nvidia_smi_log><gpu id=\"00000000:3B:00.0\">", "answered with something else than its XML"},
		"without a PCI address": {"<nvidia_smi_log><gpu id=\"3B\"></gpu></nvidia_smi_log>", `lists a GPU at "3B", which is no PCI address`},
		"a driver that is not there": {
			errors.New("nvidia-smi: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"), "couldn't communicate with the NVIDIA driver",
		},
	} {
		t.Run(name, func(t *testing.T) {
			found := gpu.New(gpu.Config{Root: t.TempDir(), Run: answers{"-q": c.answer}.run}).Read(t.Context())
			if len(found.GPUs) != 0 || len(found.Problems) != 1 || !strings.Contains(found.Problems[0], c.want) {
				t.Errorf("got %s, want %q", text(t, found), c.want)
			}
		})
	}
}

func TestANodeWithoutNvidiaSMIHasNoGPUsUnlessItsKernelHasTheDriver(t *testing.T) {
	root := t.TempDir()
	if found := gpu.New(gpu.Config{Root: root, Run: answers(nil).run}).Read(t.Context()); len(found.GPUs)+len(found.Problems) != 0 {
		t.Errorf("got %s", text(t, found))
	}
	file := filepath.Join(root, "proc/driver/nvidia/version")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("NVRM version"), 0o644)); err != nil {
		t.Fatal(err)
	}
	found := gpu.New(gpu.Config{Root: root, Run: answers(nil).run}).Read(t.Context())
	if len(found.Problems) != 1 || !strings.Contains(found.Problems[0], "nvidia-smi is not installed") {
		t.Errorf("got %s", text(t, found))
	}
}

func TestAProgramThatHangsIsGivenUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte("#!/bin/sh\nexec sleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	begun := time.Now()
	found := gpu.New(gpu.Config{CDIDirs: []string{}}).Read(ctx)
	if took := time.Since(begun); took > 10*time.Second || len(found.Problems) != 1 || !strings.Contains(found.Problems[0], "did not answer") {
		t.Errorf("after %v: %s", took, text(t, found))
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
