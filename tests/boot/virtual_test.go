package boot

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/pidfd"
)

const (
	// virtualDeadline is how long emulated machines may take to boot, or to be replaced, on a busy host.
	virtualDeadline = 4 * time.Minute
	bootIDPath      = "/proc/sys/kernel/random/boot_id"
)

// wantVirtualCluster makes a cluster of two virtual machines on the two nodes of a site, runs MPI on it, moves one of them, saves and restores
// both, and deletes it.
func (s *site) wantVirtualCluster() {
	s.t.Helper()
	s.run("cluster", "create", "v1", "--stack", "vm", "--size", "2", "--memory", "512MiB", "--env", "debian-mpi")
	hosts := s.saidByRanks("v1", 2, "hostname")
	slices.Sort(hosts)
	if want := []string{"v1-0", "v1-1"}; !slices.Equal(hosts, want) {
		s.t.Errorf("two ranks ran on %v, want %v", hosts, want)
	}
	boots := s.wantOwnKernels("v1")
	to := "n1"
	if s.cluster("v1").Status.Members[0].Node == to {
		to = "n2"
	}
	s.wantMoved("v1", "v1-0", to)
	s.wantSameKernels("v1", boots)
	s.run("cluster", "save", "v1", "--memory")
	if left := machinesOf(s.t, "v1"); len(left) > 0 {
		s.t.Errorf("processes %v of the machines of a saved cluster are left", left)
	}
	s.run("cluster", "restore", "v1")
	s.wantSameKernels("v1", boots)
	s.run("cluster", "delete", "v1", "--yes")
	if left := machinesOf(s.t, "v1"); len(left) > 0 {
		s.t.Errorf("processes %v of the cluster's machines are left", left)
	}
}

// mixed is a cluster of a container and a virtual machine.
const mixed = `name: mix
groups:
- name: c
  environment: debian-mpi
- name: v
  stack: vm
  environment: debian-mpi
`

// wantMixedCluster runs MPI over a container and a virtual machine, which see each other's files with the same owner.
func (s *site) wantMixedCluster() {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "mix.yaml")
	must(s.t, os.WriteFile(file, []byte(mixed), 0o600))
	s.run("cluster", "create", "-f", file)
	hosts := s.saidByRanks("mix", 2, "sh", "-c", "hostname; touch $(hostname)")
	slices.Sort(hosts)
	if want := []string{"c-0", "v-0"}; !slices.Equal(hosts, want) {
		s.t.Errorf("two ranks ran on %v, want %v", hosts, want)
	}
	seen := s.saidByRanks("mix", 2, "stat", "-c", "%n:%u:%a", "c-0", "v-0")
	slices.Sort(seen)
	if want := []string{"c-0:1000:644", "c-0:1000:644", "v-0:1000:644", "v-0:1000:644"}; !slices.Equal(seen, want) {
		s.t.Errorf("the two see the files %v, want %v", seen, want)
	}
	s.run("cluster", "delete", "mix", "--yes")
}

// wantOwnKernels checks that the members of a cluster are machines: each has its own kernel, which is not this host's, and a QEMU of its own.
func (s *site) wantOwnKernels(cluster string) map[string]bool {
	s.t.Helper()
	host, err := os.ReadFile(bootIDPath)
	must(s.t, err)
	boots := map[string]bool{strings.TrimSpace(string(host)): true}
	for _, id := range s.saidByRanks(cluster, 2, "cat", bootIDPath) {
		if boots[id] {
			s.t.Errorf("two of the members of %s and this host have one kernel, of boot %s", cluster, id)
		}
		boots[id] = true
	}
	if got := machinesOf(s.t, cluster); len(got) != 2 {
		s.t.Errorf("the cluster of two members has the QEMU processes %v", got)
	}
	return boots
}

// openMPIWarning is what mpirun prints when a child was quicker to start than its parent to give it a process group (setpgid(2), EACCES).
var openMPIWarning = regexp.MustCompile(`(?m)^.*plm:rsh.*setpgid.*\n`)

// saidByRanks are the words that the ranks of a command print.
func (s *site) saidByRanks(cluster string, ranks int, command ...string) []string {
	s.t.Helper()
	printed := s.run(append([]string{"run", cluster, "-n", strconv.Itoa(ranks), "--"}, command...)...)
	return strings.Fields(openMPIWarning.ReplaceAllString(printed, ""))
}

