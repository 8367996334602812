package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// gpuPrograms is the folder with the programs of remote GPUs: NEARMETAL_GPU_PROGRAMS, or gpuremote beside the program.
func gpuPrograms(t *testing.T) string {
	t.Helper()
	folder := os.Getenv("NEARMETAL_GPU_PROGRAMS")
	if folder == "" {
		folder = filepath.Join(filepath.Dir(program(t, ordinary)), "gpuremote")
	}
	for _, name := range []string{"nearmetal-gpu-server", "libnearmetal_opencl.so", "nearmetal-gpu-kernels"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			needs.Missing(t, "%s is not there; run: make gpuremote", filepath.Join(folder, name))
		}
	}
	return folder
}

// gpuSite is a site whose first node hands out memory of the machine's own OpenCL device, PoCL.
type gpuSite struct {
	*site
	// programs is the folder with the programs of remote GPUs.
	programs string
}

func startGPUSite(t *testing.T, memory string, flags ...string) gpuSite {
	t.Helper()
	program(t, ordinary)
	if drivers, err := filepath.Glob("/etc/OpenCL/vendors/*.icd"); err != nil || len(drivers) == 0 {
		needs.Missing(t, "there is no OpenCL driver; install pocl-opencl-icd")
	}
	programs := gpuPrograms(t)
	nothingLeft(t)
	return gpuSite{programs: programs, site: startSite(t, 2, append([]string{"--nodes", "2", "--gpu-programs", programs, "--remote-gpus", "opencl:" + memory, "--node-cores", "2"}, flags...)...)}
}

// in runs a shell command in a member.
func (s gpuSite) in(c api.Cluster, member, command string) answer {
	return s.cli("cluster", "ssh", c.Name, member, "--", command)
}

// kernel runs one of the eight kernels in a member, by remote OpenCL; it checks its results.
func (s gpuSite) kernel(c api.Cluster, member, variables string) answer {
	return s.in(c, member, "env "+variables+" /run/nearmetal-gpu/lib/nearmetal-gpu-kernels --api opencl --size test --kernel nn --runs 1")
}

// server is where a member's programs find their server: unix:PATH or tcp:HOST:PORT.
func (s gpuSite) server(c api.Cluster, member string) string {
	s.t.Helper()
	a := s.in(c, member, "cat /etc/nearmetal/gpu-server")
	if a.code != 0 {
		s.t.Fatalf("%s knows no GPU server: %+v", member, a)
	}
	return strings.TrimSpace(a.out)
}

