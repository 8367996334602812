package container_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/container"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// cudaProgram names a program that uses a GPU by CUDA's driver library and prints its name; tests/gpu/pack.sh makes it.
const cudaProgram = "NEARMETAL_TEST_CUDA_PROGRAM"

// realGPU returns the first GPU of NVIDIA's that this machine offers.
func realGPU(t *testing.T) (*gpu.Node, api.NodeGPU) {
	t.Helper()
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		needs.Hardware(t, "no GPU of NVIDIA's: %v", err)
	}
	node := gpu.New(gpu.Config{})
	found := node.Read(t.Context())
	text, err := json.MarshalIndent(struct {
		Found   gpu.Found
		Devices []api.Device
	}{found, found.Devices()}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the node reports: %s", text)
	for _, g := range found.GPUs {
		if strings.HasPrefix(g.ID, "GPU-") && len(g.Problems) == 0 {
			return node, g
		}
	}
	t.Fatal("none of its GPUs can be offered")
	return nil, api.NodeGPU{}
}

func TestARealGPUWorksInTheMemberThatHoldsItAndInNoOther(t *testing.T) {
	node, g := realGPU(t)
	edits, err := node.Edits(t.Context(), []api.DeviceClaim{{Class: api.ClassGPU, Device: g.ID, Way: api.WayWhole}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a container needs: %+v", edits)
	r := newRig(t, "crun", func(c *container.Config) { c.GPUs = node })
	with, without := withGPU(r.member(t), g.ID), r.member(t)
	for _, m := range []driver.Member{without, with} {
		m.Assignment.Memory[0].Bytes = 4 << 30 // a CUDA context takes some hundred MiB
		if err := r.Start(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	own := edits.Devices[0].Path
	t.Run("its management library lists it", func(t *testing.T) {
		out := r.run(t, with.Assignment.ID, gpu.Dir+"/bin/nvidia-smi", "-L")
		t.Logf("in the member: %s", out)
		if !strings.Contains(out, g.ID) {
			t.Errorf("nvidia-smi -L does not list %s", g.ID)
		}
	})
	t.Run("the loader finds the driver's library", func(t *testing.T) {
		out := r.run(t, with.Assignment.ID, "sh", "-c", "/sbin/ldconfig -p | grep libcuda")
		t.Logf("in the member: %s", out)
		if !strings.Contains(out, gpu.Dir+"/lib/libcuda.so.1") {
			t.Error("its loader cache has no libcuda.so.1 of the driver's")
		}
	})
	t.Run("a program computes with it", func(t *testing.T) {
		needs.Request(t, cudaProgram, "tests/gpu/cdi.sh")
		copyProgram(t, os.Getenv(cudaProgram), filepath.Join(r.dir, "home", "cudacheck"))
		t.Logf("in the member: %s", r.run(t, with.Assignment.ID, "/home/cudacheck"))
		if got := r.tell(t, without.Assignment.ID, order{Run: []string{"/home/cudacheck"}}); got.Err == "" {
			t.Errorf("a member without a GPU computes, too: %s", got.Output)
		} else {
			t.Logf("in the other member: %s: %s", got.Err, got.Output)
		}
	})
	t.Run("the next member finds nothing of what the last one left in its memory", func(t *testing.T) {
		needs.Request(t, cudaProgram, "tests/gpu/cdi.sh")
		id := with.Assignment.ID
		t.Logf("in the member: %s", r.run(t, id, "/home/cudacheck", "fill"))
		if err := errors.Join(r.Stop(t.Context(), id, 0), r.Clean(t.Context(), id)); err != nil {
			t.Fatal(err)
		}
		with = withGPU(r.member(t), g.ID)
		with.Assignment.Memory[0].Bytes = 4 << 30
		if err := r.Start(t.Context(), with); err != nil {
			t.Fatal(err)
		}
		t.Logf("in the next member: %s", r.run(t, with.Assignment.ID, "/home/cudacheck", "look"))
	})
	t.Run("a member without it can't open it", func(t *testing.T) {
		if got := r.tell(t, without.Assignment.ID, order{Run: []string{"sh", "-c", "exec 3<" + own}}); got.Err == "" {
			t.Errorf("it opens %s", own)
		}
		if err := openInGroup(t, r, without.Assignment.ID, own); err == nil {
			t.Errorf("its control group lets it open %s", own)
		}
		if err := openInGroup(t, r, with.Assignment.ID, own); err != nil {
			t.Errorf("the control group of the member that holds it keeps it from %s: %v", own, err)
		}
	})
}

// copyProgram copies a program to a place where all may run it.
func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	if from, err := exec.LookPath(from); err != nil {
		t.Fatalf("%s: %v", from, err)
	}
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