// machinesOf are the QEMU processes of a cluster's members.
func machinesOf(t *testing.T, cluster string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && bytes.HasPrefix(line, []byte("/usr/bin/qemu-system-x86_64\x00-name\x00guest=")) && bytes.Contains(line, []byte("."+cluster+"-")) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			must(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// The life of virtual machines beside their agent: both may die without the other, and nothing is left in the end.
func TestVirtualMachinesOutliveTheirAgentAndAreReplacedWhenTheyDie(t *testing.T) {
	s := newNodes(t)
	s.run("cluster", "create", "v1", "--stack", "vm", "--size", "2", "--memory", "512MiB", "--env", "debian-mpi")
	before := s.wantOwnKernels("v1")

	s.run("cluster", "pause", "v1")
	s.run("cluster", "resume", "v1")

	// The agent: its machines go on, and it finds them again.
	s.killAgent("n1", "v1")
	s.until(virtualDeadline, "the cluster to be ready", func() bool { return s.isReady("v1") })
	s.wantSameKernels("v1", before)

	// A machine: its member is replaced.
	generation := read[api.Cluster](s, "cluster", "show", "v1").Status.Generation
	must(t, syscall.Kill(machinesOf(t, "v1")[0], syscall.SIGKILL))
	s.until(virtualDeadline, "the member whose machine was killed to be replaced", func() bool {
		c := read[api.Cluster](s, "cluster", "show", "v1")
		return c.Status.Generation > generation && c.Status.Phase == api.ClusterReady
	})
	fresh := 0
	for id := range s.wantOwnKernels("v1") {
		if !before[id] {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("after one machine was killed %d members have a new kernel, want 1", fresh)
	}
	s.run("cluster", "delete", "v1", "--yes")
	if left := machinesOf(t, "v1"); len(left) > 0 {
		t.Errorf("processes %v of the cluster's machines are left", left)
	}
}

// newNodes brings up a server without machines to power, which has the images of template. All of it goes with the test.
func newNodes(t *testing.T, args ...string) *site {
	t.Helper()
	needTestbed(t)
	nothingLeft(t)
	dir, err := os.MkdirTemp("", "boot")
	must(t, err)
	must(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	s := &site{t: t, program: program(t), dir: dir, listen: freeAddress(t), args: args}
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			t.Logf("the server said:\n%s", tail(s.said(), 80))
			s.logAgents()
		}
	})
	s.copyTemplate()
	s.start()
	return s
}

// logAgents logs the end of what the agents of the site's nodes said.
func (s *site) logAgents() {
	s.t.Helper()
	logs, err := filepath.Glob(filepath.Join(s.dir, "nodes", "*", "agent.log"))
	must(s.t, err)
	for _, log := range logs {
		text, err := os.ReadFile(log)
		s.t.Logf("the agent of %s said (%v):\n%s", filepath.Base(filepath.Dir(log)), err, tail(string(text), 60))
	}
}

// killAgent kills the agent of a node, on which a cluster has machines, and waits for the next one.
func (s *site) killAgent(node, cluster string) {
	s.t.Helper()
	lock := filepath.Join(s.dir, "nodes", node, "lock")
	text, err := os.ReadFile(lock)
	must(s.t, err)
	agent, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must(s.t, err)
	must(s.t, syscall.Kill(agent, syscall.SIGKILL))
	adoptMachines(s.t, cluster)
	s.until(virtualDeadline, "the agent of "+node+" to be back", func() bool {
		now, err := os.ReadFile(lock)
		return err == nil && string(now) != string(text)
	})
}

// adoptMachines waits for the machines of a cluster in place of agents that were killed: they fall to this process, which nothingLeft made the heir
// of all. libvirt takes a machine that nobody has waited for as running.
func adoptMachines(t *testing.T, cluster string) {
	t.Helper()
	for _, pid := range machinesOf(t, cluster) {
		machine, err := pidfd.Open(pid)
		if err != nil {
			continue // it has ended already
		}
		go func() {
			defer machine.Close()
			if machine.Wait(t.Context()) == nil {
				_, _ = syscall.Wait4(pid, nil, 0, nil)
			}
		}()
	}
}

func (s *site) isReady(cluster string) bool {
	out, err := s.try("cluster", "list")
	return err == nil && strings.Contains(out, cluster+" ") && strings.Contains(out, " ready ")
}
