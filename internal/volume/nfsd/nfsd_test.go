package nfsd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/volume/nfsd/nfsdtest"
)

// serverAddress is the server's, in a network where nodes have 10.9.0.2 and so on.
var serverAddress = netip.MustParseAddrPort("10.9.0.1:2049")

// lab is a server and nodes in namespaces of their own, on one bridge.
type lab struct {
	dir    string
	bridge netns.Handle
	server *Server
	nodes  int
}

func newLab(t *testing.T) *lab {
	t.Helper()
	needs.Request(t, "NEARMETAL_NFS", "make test-volume-guest, whose guest has a kernel with an NFS server and client")
	dir := nfsdtest.Dir(t)
	l := &lab{dir: dir, bridge: nfsdtest.Space(t)}
	nfsdtest.Run(t, l.bridge, "ip link add name lan type bridge && ip link set lan up")
	space := nfsdtest.Space(t)
	l.join(t, space, "10.9.0.1")
	server, err := Start(t.Context(), Config{Space: space, Address: serverAddress, Dir: filepath.Join(dir, "served"), UserIDs: nfsdtest.Users})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	l.server = server
	return l
}

// join gives a namespace an address on the bridge.
func (l *lab) join(t *testing.T, space netns.Handle, address string) {
	t.Helper()
	l.nodes++
	name := fmt.Sprintf("p%d", l.nodes)
	nfsdtest.Run(t, l.bridge, fmt.Sprintf("ip link add %s type veth peer name eth0 netns /proc/%d/fd/%d && ip link set %s master lan up", name, os.Getpid(), space.FD(), name))
	nfsdtest.Run(t, space, "ip addr add "+address+"/24 dev eth0 && ip link set eth0 up && ip link set lo up")
}

// disk makes a file system of a size, whose root belongs to the members' user.
func (l *lab) disk(t *testing.T, name string, mebibytes int) string {
	t.Helper()
	dir := filepath.Join(l.dir, name)
	nfsdtest.Disk(t, dir, mebibytes)
	t.Cleanup(func() { nfsdtest.Unmount(t, dir) })
	return dir
}

func (l *lab) share(t *testing.T, s Share) {
	t.Helper()
	for range 2 { // repeating it is harmless
		if err := l.server.Share(s); err != nil {
			t.Fatal(err)
		}
	}
}

// node is another node.
type node struct {
	space netns.Handle
	own   netip.Addr
}

func (l *lab) node(t *testing.T) node {
	t.Helper()
	n := node{space: nfsdtest.Space(t), own: netip.AddrFrom4([4]byte{10, 9, 0, byte(l.nodes + 1)})}
	l.join(t, n.space, n.own.String())
	return n
}

