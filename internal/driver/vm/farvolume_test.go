package vm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/vm"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/nfs"
	"github.com/nearmetal/nearmetal/internal/nfs/nfstest"
	"github.com/nearmetal/nearmetal/internal/volume/nfsd"
	"github.com/nearmetal/nearmetal/internal/volume/nfsd/nfsdtest"
)

// shared serves a disk to another node, and returns the disk and where that node has it, to be written and to be read only. connect cuts the nodes off
// from each other, and connects them again.
func shared(t *testing.T) (disk, there, readOnly string, connect func(bool)) {
	t.Helper()
	needs.Request(t, "NEARMETAL_NFS", "make test-volume-guest, whose guest has a kernel with an NFS server and client")
	dir := nfsdtest.Dir(t)
	near, far := nfsdtest.Space(t), nfsdtest.Space(t)
	nfsdtest.Run(t, near, fmt.Sprintf("ip link add eth0 type veth peer name eth0 netns /proc/%d/fd/%d && ip addr add 10.9.0.1/24 dev eth0 && ip link set eth0 up && ip link set lo up", os.Getpid(), far.FD()))
	nfsdtest.Run(t, far, "ip addr add 10.9.0.2/24 dev eth0 && ip link set eth0 up && ip link set lo up")
	address, own := netip.MustParseAddrPort("10.9.0.1:2049"), netip.MustParseAddr("10.9.0.2")
	server, err := nfsd.Start(t.Context(), nfsd.Config{Space: near, Address: address, Dir: filepath.Join(dir, "served"), UserIDs: api.IDRange{First: idBase, Count: 65536}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	disk = filepath.Join(dir, "disk")
	nfsdtest.Disk(t, disk, 64)
	t.Cleanup(func() { nfsdtest.Unmount(t, disk) })
	if err := server.Admit(own); err != nil {
		t.Fatal(err)
	}
	var at [2]string
	for i, name := range []string{"data", "reference"} {
		if err := server.Share(nfsd.Share{Name: name, Number: i + 1, Dir: disk, ReadOnly: i == 1}); err != nil {
			t.Fatal(err)
		}
		m := nfsd.Mount{Server: address, Own: own, Name: name, Dir: filepath.Join(dir, "at-"+name), ReadOnly: i == 1}
		t.Cleanup(func() {
			if err := m.Detach(context.Background()); err != nil {
				t.Error(err)
			}
		})
		if err := far.Do(func() error { return m.Attach(t.Context()) }); err != nil {
			t.Fatal(err)
		}
		at[i] = m.Dir
	}
	connect = func(on bool) {
		nfsdtest.Run(t, far, "ip link set eth0 "+map[bool]string{true: "up", false: "down"}[on])
	}
	return disk, at[0], at[1], connect
}

// TestAMachineHasAVolumeOfAnotherNode, and its files keep their handles when it is moved to the volume's node, and back.
func TestAMachineHasAVolumeOfAnotherNode(t *testing.T) {
	disk, there, readOnly, _ := shared(t)
	r, m, dial := serverOf(t, func(m *driver.Member) {
		m.HomeDir, m.Mounts = "", []driver.Mount{{Source: there, Path: "/volumes/data"}, {Source: readOnly, Path: "/ref", ReadOnly: true}}
	})
	r.made = nil // the guest that ends with this test has no libvirtd, with which members are cleaned
	as := func(uid uint32, dial func() net.Conn) *nfstest.Client {
		return &nfstest.Client{Do: nfstest.Over(dial()), UID: uid, GID: uid}
	}
	must := func(c *nfstest.Client, procedure uint32, args nfstest.Args) *nfstest.Reply {
		t.Helper()
		for {
			status, reply, err := c.NFS(procedure, args)
			if status == 10008 { // a search has just ended in vain
				continue
			}
			if err != nil || status != 0 {
				t.Fatalf("procedure %d: status %d, %v", procedure, status, err)
			}
			return reply
		}
	}
	rootOf := func(c *nfstest.Client, export string) []byte {
		t.Helper()
		root, err := c.Root(export)
		if err != nil {
			t.Fatal(err)
		}
		return root
	}
	made := func(r *nfstest.Reply) []byte {
		r.U32()
		return r.Bytes()
	}
	asIs := nfstest.Args{}.U32(0, 0, 0, 0, 0, 0)
	at := func(dir []byte, name string) nfstest.Args { return nfstest.Args{}.Bytes(dir).Bytes([]byte(name)) }
	user := as(1000, dial)
	root := rootOf(user, "/volumes/data")
	private := made(must(user, nfstest.MkDir, append(at(root, "private"), nfstest.Args{}.U32(1, 0o700, 0, 0, 0, 0, 0)...)))
	file := made(must(user, nfstest.Create, append(at(private, "file").U32(1), nfstest.Args{}.U32(1, 0o600, 0, 0, 0, 0, 0)...)))
	must(user, nfstest.Write, nfstest.Args{}.Bytes(file).U64(0).U32(5, 2).Bytes([]byte("hello")))
	must(user, nfstest.Rename, append(at(private, "file"), at(private, "renamed")...))
	must(user, nfstest.Link, append(nfstest.Args{}.Bytes(file), at(root, "hard")...))
	must(user, nfstest.SetAttr, append(append(nfstest.Args{}.Bytes(file), nfstest.Args{}.U32(1, 0o640, 0, 0, 0, 0, 0)...), 0, 0, 0, 0))
	must(user, nfstest.ReadDirPlus, nfstest.Args{}.Bytes(private).U64(0).U64(0).U32(8192, 8192))
	must(user, nfstest.Commit, nfstest.Args{}.Bytes(file).U64(0).U32(0))
	var stat unix.Stat_t
	if err := unix.Stat(filepath.Join(disk, "private/renamed"), &stat); err != nil || stat.Uid != 1000 || stat.Mode&0o7777 != 0o640 || stat.Nlink != 2 {
		t.Errorf("on the disk it belongs to %d, mode %o, %d links, %v", stat.Uid, stat.Mode, stat.Nlink, err)
	}
	if status, _, err := as(1001, dial).NFS(nfstest.Lookup, at(private, "renamed")); err != nil || status != 13 {
		t.Errorf("another user in a private directory: status %d, %v", status, err)
	}
	must(as(0, dial), nfstest.SetAttr, append(nfstest.Args{}.Bytes(file).U32(0, 1, 7, 1, 8, 0, 0, 0), 0, 0, 0, 0))
	reference := rootOf(user, "/ref")
	if status, _, err := user.NFS(nfstest.Create, append(at(reference, "new").U32(1), asIs...)); err != nil || status != 30 {
		t.Errorf("making a file in a read-only volume: status %d, %v", status, err)
	}
	if bytes.Equal(root, reference) {
		t.Error("two volumes have one handle")
	}
	// Another server on this node, which has to look for the file, and one on the volume's.
	kill(t, homePID(t, r, m.Assignment.ID))
	again := as(0, dial)
	for t.Context().Err() == nil {
		if _, _, err := again.NFS(nfstest.GetAttr, nfstest.Args{}.Bytes(root)); err == nil {
			break
		}
		again = as(0, dial)
	}
	must(again, nfstest.GetAttr, nfstest.Args{}.Bytes(file))
	other, _, beside := serverOf(t, func(m *driver.Member) {
		m.HomeDir, m.Mounts = "", []driver.Mount{{Source: disk, Path: "/volumes/data"}}
	})
	other.made = nil
	home := as(0, beside)
	for what, h := range map[string][]byte{"the root": root, "a directory": private, "a file": file} {
		must(home, nfstest.GetAttr, nfstest.Args{}.Bytes(h))
		t.Logf("%s has the same handle on the volume's node", what)
	}
	if err := os.WriteFile(filepath.Join(disk, "fresh"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	fresh := must(home, nfstest.Lookup, at(rootOf(home, "/volumes/data"), "fresh")).Bytes()
	must(again, nfstest.GetAttr, nfstest.Args{}.Bytes(fresh))
}

// TestAMachineGoesOnWhileTheNodeOfAVolumeIsAway: its home answers, also after its server was replaced and killed amid a write to the volume, and the
// volume goes on once its node is back.
func TestAMachineGoesOnWhileTheNodeOfAVolumeIsAway(t *testing.T) {
	disk, there, _, connect := shared(t)
	r, m, dial := serverOf(t, func(m *driver.Member) {
		if err := errors.Join(os.Chown(m.HomeDir, idBase, idBase), os.Chmod(m.HomeDir, 0o777)); err != nil {
			t.Fatal(err)
		}
		m.Mounts = []driver.Mount{{Source: there, Path: "/volumes/data"}}
	})
	r.made = nil
	id := m.Assignment.ID
	as := func() *nfstest.Client { return &nfstest.Client{Do: nfstest.Over(dial()), UID: 1000, GID: 1000} }
	user := as()
	root, err := user.Root("/volumes/data")
	if err != nil {
		t.Fatal(err)
	}
	status, reply, err := user.NFS(nfstest.Create, nfstest.Args{}.Bytes(root).Bytes([]byte("file")).U32(1).U32(1, 0o600, 0, 0, 0, 0, 0))
	if err != nil || status != 0 {
		t.Fatalf("CREATE: status %d, %v", status, err)
	}
	reply.U32()
	file := reply.Bytes()
	write := func(text string) (uint32, error) {
		status, _, err := as().NFS(nfstest.Write, nfstest.Args{}.Bytes(file).U64(0).U32(uint32(len(text)), 2).Bytes([]byte(text)))
		return status, err
	}
	home := func(when string) {
		t.Helper()
		begun := time.Now()
		for t.Context().Err() == nil {
			c := as()
			root, err := c.Root(nfs.Home)
			if err != nil { // over the connection of the server before
				continue
			}
			status, _, err := c.NFS(nfstest.Create, nfstest.Args{}.Bytes(root).Bytes([]byte("file")).U32(0).U32(1, 0o600, 0, 0, 0, 0, 0))
			if err == nil && status != 0 {
				t.Errorf("the home, %s: status %d", when, status)
			}
			if err == nil {
				t.Logf("the home answers %s, after %v", when, time.Since(begun))
				return
			}
		}
	}
	connect(false)
	for range 3 {
		go func() { _, _ = write("lost") }()
	}
	threads := func() int {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", homePID(t, r, id)))
		n := 0
		for _, task := range tasks {
			if where, _ := os.ReadFile(task); strings.Contains(string(where), "rpc") || strings.Contains(string(where), "nfs") || strings.Contains(string(where), "writeback") || strings.Contains(string(where), "folio") || strings.Contains(string(where), "rwsem") {
				t.Logf("a thread waits in %s", where)
				n++
			}
		}
		return n
	}
	for threads() == 0 {
	}
	home("while three writes to the volume wait")
	begun := time.Now()
	if err := vm.ReplaceHome(r.Driver, t.Context(), m); err != nil {
		t.Fatal(err)
	}
	t.Logf("its server was replaced within %v", time.Since(begun))
	home("after its server was replaced")
	kill(t, homePID(t, r, id))
	home("after its server was killed and started anew")
	connect(true)
	for t.Context().Err() == nil {
		if status, err := write("hello"); err == nil && status == 0 {
			break
		}
	}
	if got, err := os.ReadFile(filepath.Join(disk, "file")); err != nil || !strings.HasPrefix(string(got), "hello") {
		t.Errorf("once its node is back the volume's file holds %q, %v", got, err)
	}
}
