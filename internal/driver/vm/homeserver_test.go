package vm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/vm"
	"github.com/nearmetal/nearmetal/internal/machine/homelink"
	"github.com/nearmetal/nearmetal/internal/memberbin"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/nfs"
	"github.com/nearmetal/nearmetal/internal/nfs/nfstest"
)

// ports is a guest's port: each connection is one of a QEMU.
type ports struct {
	path string
	free chan struct{}
}

func (p ports) Accept() (net.Conn, error) {
	if _, ok := <-p.free; !ok {
		return nil, net.ErrClosed
	}
	for {
		if conn, err := net.Dial("unix", p.path); err == nil {
			return portConn{conn, p.free}, nil
		}
	}
}
func (p ports) Close() error   { return nil }
func (p ports) Addr() net.Addr { return &net.UnixAddr{Name: p.path, Net: "unix"} }

type portConn struct {
	net.Conn
	free chan struct{}
}

func (c portConn) Close() error {
	select {
	case c.free <- struct{}{}:
	default:
	}
	return c.Conn.Close()
}

// homeOf serves a home and returns a connection to its server, as a guest's kernel has it.
func homeOf(t *testing.T) (*rig, string, func() net.Conn) {
	t.Helper()
	r, m, dial := serverOf(t, func(m *driver.Member) {
		if err := errors.Join(os.Chown(m.HomeDir, idBase, idBase), os.Chmod(m.HomeDir, 0o777)); err != nil {
			t.Fatal(err)
		}
	})
	return r, m.Assignment.ID, dial
}