// attach mounts a share on a node, and returns where.
func (l *lab) attach(t *testing.T, n node, name string, readOnly bool) Mount {
	t.Helper()
	m := Mount{Server: serverAddress, Own: n.own, Name: name, Dir: filepath.Join(l.dir, fmt.Sprintf("%s-at-%v", name, n.own)), ReadOnly: readOnly}
	t.Cleanup(func() {
		if err := m.Detach(context.Background()); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for range 2 {
		if err := n.space.Do(func() error { return m.Attach(ctx) }); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// A member that has all of a machine is in no user namespace: its users have the IDs of the disk, as those of containers have within their namespaces.
func TestAWholeMachineHasAVolumeWithItsOwnUserIDs(t *testing.T) {
	l := newLab(t)
	disk := l.disk(t, "data", 64)
	l.share(t, Share{Name: "data", Number: 1, Dir: disk})
	at := netip.MustParseAddrPort("10.9.0.200:2049")
	nfsdtest.Run(t, l.server.cfg.Space, "ip addr add "+at.Addr().String()+"/24 dev eth0")
	for range 2 {
		if err := l.server.ListenToMachines(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	n := l.node(t)
	if err := l.server.Admit(n.own); err != nil {
		t.Fatal(err)
	}
	m := Mount{Server: at, Own: n.own, Name: "data", Dir: filepath.Join(l.dir, "on-machine")}
	t.Cleanup(func() {
		if err := m.Detach(context.Background()); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := n.space.Do(func() error { return m.Attach(ctx) }); err != nil {
		t.Fatal(err)
	}
	as := func(uid uint32, script string) string {
		cmd := exec.Command("/bin/sh", "-c", "cd "+m.Dir+" && "+script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Logf("%s: %v", script, err)
		}
		return string(out)
	}
	if out := as(1000, "echo hello >file && stat -c %u:%g file"); out != "1000:1000\n" {
		t.Errorf("the user writes a file: %q", out)
	}
	if out := as(0, "touch roots && chown 7:8 roots && stat -c %u:%g roots"); out != "7:8\n" {
		t.Errorf("root gives a file away: %q", out)
	}
	for name, want := range map[string]uint32{"file": 1000, "roots": 7} {
		var stat unix.Stat_t
		if err := unix.Stat(filepath.Join(disk, name), &stat); err != nil || stat.Uid != want {
			t.Errorf("%s belongs to user %d on the disk (%v), want %d", name, stat.Uid, err, want)
		}
	}
	if out := as(1001, "echo x >>file"); !strings.Contains(out, "Permission denied") {
		t.Errorf("another user writes into the file: %q", out)
	}
	if out := as(nfsdtest.Users.First+1000, "echo x >>file"); out == "" {
		t.Error("a user whom no cluster has writes into the file")
	}
}

func TestMembersOnOtherNodesHaveAVolumeWithTheirOwnUserIDs(t *testing.T) {
	l := newLab(t)
	disk := l.disk(t, "data", 64)
	l.share(t, Share{Name: "data", Number: 1, Dir: disk})
	n := l.node(t)
	if err := l.server.Admit(n.own); err != nil {
		t.Fatal(err)
	}
	dir := l.attach(t, n, "data", false).Dir
	if out := nfsdtest.AsMember(t, 1000, "echo hello >"+dir+"/file && mkdir "+dir+"/d && stat -c %u:%g "+dir+"/file"); out != "1000:1000\n" {
		t.Errorf("the user of a member wrote a file: %q", out)
	}
	if out := nfsdtest.AsMember(t, 0, "touch "+dir+"/roots && chown 7:8 "+dir+"/roots && stat -c %u:%g "+dir+"/roots"); out != "7:8\n" {
		t.Errorf("root of a member gave a file away: %q", out)
	}
	for name, want := range map[string]uint32{"file": 1000, "d": 1000, "roots": 7} {
		var stat unix.Stat_t
		if err := unix.Stat(filepath.Join(disk, name), &stat); err != nil || stat.Uid != want {
			t.Errorf("%s belongs to user %d on the disk (%v), want %d", name, stat.Uid, err, want)
		}
	}
	if text, err := os.ReadFile(filepath.Join(disk, "file")); err != nil || string(text) != "hello\n" {
		t.Errorf("the file has %q on the disk (%v)", text, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "d", "host"), nil, 0o644); err == nil {
		t.Error("root of the other node, which is no user of the cluster, wrote into a member's directory")
	}
	if out := nfsdtest.AsMember(t, 1001, "echo x >"+dir+"/d/other"); !strings.Contains(out, "Permission denied") {
		t.Errorf("another user of a member wrote into the user's directory: %q", out)
	}
	if out := nfsdtest.AsMember(t, 1000, "dd if=/dev/zero of="+dir+"/big bs=1M count=128 conv=fsync"); !strings.Contains(out, "No space left") {
		t.Errorf("more than the volume holds was written: %q", out)
	}
}

func TestAVolumeThatIsReadOnlyTakesNoWrites(t *testing.T) {
	l := newLab(t)
	disk := l.disk(t, "data", 16)
	if err := os.WriteFile(filepath.Join(disk, "file"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	l.share(t, Share{Name: "data", Number: 1, Dir: disk, ReadOnly: true})
	n := l.node(t)
	if err := l.server.Admit(n.own); err != nil {
		t.Fatal(err)
	}
	dir := l.attach(t, n, "data", false).Dir // that the node's mount would allow it proves that the server does not
	if out := nfsdtest.AsMember(t, 1000, "cat "+dir+"/file; echo x >>"+dir+"/file"); !strings.HasPrefix(out, "hello\n") || !strings.Contains(out, "Read-only") {
		t.Errorf("reading and writing a read-only volume: %q", out)
	}
}

func TestANodeThatWasNotLetInSeesNothing(t *testing.T) {
	l := newLab(t)
	l.share(t, Share{Name: "data", Number: 1, Dir: l.disk(t, "data", 16)})
	n := l.node(t)
	m := Mount{Server: serverAddress, Own: n.own, Name: "data", Dir: filepath.Join(l.dir, "stranger")}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second) // long for a mount, and a stranger's never ends by itself
	defer cancel()
	err := n.space.Do(func() error { return m.Attach(ctx) })
	if err == nil {
		t.Error("a node that was not let in mounted a volume")
	}
	t.Logf("a stranger's mount: %v", err)
	if err := m.Detach(context.Background()); err != nil {
		t.Error(err)
	}
}

// A node is cut off, and goes on writing. It is shut out meanwhile. When it is back on the network, nothing that it had not written yet arrives.
func TestAClientThatIsCutOffAndShutOutWritesNoMore(t *testing.T) {
	l := newLab(t)
	disk := l.disk(t, "data", 64)
	l.share(t, Share{Name: "data", Number: 1, Dir: disk})
	lost, other := l.node(t), l.node(t)
	for _, n := range []node{lost, other} {
		if err := l.server.Admit(n.own); err != nil {
			t.Fatal(err)
		}
	}
	dir, otherDir := l.attach(t, lost, "data", false).Dir, l.attach(t, other, "data", false).Dir
	var said bytes.Buffer
	writer := nfsdtest.Member(t.Context(), 1000, "n=0; while :; do n=$((n+1)); echo $n >>"+dir+"/log && sync "+dir+"/log || { echo stopped at $n; sleep 1; }; done")
	writer.Stdout, writer.Stderr, writer.WaitDelay = &said, &said, time.Second
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = writer.Wait(); close(ended) }() // it is killed
	t.Cleanup(func() { _ = writer.Process.Kill(); <-ended })
	log := filepath.Join(disk, "log")
	until(t, "the writer writes", func() bool { return size(log) > 20 })
	nfsdtest.Run(t, lost.space, "ip link set eth0 down")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.server.Fence(ctx, lost.own); err != nil {
		t.Fatal(err)
	}
	at := size(log)
	if out := nfsdtest.AsMember(t, 1000, "echo from another node >>"+otherDir+"/log && echo wrote"); out != "wrote\n" {
		t.Errorf("a node that was not shut out: %q", out)
	}
	at += int64(len("from another node\n"))
	nfsdtest.Run(t, lost.space, "ip link set eth0 up")
	until(t, "the writer is refused", func() bool {
		return strings.Contains(said.String(), "stopped at") || received(t, lost.space) > 0 && size(log) != at
	})
	if now := size(log); now != at {
		t.Errorf("the file has %d bytes, and had %d when the client was shut out", now, at)
	}
	t.Logf("the writer: %q", said.String())
	if err := l.server.Admit(lost.own); err != nil { // a client may come back
		t.Fatal(err)
	}
}

// received is how many packets a namespace's interface has received.
func received(t *testing.T, space netns.Handle) int {
	t.Helper()
	n := 0
	_, _ = fmt.Sscan(nfsdtest.Run(t, space, "cat /sys/class/net/eth0/statistics/rx_packets 2>/dev/null || echo 0"), &n)
	return n
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// until waits for something, for two minutes.
func until(t *testing.T, what string, true func() bool) {
	t.Helper()
	look, end := time.NewTicker(50*time.Millisecond), time.After(2*time.Minute)
	defer look.Stop()
	for !true() {
		select {
		case <-look.C:
		case <-end:
			t.Fatalf("it did not come about that %s", what)
		}
	}
}

func TestAServerThatIsStoppedLeavesNothing(t *testing.T) {
	l := newLab(t)
	l.share(t, Share{Name: "data", Number: 1, Dir: l.disk(t, "data", 16)})
	if _, err := Start(t.Context(), l.server.cfg); err != nil {
		t.Errorf("a server that runs is found again: %v", err)
	}
	for range 2 {
		if err := l.server.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(l.server.cfg.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the root of a server that was stopped: %v", err)
	}
	if listening := nfsdtest.Run(t, l.server.cfg.Space, "ss -Htln"); listening != "" {
		t.Errorf("a server that was stopped listens: %q", listening)
	}
}

func TestWhatIsNotMountedIsNotServed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("mounts need root")
	}
	dir := t.TempDir()
	roots, at := filepath.Join(dir, "roots", "data"), filepath.Join(dir, "served")
	for _, d := range []string{roots, at} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := bind(roots, at); err == nil {
		t.Error("an empty directory passes for a volume")
	}
	if mounted, err := isMount(at); err != nil || mounted {
		t.Errorf("and stays mounted: %t, %v", mounted, err)
	}
	if err := unix.Mount("tmpfs", roots, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(roots, 0) })
	if err := bind(roots, at); err != nil {
		t.Errorf("a volume: %v", err)
	}
	if err := unix.Unmount(at, 0); err != nil {
		t.Error(err)
	}
}

func TestPathsAreQuotedForTheKernel(t *testing.T) {
	for path, want := range map[string]string{"/a/b": "/a/b", "/a b\n": `/a\040b\012`, `/a\b`: `/a\134b`, "/ä": `/\303\244`} {
		if got := quoted(path); got != want {
			t.Errorf("quoted(%q) = %q, want %q", path, got, want)
		}
	}
}

func TestAClientsAddressIsReadFromWhatTheKernelSays(t *testing.T) {
	for info, want := range map[string]string{
		"clientid: 0x842173986b08c3ac\naddress: \"10.9.0.2:805\"\nstatus: confirmed\n": "10.9.0.2",
		"address: \"[fd00::2]:805\"\n": "fd00::2",
	} {
		if got := addressIn(info); got != netip.MustParseAddr(want) {
			t.Errorf("address in %q: %v, want %s", info, got, want)
		}
	}
	if got := addressIn("clientid: 0x1\n"); got.IsValid() {
		t.Errorf("an address in nothing: %v", got)
	}
}
