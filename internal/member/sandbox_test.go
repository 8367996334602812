package member_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/contextualization"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/member/membercert"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/sshca"
)

// sandbox is a network namespace with a bridge, and members on it: real containers made by crun, as small as a member can be.
// It shows what a driver has to provide, and no more.
type sandbox struct {
	t       *testing.T
	name    string
	dir     string
	cluster contextualization.Cluster
	binary  string
	members []*sandboxMember
}

type sandboxMember struct {
	assignment api.Assignment
	control    string // host directory mounted at /run/nearmetal
	id         string // of the container
	pid        string
}

// testIDBase is the first host ID of the sandboxes' user namespace.
const testIDBase = 1_800_000_000

// capabilities are those a member needs: docs/decisions/010-what-a-member-needs.md tells what for.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
	"CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT",
}

// newSandbox starts a cluster of n members and skips the test where that can't be done.
func newSandbox(t *testing.T, n int) *sandbox {
	t.Helper()
	needs.Root(t, "makes namespaces and containers")
	for _, program := range []string{"crun", "ip", "nsenter", "unshare", "/usr/sbin/sshd", "ssh"} {
		needs.Program(t, program)
	}
	s := &sandbox{t: t, name: fmt.Sprintf("nmt%d", os.Getpid()), dir: t.TempDir()}
	for parent := s.dir; parent != "/"; parent = filepath.Dir(parent) {
		// The container's root must be able to reach its root directory, as another user of the host.
		info, err := os.Stat(parent)
		if err == nil && info.Mode()&0o001 == 0 {
			err = os.Chmod(parent, info.Mode()|0o011)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.binary = memberBinary(t)
	s.cluster = testCluster(t, n)
	s.run("ip", "netns", "add", s.name)
	t.Cleanup(func() { s.run("ip", "netns", "del", s.name) })
	s.run("ip", "-n", s.name, "link", "add", "br0", "type", "bridge")
	s.run("ip", "-n", s.name, "link", "set", "br0", "up")
	home := filepath.Join(s.dir, "home")
	s.mkdir(home, 0)
	s.mkdir(filepath.Join(home, s.cluster.User.Name), s.cluster.User.UID)
	renderer, err := contextualization.New(s.cluster)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range s.cluster.Members {
		files, err := renderer.Files(a.ID)
		if err != nil {
			t.Fatal(err)
		}
		m := &sandboxMember{assignment: a, control: filepath.Join(s.dir, a.Member, "control"), id: fmt.Sprintf("%s-%d", s.name, i)}
		s.members = append(s.members, m)
		s.build(m, files)
	}
	return s
}

var memberBinaryBuilt atomic.Bool

var memberBinaryOnce = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "nearmetal-member-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "nearmetal-member")
	cmd := exec.Command("go", "build", "-o", path, "github.com/nearmetal/nearmetal/cmd/nearmetal-member")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// memberBinary builds the member agent as it is now.
func memberBinary(t *testing.T) string {
	t.Helper()
	memberBinaryBuilt.Store(true)
	path, err := memberBinaryOnce()
	if err != nil {
		t.Fatalf("the member agent can't be built: %v", err)
	}
	return path
}

// removeMemberBinary removes what memberBinary built.
func removeMemberBinary() {
	if memberBinaryBuilt.Load() {
		if path, err := memberBinaryOnce(); err == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
	}
}

// testCluster describes a cluster of n members with one core each.
func testCluster(t *testing.T, n int) contextualization.Cluster {
	t.Helper()
	authority, err := sshca.New(bytes.Repeat([]byte{7}, sshca.MinSecretBytes), "u1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificates, err := membercert.New(bytes.Repeat([]byte{7}, membercert.MinSecretBytes), "u1")
	if err != nil {
		t.Fatal(err)
	}
	prefix := netip.MustParsePrefix("10.64.16.0/20")
	c := contextualization.Cluster{
		Name: "c1", Authority: authority, Certificates: certificates, Now: time.Now(), User: driver.User{Name: "hpc", UID: 1000, GID: 1000},
		Network: api.Network{Index: 1, Prefix: prefix, Gateway: prefix.Addr().Next()},
	}
	address := c.Network.Gateway
	for i := range n {
		address = address.Next()
		name := fmt.Sprintf("c1-%d", i)
		c.Members = append(c.Members, api.Assignment{
			ID: "u1." + name + ".1", ClusterUID: "u1", Cluster: "c1", Member: name, Rank: i, Slots: []int{i}, Ports: []api.PortClaim{{Address: address}},
			Oversubscribed: true,
		})
	}
	return c
}

// build writes the container's bundle.
func (s *sandbox) build(m *sandboxMember, files []driver.File) {
	dir := filepath.Join(s.dir, m.assignment.Member)
	root := filepath.Join(dir, "root")
	for _, name := range []string{"", "dev", "etc", "etc/alternatives", "etc/openmpi", "home", "proc", "root", "run", "sys", "tmp", "usr", "var", "var/log"} {
		s.mkdir(filepath.Join(root, name), 0)
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, file := range files {
		s.write(m, file)
	}
	s.mkdir(m.control, 0)
	s.run("cp", s.binary, filepath.Join(m.control, "nearmetal-member"))
	config, err := json.Marshal(s.spec(m, root))
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// write puts a generated file into the member's root, also while it runs.
func (s *sandbox) write(m *sandboxMember, file driver.File) {
	s.t.Helper()
	root := filepath.Join(s.dir, m.assignment.Member, "root")
	for parent := filepath.Dir(file.Path); parent != "/"; parent = filepath.Dir(parent) {
		s.mkdir(filepath.Join(root, parent), 0)
	}
	owner := uint32(0)
	if file.OwnedByUser {
		owner = s.cluster.User.UID
	}
	path := filepath.Join(root, file.Path)
	if err := os.WriteFile(path, file.Content, os.FileMode(file.Mode)); err != nil {
		s.t.Fatal(err)
	}
	s.own(path, owner)
}

func (s *sandbox) spec(m *sandboxMember, root string) map[string]any {
	type object = map[string]any
	mount := func(destination, kind, source string, options ...string) object {
		return object{"destination": destination, "type": kind, "source": source, "options": options}
	}
	ids := []object{{"containerID": 0, "hostID": testIDBase, "size": 65536}}
	var namespaces []object
	for _, kind := range []string{"pid", "network", "ipc", "uts", "mount", "user", "cgroup"} {
		namespaces = append(namespaces, object{"type": kind})
	}
	return object{
		"ociVersion": "1.0.2", "hostname": m.assignment.Member, "root": object{"path": root},
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "cwd": "/", "env": []string{"PATH=/usr/sbin:/usr/bin"},
			"noNewPrivileges": true,
			"args":            []string{"/run/nearmetal/nearmetal-member"},
			"capabilities":    object{"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
		},
		"mounts": []object{
			mount("/proc", "proc", "proc"),
			mount("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755", "size=64k"),
			mount("/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
			mount("/dev/shm", "tmpfs", "tmpfs", "nosuid", "nodev", "mode=1777", "size=64m"),
			mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"),
			mount("/usr", "bind", "/usr", "bind", "ro", "nosuid", "nodev"),
			mount("/etc/alternatives", "bind", "/etc/alternatives", "bind", "ro"),
			mount("/etc/openmpi", "bind", "/etc/openmpi", "bind", "ro"),
			mount("/run", "tmpfs", "tmpfs", "nosuid", "nodev", "mode=755", "size=16m"),
			mount("/tmp", "tmpfs", "tmpfs", "nosuid", "nodev", "mode=1777", "size=64m"),
			mount("/run/nearmetal", "bind", m.control, "bind", "ro", "nosuid", "nodev"),
			mount("/home", "bind", filepath.Join(s.dir, "home"), "bind", "rw", "nosuid", "nodev"),
		},
		"linux": object{"uidMappings": ids, "gidMappings": ids, "namespaces": namespaces},
	}
}

// crun runs crun where it does not see a hybrid mount of cgroups, which it refuses, and without making cgroups.
func (s *sandbox) crun(args ...string) []string {
	const hide = `umount /sys/fs/cgroup/unified 2>/dev/null; exec crun "$@"`
	return append([]string{"unshare", "-m", "sh", "-c", hide, "sh", "--root", filepath.Join(s.dir, "crun"), "--cgroup-manager=disabled"}, args...)
}

// start starts a member and connects it.
func (s *sandbox) start(m *sandboxMember) {
	s.t.Helper()
	dir := filepath.Join(s.dir, m.assignment.Member)
	pidFile, log := filepath.Join(dir, "pid"), filepath.Join(dir, "log")
	output, err := os.Create(log)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = output.Close() }()
	args := s.crun("create", "--bundle", dir, "--pid-file", pidFile, m.id)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(log)
		s.t.Fatalf("crun create: %v\n%s", err, said)
	}
	s.t.Cleanup(func() {
		if s.t.Failed() {
			said, _ := os.ReadFile(log)
			s.t.Logf("member %s said:\n%s", m.assignment.Member, said)
		}
		s.remove(m)
	})
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		s.t.Fatal(err)
	}
	m.pid = strings.TrimSpace(string(pid))
	port := fmt.Sprintf("p%d", m.assignment.Rank)
	s.run("ip", "-n", s.name, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", m.pid)
	s.run("ip", "-n", s.name, "link", "set", port, "master", "br0", "up")
	s.run("nsenter", "-t", m.pid, "-n", "ip", "addr", "add", m.assignment.Address().String()+"/20", "dev", "eth0")
	s.run("nsenter", "-t", m.pid, "-n", "ip", "link", "set", "eth0", "up")
	s.run(s.crun("start", m.id)...)
}

func (s *sandbox) remove(m *sandboxMember) {
	if m.pid == "" {
		return
	}
	m.pid = ""
	s.run(s.crun("delete", "--force", m.id)...)
	// The member's end of the pair goes with its namespace, some time after the container.
	_ = exec.Command("ip", "-n", s.name, "link", "del", fmt.Sprintf("p%d", m.assignment.Rank)).Run()
}

// exec runs a command in a member as a user and returns what it printed.
func (s *sandbox) exec(m *sandboxMember, user string, args ...string) (string, error) {
	args = append(s.crun("exec", "--user", user, "--env", "HOME=/home/hpc", "--env", "PATH=/usr/bin:/bin", "--env", "OMPI_MCA_orte_default_hostfile=/etc/nearmetal/hostfile", m.id), args...)
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// processes returns the PIDs, on the host, of a member's processes of this name.
func (s *sandbox) processes(m *sandboxMember, name string) []int {
	s.t.Helper()
	namespace, err := os.Readlink("/proc/" + m.pid + "/ns/pid")
	if err != nil {
		s.t.Fatal(err)
	}
	var pids []int
	entries, err := os.ReadDir("/proc")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// A process that ends meanwhile can't be read.
		of, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		in, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		// Zombies have no namespace any more, but those of others are none of this member's name and parent.
		if strings.TrimSpace(string(of)) == name && (in == namespace || parentOf(pid) == m.pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func parentOf(pid int) string {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if parent, ok := strings.CutPrefix(line, "PPid:"); ok {
			return strings.TrimSpace(parent)
		}
	}
	return ""
}

func (s *sandbox) signal(m *sandboxMember, name string, signal syscall.Signal) {
	s.t.Helper()
	pids := s.processes(m, name)
	if len(pids) == 0 {
		s.t.Fatalf("member %s runs no %s", m.assignment.Member, name)
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, signal)
	}
}

// untilGone waits until the member has no process, living or not reaped, of these names.
func (s *sandbox) untilGone(m *sandboxMember, names ...string) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for _, name := range names {
		for {
			pids := s.processes(m, name)
			if len(pids) == 0 {
				break
			}
			if time.Now().After(deadline) {
				s.t.Fatalf("member %s still has processes %v called %s", m.assignment.Member, pids, name)
			}
			for _, pid := range pids {
				waitForEnd(pid, time.Until(deadline))
			}
		}
	}
}

// waitForEnd returns when the process has ended (pidfd_open(2)); it may still have to be reaped.
func waitForEnd(pid int, timeout time.Duration) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(timeout.Milliseconds()))
}

func (s *sandbox) run(args ...string) {
	s.t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (s *sandbox) mkdir(path string, owner uint32) {
	s.t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		s.t.Fatal(err)
	}
	s.own(path, owner)
}

func (s *sandbox) own(path string, owner uint32) {
	s.t.Helper()
	if err := os.Lchown(path, testIDBase+int(owner), testIDBase+int(owner)); err != nil {
		s.t.Fatal(err)
	}
}