// serverOf serves what a member has.
func serverOf(t *testing.T, change func(*driver.Member)) (*rig, driver.Member, func() net.Conn) {
	t.Helper()
	needs.Root(t, "makes namespaces")
	if _, err := memberbin.Binary(); err != nil {
		needs.Missing(t, err.Error())
	}
	r := newRig(t, images{})
	m := r.member(t)
	change(&m)
	socket, err := r.ServeHome(m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vm.EndHome(r.Driver, context.Background(), m.Assignment.ID); err != nil {
			t.Error(err)
		}
	})
	local, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := ports{socket, make(chan struct{}, 1)}
	port.free <- struct{}{}
	go func() { _ = homelink.Carry(t.Context(), port, local, func(net.Addr) bool { return true }) }()
	return r, m, func() net.Conn {
		conn, err := net.Dial("tcp4", local.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
}

func TestAHomesServerServesTheHomeInTheClustersName(t *testing.T) {
	r, id, dial := homeOf(t)
	c := &nfstest.Client{Do: nfstest.Over(dial()), UID: 1000, GID: 1000}
	root, err := c.Root(nfs.Home)
	if err != nil {
		t.Fatal(err)
	}
	status, reply, err := c.NFS(nfstest.MkDir, nfstest.Args{}.Bytes(root).Bytes([]byte("d")).U32(1, 0o750, 0, 0, 0, 0, 0))
	if err != nil || status != 0 {
		t.Fatalf("making a directory: status %d, %v", status, err)
	}
	reply.U32()
	dir := reply.Bytes()
	var stat unix.Stat_t
	if err := unix.Lstat(filepath.Join(r.dir, "home", "d"), &stat); err != nil || stat.Uid != idBase+1000 || stat.Gid != idBase+1000 || stat.Mode != unix.S_IFDIR|0o750 {
		t.Errorf("on the host it belongs to %d:%d, mode %o, %v", stat.Uid, stat.Gid, stat.Mode, err)
	}
	if up, _, err := c.NFS(nfstest.Lookup, nfstest.Args{}.Bytes(root).Bytes([]byte(".."))); err != nil || up != 0 {
		t.Errorf("above the home: status %d, %v; want the home again", up, err)
	} else if _, again, _ := c.NFS(nfstest.Lookup, nfstest.Args{}.Bytes(root).Bytes([]byte(".."))); !bytes.Equal(again.Bytes(), root) {
		t.Error("above the home is something else")
	}
	// IDs that the cluster does not have are nobody's.
	stranger := &nfstest.Client{Do: nfstest.Over(dial()), UID: 70_000, GID: 70_000}
	if _, _, err := stranger.NFS(nfstest.GetAttr, nfstest.Args{}.Bytes(dir)); err == nil {
		t.Error("a caller with an ID beyond the cluster's was served")
	}
	checkConfined(t, homePID(t, r, id))
}

// checkConfined looks at what a server has of the host.
func checkConfined(t *testing.T, pid int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nUid:\t3000000000\t", "\nCapBnd:\t00000000000000df\n", "\nCapInh:\t0000000000000000\n", "\nNoNewPrivs:\t1\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("its status lacks %q:\n%s", want, status)
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", pid))
	if lines := strings.Split(strings.TrimSpace(string(mounts)), "\n"); err != nil || len(lines) != 2 || !strings.Contains(lines[0], " / tmpfs ro,") || !strings.Contains(lines[1], " /fd proc ") {
		t.Errorf("it sees the mounts %q, %v", lines, err)
	}
	root, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil || len(root) != 1 || root[0].Name() != "fd" {
		t.Errorf("its root holds %v, %v", root, err)
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		target, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
		inside := target == "/" || target == "/d" || strings.HasPrefix(target, "socket:") || strings.HasPrefix(target, "anon_inode:[event") || target == "/dev/null"
		if !inside {
			t.Errorf("it has %s open", target)
		}
	}
}

func TestAHomesServerThatIsKilledIsStartedAgainAndKnowsTheHandles(t *testing.T) {
	r, id, dial := homeOf(t)
	c := &nfstest.Client{Do: nfstest.Over(dial())}
	root, err := c.Root(nfs.Home)
	if err != nil {
		t.Fatal(err)
	}
	_, reply, err := c.NFS(nfstest.MkDir, nfstest.Args{}.Bytes(root).Bytes([]byte("d")).U32(0, 0, 0, 0, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	reply.U32()
	dir := reply.Bytes()
	first := homePID(t, r, id)
	kill(t, first)
	for t.Context().Err() == nil {
		c := &nfstest.Client{Do: nfstest.Over(dial())}
		status, _, err := c.NFS(nfstest.GetAttr, nfstest.Args{}.Bytes(dir))
		if err != nil { // the old server's end
			continue
		}
		if status != 0 {
			t.Errorf("a directory of the server before: status %d", status)
		}
		break
	}
	if second := homePID(t, r, id); second == first {
		t.Errorf("the server is still process %d", first)
	}
}

func TestAHomesServerServesTheVolumesOfItsMemberToo(t *testing.T) {
	var data string
	r, m, dial := serverOf(t, func(m *driver.Member) {
		data = filepath.Join(filepath.Dir(m.HomeDir), "data")
		if err := errors.Join(os.Chown(m.HomeDir, idBase, idBase), os.Mkdir(data, 0o755), os.Chmod(data, 0o777)); err != nil {
			t.Fatal(err)
		}
		m.Mounts = []driver.Mount{{Source: data, Path: "/volumes/data"}, {Source: data, Path: "/ref", ReadOnly: true}}
	})
	id := m.Assignment.ID
	if got := exported(t, r, id); !slices.Equal(got, []string{"/", "/volumes/data", "/ref"}) {
		t.Errorf("it exports %q", got)
	}
	c := &nfstest.Client{Do: nfstest.Over(dial()), UID: 1000, GID: 1000}
	roots := map[string][]byte{}
	for _, export := range []string{nfs.Home, "/volumes/data", "/ref"} {
		root, err := c.Root(export)
		if err != nil {
			t.Fatal(err)
		}
		roots[export] = root
	}
	mkdir := func(c *nfstest.Client, export string) uint32 {
		t.Helper()
		status, _, err := c.NFS(nfstest.MkDir, nfstest.Args{}.Bytes(roots[export]).Bytes([]byte("d")).U32(1, 0o750, 0, 0, 0, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
	root := &nfstest.Client{Do: nfstest.Over(dial())}
	for _, tc := range []struct {
		what   string
		c      *nfstest.Client
		export string
		want   uint32
	}{
		{"a user in a volume that is read-only", c, "/ref", 30},
		{"root in a volume that is read-only", root, "/ref", 30},
		{"a user in a volume", c, "/volumes/data", 0},
		{"a user in the home of root", c, "/", 13},
	} {
		if got := mkdir(tc.c, tc.export); got != tc.want {
			t.Errorf("a directory made by %s: status %d, want %d", tc.what, got, tc.want)
		}
	}
	var stat unix.Stat_t
	if err := unix.Lstat(filepath.Join(data, "d"), &stat); err != nil || stat.Uid != idBase+1000 || stat.Gid != idBase+1000 {
		t.Errorf("on the host it belongs to %d:%d, %v", stat.Uid, stat.Gid, err)
	}
	checkConfined(t, homePID(t, r, id))
}
