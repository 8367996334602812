package boot

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// gpuFolder is the folder with the programs of remote GPUs: NEARMETAL_GPU_PROGRAMS, or gpuremote beside the program.
func gpuFolder(t *testing.T) string {
	t.Helper()
	if drivers, err := filepath.Glob("/etc/OpenCL/vendors/*.icd"); err != nil || len(drivers) == 0 {
		needs.Missing(t, "there is no OpenCL driver; install pocl-opencl-icd")
	}
	folder := os.Getenv("NEARMETAL_GPU_PROGRAMS")
	if folder == "" {
		folder = filepath.Join(filepath.Dir(program(t)), "gpuremote")
	}
	if _, err := os.Stat(filepath.Join(folder, "nearmetal-gpu-server")); err != nil {
		needs.Missing(t, "the programs of remote GPUs are not in %s; run: make gpuremote", folder)
	}
	return folder
}

// gpuKernels is the program with the kernels in a guest, which has no OpenCL loader: its environment has none.
const gpuKernels = "/run/nearmetal-gpu/lib/nearmetal-gpu-kernels"

const gpuDriver = "--api opencl --library /run/nearmetal-gpu/lib/libnearmetal_opencl.so"

// nn runs one of the kernels, which checks its results.
const nn = gpuKernels + " " + gpuDriver + " --size test --kernel nn --runs 1"

// shell is in that may fail.
func (s *site) shell(cluster, member, command string) (string, error) {
	return s.try("cluster", "ssh", cluster, member, "--", command)
}

// Virtual machines on the node with the GPU and on another one call its server by TCP, each its own and nobody else's. A server that is lost is replaced
// while the machine runs, and the front ends are there after a reboot.
func TestVirtualMachinesUseTheGPUOfTheirNodeAndOfAnother(t *testing.T) {
	folder := gpuFolder(t)
	s := newNodes(t, "--nodes", "2", "--node-cores", "3", "--gpu-programs", folder, "--remote-gpus", "opencl:512MiB")
	s.run("cluster", "create", "g", "--stack", "vm", "--size", "2", "--cores", "2", "--memory", "768MiB", "--env", "debian-mpi", "--gpu", "1:remote:64MiB")
	servers, near := map[string]string{}, ""
	for _, m := range s.cluster("g").Status.Members {
		servers[m.Name] = strings.TrimSpace(s.in("g", m.Name, "cat /etc/nearmetal/gpu-server"))
		if m.Node == "n1" {
			near = m.Name
		}
		if !strings.HasPrefix(servers[m.Name], "tcp:") {
			t.Errorf("the server of %s is at %s, and a virtual machine shares no memory", m.Name, servers[m.Name])
		}
		s.in("g", m.Name, nn)
		for name, want := range map[string]string{
			"cat /etc/OpenCL/vendors/nearmetal.icd":       "/run/nearmetal-gpu/lib/libnearmetal_opencl.so",
			"/sbin/ldconfig -p | grep libcuda.so.1":       "/run/nearmetal-gpu/lib/libcuda.so.1",
			"touch /run/nearmetal-gpu/lib/x 2>&1 || true": "Read-only file system",
		} {
			if said, err := s.shell("g", m.Name, name); !strings.Contains(said, want) {
				t.Errorf("%s: %q prints %q (%v), want %q", m.Name, name, said, err, want)
			}
		}
	}
	if near == "" || len(servers) != 2 {
		t.Fatalf("the members are not on both nodes: %v", s.cluster("g").Status.Members)
	}
	s.wantGPUChoices()
	s.wantGPUBound(near)
	s.wantGPUStrangersRefused(servers)
	s.refused("has devices (gpu), whose state can't be saved", "cluster", "save", "g", "--memory")
	s.wantAnotherGPUServer(near, servers[near])

	s.run("cluster", "reboot", "g", near)
	s.until(virtualDeadline, "the rebooted machine to use its GPU", func() bool { _, err := s.shell("g", near, nn); return err == nil })
	s.run("cluster", "delete", "g", "--yes")
	if used := s.run("usage", "--by", "user", "-o", "json"); !strings.Contains(used, "gpu/remote-mib") {
		t.Errorf("the memory of remote GPUs is not in the usage: %s", used)
	}
}

// wantGPUChoices reads why which GPU was chosen, and how the members call it.
func (s *site) wantGPUChoices() {
	s.t.Helper()
	for _, command := range []string{"show", "explain"} {
		said := s.run("cluster", command, "g")
		for _, want := range []string{"TCP on one node", "another node", "the member's own node"} {
			if !strings.Contains(said, want) {
				s.t.Errorf("cluster %s does not say %q: %s", command, want, said)
			}
		}
	}
}

// wantGPUBound takes memory until the server refuses.
func (s *site) wantGPUBound(member string) {
	s.t.Helper()
	said, err := s.shell("g", member, gpuKernels+" share "+gpuDriver+" --memory-until-refused")
	if want := fmt.Sprintf("allocated %d bytes", 64<<20); !strings.Contains(said, want) || !strings.Contains(said, "CL_MEM_OBJECT_ALLOCATION_FAILURE") {
		s.t.Errorf("memory beyond its part: %q, %v; want %q and the API's error", said, err, want)
	}
}

// wantGPUStrangersRefused calls the server of one member from the other one, and from another cluster.
func (s *site) wantGPUStrangersRefused(servers map[string]string) {
	s.t.Helper()
	const connect = "timeout 3 bash -c 'exec 3<>/dev/tcp/%s/%d'"
	s.run("cluster", "create", "stranger", "--env", "debian-mpi")
	for member, at := range servers {
		for other := range servers {
			_, err := s.shell("g", other, "NEARMETAL_GPU_SERVER="+at+" NEARMETAL_GPU_TLS=/etc/nearmetal/tls "+nn)
			switch {
			case other == member && err != nil:
				s.t.Errorf("%s by its own certificate: %v", member, err)
			case other != member && (err == nil || !strings.Contains(err.Error(), "gives no ticket")):
				s.t.Errorf("%s calls the server of %s: %v", other, member, err)
			}
		}
		address := fmt.Sprintf(connect, strings.TrimSuffix(strings.TrimPrefix(at, "tcp:"), fmt.Sprintf(":%d", api.PortGPUServer)), api.PortGPUServer)
		if _, err := s.shell("g", member, address); err != nil {
			s.t.Errorf("its network does not lead to the server: %v", err)
		}
		if _, err := s.shell("stranger", "stranger-0", address); err == nil {
			s.t.Errorf("another cluster reaches the server at %s", at)
		}
	}
	s.run("cluster", "delete", "stranger", "--yes")
}

// wantAnotherGPUServer kills a member's server. The machine runs on, and what it starts later uses another server.
func (s *site) wantAnotherGPUServer(member, at string) {
	s.t.Helper()
	boot := s.in("g", member, "cat "+bootIDPath)
	out, err := exec.Command("pgrep", "-f", "^/run/nearmetal-gpu/server --supervise --listen "+at+" ").Output()
	must(s.t, err)
	var pid int
	_, err = fmt.Sscan(string(out), &pid)
	must(s.t, err)
	must(s.t, syscall.Kill(pid, syscall.SIGKILL))
	s.until(2*time.Minute, "another server", func() bool {
		_, err := s.shell("g", member, nn)
		return err == nil && strings.Contains(s.run("cluster", "events", "g"), "GPUServerPlaced")
	})
	if now := s.in("g", member, "cat "+bootIDPath); now != boot {
		s.t.Errorf("the machine booted again for another server: %s, was %s", now, boot)
	}
}