// processes are those of this test whose command line has these arguments in a row, by PID.
func (s gpuSite) processes(arguments ...string) (pids []int) {
	s.t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, file := range all {
		text, err := os.ReadFile(file)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && strings.Contains("\x00"+string(text), "\x00"+strings.Join(arguments, "\x00")+"\x00") && descends(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// descends reports whether a process was started by this one, or by one that was: orphans fall to this process (hostsnapshot.AdoptOrphans).
func descends(pid int) bool {
	for pid > 1 && pid != os.Getpid() {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, ok := strings.Cut(string(stat), ") ") // the name, which is in parentheses, has none here
		fields := strings.Fields(rest)
		if err != nil || !ok || len(fields) < 2 {
			return false
		}
		pid, _ = strconv.Atoi(fields[1]) // proc_pid_stat(5), ppid
	}
	return pid == os.Getpid()
}

// kill kills the only process with these arguments.
func (s gpuSite) killOnly(arguments ...string) {
	s.t.Helper()
	pids := s.processes(arguments...)
	if len(pids) != 1 {
		s.t.Fatalf("%d processes have the arguments %q, want one", len(pids), arguments)
	}
	if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
}

// Members use the GPU of the node that has one: by shared memory on that node, and by TCP on the other, within their cluster's network.
func TestClustersShareTheGPUOfAnotherNode(t *testing.T) {
	s := startGPUSite(t, "1GiB")
	c1 := s.cluster("c1", 3, "--gpu", "1:remote:256MiB")
	c2 := s.cluster("c2", 1, "--gpu", "1:remote:256MiB")
	near, far, other := c1.Status.Members[0], c1.Status.Members[2], c2.Status.Members[0]
	if near.Node != "n1" || far.Node != "n2" {
		t.Fatalf("the members are on %s and %s, want n1 and n2", near.Node, far.Node)
	}
	if a := s.cli("cluster", "create", "c3", "--gpu", "1:remote:256MiB"); a.code != exitRefused || !strings.Contains(a.err, "0MiB of 1GiB free of GPU opencl0") && !strings.Contains(a.err, "core") {
		t.Errorf("a fifth part of 256MiB of 1GiB: %d %q", a.code, a.err)
	}
	if got := s.server(c1, near.Name); !strings.HasPrefix(got, "unix:") {
		t.Errorf("%s is on the GPU's node, and its server is %s", near.Name, got)
	}
	if a := s.kernel(c1, near.Name, ""); a.code != 0 {
		t.Errorf("by shared memory: %+v", a)
	}
	s.wantWire(c1, far.Name)
	s.wantNoOwnDevice(c1, far.Name)
	s.wantBound(c1, far.Name, 256<<20)
	s.wantStrangersRefused(c1, far.Name, near.Name, c2, other.Name)
	s.wantServersBack(c1, far)
	s.wantAdopted(c1, far.Name)
	if out := s.must("node", "show", "n1"); !strings.Contains(out, "c1/"+far.Name) || !strings.Contains(out, "256MiB") {
		t.Errorf("node show does not say who uses the GPU: %s", out)
	}
	s.wantMeasured(c1, far.Name)
	s.must("cluster", "delete", "c1", "--yes")
	s.wantAnyGPU()
	if a := s.kernel(c2, other.Name, ""); a.code != 0 {
		t.Errorf("c2 after the end of c1: %+v", a)
	}
	s.must("cluster", "delete", "c2", "--yes")
	if left := s.processes("--supervise"); len(left) > 0 {
		t.Errorf("servers are left: %v", left)
	}
}

// wantMeasured measures the ways to this machine's device and that over a cluster's network, beside what was expected of it.
func (s gpuSite) wantMeasured(c api.Cluster, member string) {
	s.t.Helper()
	if out := s.must("cluster", "explain", c.Name); !strings.Contains(out, "EXPECTED") || !strings.Contains(out, "another node") {
		s.t.Errorf("explain does not say which GPU %s has, why, and what was expected: %s", member, out)
	}
	out := filepath.Join(s.t.TempDir(), "study")
	a := s.cli("measure", "gpu", "--size", "test", "--kernel", "nn,pathfinder", "--rounds", "2", "--gpu-programs", s.programs, "--out", out, "--member", c.Name+"/"+member)
	for _, want := range []string{"network / local", "published / local", "measured / expected", "clEnqueueNDRangeKernel"} {
		if !strings.Contains(a.out, want) {
			s.t.Errorf("the study's report lacks %q: %+v", want, a)
		}
	}
	if _, err := os.Stat(filepath.Join(out, "report.html")); a.code != 0 || err != nil {
		s.t.Errorf("measure gpu ended with %d: %v", a.code, err)
	}
}

// wantAnyGPU asks for any GPU at a site that has only servers.
func (s gpuSite) wantAnyGPU() {
	s.t.Helper()
	c := s.cluster("any", 1, "--gpu", "1:any:256MiB")
	if a := s.kernel(c, c.Status.Members[0].Name, ""); a.code != 0 {
		s.t.Errorf("any GPU: %+v", a)
	}
	if out := s.must("cluster", "explain", "any"); !strings.Contains(out, "its node has no such GPU; by a server on ") {
		s.t.Errorf("explain does not say why it is one by a server: %s", out)
	}
	s.must("cluster", "delete", "any", "--yes")
}

// wantWire runs a kernel in a member on another node than the GPU, and counts what crosses the network.
func (s gpuSite) wantWire(c api.Cluster, member string) {
	s.t.Helper()
	sent := func() int {
		n, err := strconv.Atoi(strings.TrimSpace(s.in(c, member, "cat /sys/class/net/eth0/statistics/tx_bytes").out))
		if err != nil {
			s.t.Fatal(err)
		}
		return n
	}
	before := sent()
	if a := s.kernel(c, member, ""); a.code != 0 {
		s.t.Errorf("by TCP: %+v", a)
	}
	const records = 3000 * 8 // what the kernel copies to the device
	if n := sent() - before; n < records {
		s.t.Errorf("the member sent %d bytes, and copied %d to the GPU", n, records)
	}
}

// wantNoOwnDevice makes sure that what a member calculates on is not its own node's processor.
func (s gpuSite) wantNoOwnDevice(c api.Cluster, member string) {
	s.t.Helper()
	if a := s.kernel(c, member, "NEARMETAL_GPU_SERVER=tcp:127.0.0.1:1"); a.code == 0 {
		s.t.Errorf("without the server, %s has an OpenCL device: %+v", member, a)
	}
}

// wantBound takes memory until the server refuses.
func (s gpuSite) wantBound(c api.Cluster, member string, bytes int) {
	s.t.Helper()
	a := s.in(c, member, "/run/nearmetal-gpu/lib/nearmetal-gpu-kernels share --api opencl --memory-until-refused")
	if want := fmt.Sprintf("allocated %d bytes", bytes); !strings.Contains(a.out, want) || !strings.Contains(a.out, "CL_MEM_OBJECT_ALLOCATION_FAILURE") {
		s.t.Errorf("memory beyond its part: %+v, want %q and the API's error", a, want)
	}
}

// wantStrangersRefused calls the server of a member from another member of its cluster, and from another cluster.
func (s gpuSite) wantStrangersRefused(c api.Cluster, member, beside string, other api.Cluster, stranger string) {
	s.t.Helper()
	at := s.server(c, member)
	by := "NEARMETAL_GPU_SERVER=" + at + " NEARMETAL_GPU_TLS=/etc/nearmetal/tls"
	if a := s.kernel(c, member, by); a.code != 0 {
		s.t.Errorf("the member itself: %+v", a)
	}
	if a := s.kernel(c, beside, by); a.code == 0 || !strings.Contains(a.err, "gives no ticket") {
		s.t.Errorf("another member of the cluster: %+v", a)
	}
	if a := s.kernel(c, member, "NEARMETAL_GPU_SERVER="+at); a.code == 0 || !strings.Contains(a.err, "the token is not this server's") {
		s.t.Errorf("without a ticket: %+v", a)
	}
	address, port, _ := strings.Cut(strings.TrimPrefix(at, "tcp:"), ":")
	const connect = "timeout 3 bash -c 'exec 3<>/dev/tcp/%s/%s'"
	if a := s.in(c, beside, fmt.Sprintf(connect, address, port)); a.code != 0 {
		s.t.Errorf("its network does not lead to the server: %+v", a)
	}
	if a := s.in(other, stranger, fmt.Sprintf(connect, address, port)); a.code == 0 {
		s.t.Errorf("another cluster reaches the server at %s", at)
	}
}

// wantServersBack kills the listener of a member's server, and then all of the server. The member stays, and its later programs work.
func (s gpuSite) wantServersBack(c api.Cluster, m api.MemberStatus) {
	s.t.Helper()
	const firstProcess = "stat -c %Y /proc/1"
	at, since := s.server(c, m.Name), s.in(c, m.Name, firstProcess).out
	s.killOnly("/proc/self/exe", "--listen", at)
	s.eventually(20*time.Second, "another listener", func() bool { return s.kernel(c, m.Name, "").code == 0 })
	if events := s.must("cluster", "events", c.Name); strings.Contains(events, "GPUServerLost") {
		s.t.Errorf("a listener that was killed is taken for a server that is lost: %s", events)
	}
	s.killOnly("/run/nearmetal-gpu/server", "--supervise", "--listen", at)
	s.eventually(20*time.Second, "another server", func() bool {
		return strings.Contains(s.must("cluster", "events", c.Name), "GPUServerPlaced") && s.kernel(c, m.Name, "").code == 0
	})
	if now := s.in(c, m.Name, firstProcess).out; now != since {
		s.t.Errorf("the member was started again: its first process is of %q, and was of %q", now, since)
	}
	s.waitReady(c.Name)
}

// wantAdopted kills the agent of the GPU's node. Servers go on.
func (s gpuSite) wantAdopted(c api.Cluster, member string) {
	s.t.Helper()
	before := s.processes("--supervise")
	if err := syscall.Kill(s.agentOf("n1"), syscall.SIGKILL); err != nil {
		s.t.Fatal(err)
	}
	s.waitForNodes(2)
	if a := s.kernel(c, member, ""); a.code != 0 || !slices.Equal(s.processes("--supervise"), before) {
		s.t.Errorf("after a new agent: %+v, servers %v, want %v", a, s.processes("--supervise"), before)
	}
}

// chosen is what explain says of the GPU of a cluster's only member.
func (s gpuSite) chosen(cluster string) api.DeviceUse {
	s.t.Helper()
	var ex api.Explanation
	if err := json.Unmarshal([]byte(s.must("cluster", "explain", cluster, "-o", "json")), &ex); err != nil || len(ex.GPUs) != 1 {
		s.t.Fatalf("explain has %d GPUs of cluster %s, want one: %v", len(ex.GPUs), cluster, err)
	}
	return ex.GPUs[0]
}

// A server leaves a node that is drained as soon as another has room for it, and its member stays. What the choice rests on was measured, and what came of
// it is counted.
func TestAGPUServerLeavesADrainedNode(t *testing.T) {
	s := startGPUSite(t, "512MiB", "--remote-gpu-nodes", "2")
	s.eventually(time.Minute, "measured round trips", func() bool { return strings.Contains(s.must("node", "show", "n2"), "ROUND TRIP") })
	first := s.cluster("first", 1, "--gpu", "1:remote:512MiB")
	c := s.cluster("second", 1, "--gpu", "1:remote:512MiB")
	m := c.Status.Members[0]
	if at := first.Status.Members[0].Node; at != "n1" || m.Node != "n1" {
		t.Fatalf("the members are on %s and %s, want both on n1, whose device has room for the first", at, m.Node)
	}
	use := s.chosen(c.Name)
	if use.Node != "n2" || !strings.Contains(use.Figures, "round trip of") || !strings.Contains(use.Figures, "before)") {
		t.Errorf("its server is on %s by the figures %q, want n2, and a round trip that was measured", use.Node, use.Figures)
	}
	if a := s.kernel(c, m.Name, ""); a.code != 0 {
		t.Errorf("by n2: %+v", a)
	}
	s.eventually(90*time.Second, "what the server did", func() bool {
		use = s.chosen(c.Name)
		return use.Service != nil && use.Service.Waits > 0 && use.Observed > 1
	})
	t.Logf("expected %.2f by %s; observed %.2f: %+v", use.Cost, use.Figures, use.Observed, *use.Service)
	if use.Service.Calls < use.Service.Waits || use.Service.WaitSeconds > 1 || use.Service.BusySeconds <= 0 {
		t.Errorf("the server counts %+v", *use.Service)
	}
	s.eventually(90*time.Second, "a load", func() bool {
		return strings.Contains(s.must("node", "show", "n2", "-o", "json"), `"busy":`)
	})

	if out := s.must("cluster", "show", c.Name); !strings.Contains(out, "OBSERVED") || !strings.Contains(out, fmt.Sprintf("%.2f", use.Cost)) {
		t.Errorf("show does not have what was expected beside what was observed: %s", out)
	}
	s.must("node", "drain", "n2", "--reason", "new memory")
	if out := s.must("cluster", "explain", c.Name); !strings.Contains(out, "is still on node n2, which is drained; no other node has room for it") {
		t.Errorf("explain does not say why the server stays on n2: %s", out)
	}
	if a := s.kernel(c, m.Name, ""); a.code != 0 {
		t.Errorf("while no other node has room: %+v", a)
	}
	s.must("cluster", "delete", "first", "--yes")
	s.eventually(30*time.Second, "a server on n1", func() bool {
		return strings.Contains(s.must("cluster", "events", c.Name), "GPUServerMoved") && s.kernel(c, m.Name, "").code == 0
	})
	if now, at := s.chosen(c.Name), s.server(c, m.Name); now.Node != "n1" || now.Why != "the member's own node" || !strings.HasPrefix(at, "tcp:") {
		t.Errorf("its server is on %s at %s: %s", now.Node, at, now.Why)
	}
	s.eventually(30*time.Second, "an empty n2", func() bool { return !strings.Contains(s.must("node", "show", "n2"), "second/") })
	s.waitReady(c.Name)
	s.must("node", "undrain", "n2")
	s.must("cluster", "delete", "second", "--yes")
}
