package nfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/nfs"
	"github.com/nearmetal/nearmetal/internal/nfs/nfstest"
)

func TestMain(m *testing.M) {
	syscall.Umask(0) // as its process has
	os.Exit(m.Run())
}

// serve serves a directory. Each call of what it returns is another client.
func serve(t testing.TB, dir string, cfg nfs.Config) func(uid uint32, groups ...uint32) *client {
	t.Helper()
	needs.Root(t, "acts as other users")
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Trees, cfg.Descriptors = append([]nfs.Tree{{Export: nfs.Home, Root: os.NewFile(uintptr(tree), dir)}}, cfg.Trees...), "/proc/self/fd"
	s, err := nfs.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go s.Run(ctx)
	t.Cleanup(cancel)
	do := func(call []byte) ([]byte, error) {
		reply := make(chan []byte, 1)
		if err := s.Serve(ctx, call, func(b []byte) { reply <- b }); err != nil {
			return nil, err
		}
		return <-reply, nil
	}
	return func(uid uint32, groups ...uint32) *client {
		c := &client{t: t, Client: nfstest.Client{Do: do, UID: uid, GID: uid, Groups: groups}}
		if c.root, err = c.Root(nfs.Home); err != nil {
			t.Fatal(err)
		}
		return c
	}
}

type client struct {
	nfstest.Client
	t    testing.TB
	root []byte
}

// Status numbers of RFC 1813.
const (
	ok, perm, noEntry, access, exists, isDir, invalid, nameTooLong, notEmpty, stale, badHandle, notSync, badType, later = 0, 1, 2, 13, 17, 21, 22, 63, 66, 70, 10001, 10002, 10007, 10008
)

func (c *client) call(procedure uint32, args nfstest.Args) (uint32, *nfstest.Reply) {
	c.t.Helper()
	status, reply, err := c.NFS(procedure, args)
	if err != nil {
		c.t.Fatalf("procedure %d: %v", procedure, err)
	}
	return status, reply
}

// must calls and wants success.
func (c *client) must(procedure uint32, args nfstest.Args) *nfstest.Reply {
	c.t.Helper()
	status, reply := c.call(procedure, args)
	if status != ok {
		c.t.Fatalf("procedure %d: status %d", procedure, status)
	}
	return reply
}

// end makes sure that a reply has nothing more.
func (c *client) end(r *nfstest.Reply) {
	c.t.Helper()
	if err := r.End(); err != nil {
		c.t.Error(err)
	}
}

var asIs = nfstest.Args{}.U32(0, 0, 0, 0, 0, 0)

func withMode(mode uint32) nfstest.Args { return nfstest.Args{}.U32(1, mode, 0, 0, 0, 0, 0) }

func at(dir []byte, name string) nfstest.Args {
	return nfstest.Args{}.Bytes(dir).Bytes([]byte(name))
}

func (c *client) lookup(dir []byte, name string) ([]byte, uint32) {
	c.t.Helper()
	status, r := c.call(nfstest.Lookup, at(dir, name))
	if status != ok {
		r.After()
		c.end(r)
		return nil, status
	}
	h := r.Bytes()
	r.After()
	r.After()
	c.end(r)
	return h, ok
}

func (c *client) made(r *nfstest.Reply) []byte {
	c.t.Helper()
	r.U32()
	h := r.Bytes()
	r.After()
	r.WCC()
	c.end(r)
	return h
}

func (c *client) create(dir []byte, name string, mode uint32) []byte {
	c.t.Helper()
	return c.made(c.must(nfstest.Create, append(at(dir, name).U32(1), withMode(mode)...)))
}

func (c *client) mkdir(dir []byte, name string, mode uint32) []byte {
	c.t.Helper()
	return c.made(c.must(nfstest.MkDir, append(at(dir, name), withMode(mode)...)))
}

func (c *client) write(h []byte, offset uint64, data []byte, stable uint32) (uint32, []byte) {
	c.t.Helper()
	status, r := c.call(nfstest.Write, nfstest.Args{}.Bytes(h).U64(offset).U32(uint32(len(data)), stable).Bytes(data))
	r.WCC()
	if status != ok {
		c.end(r)
		return status, nil
	}
	if n := r.U32(); int(n) != len(data) {
		c.t.Errorf("%d of %d bytes were written", n, len(data))
	}
	if got := r.U32(); got != stable {
		c.t.Errorf("it was written as stable as %d, want %d", got, stable)
	}
	verifier := r.Fixed(8)
	c.end(r)
	return ok, verifier
}

func (c *client) read(h []byte, offset uint64, count uint32) (uint32, []byte, bool) {
	c.t.Helper()
	status, r := c.call(nfstest.Read, nfstest.Args{}.Bytes(h).U64(offset).U32(count))
	r.After()
	if status != ok {
		c.end(r)
		return status, nil, false
	}
	n, eof := r.U32(), r.U32() == 1
	data := r.Bytes()
	if int(n) != len(data) {
		c.t.Errorf("a reply says %d bytes and has %d", n, len(data))
	}
	c.end(r)
	return ok, data, eof
}

func (c *client) attributes(h []byte) (nfstest.Attributes, uint32) {
	c.t.Helper()
	status, r := c.call(nfstest.GetAttr, nfstest.Args{}.Bytes(h))
	if status != ok {
		return nfstest.Attributes{}, status
	}
	a := r.Attributes()
	c.end(r)
	return a, ok
}

// home makes a directory that anybody may write to.
func home(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "home")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFilesAreMadeByTheirCallerAndReadBack(t *testing.T) {
	dir := home(t)
	c := serve(t, dir, nfs.Config{})(1000)
	d := c.mkdir(c.root, "d", 0o750)
	f := c.create(d, "f", 0o640)
	content := bytes.Repeat([]byte("0123456789"), 20_000)
	_, first := c.write(f, 5, content, 0)
	_, second := c.write(f, 0, []byte("begin"), 2)
	r := c.must(nfstest.Commit, nfstest.Args{}.Bytes(f).U64(0).U32(0))
	r.WCC()
	if third := r.Fixed(8); !bytes.Equal(first, second) || !bytes.Equal(first, third) {
		t.Errorf("verifiers of one server: %x, %x, %x", first, second, third)
	}
	c.end(r)
	want := "begin" + string(content)
	if got, err := os.ReadFile(filepath.Join(dir, "d/f")); string(got) != want || err != nil {
		t.Errorf("the file has %d bytes, %v; want %d", len(got), err, len(want))
	}
	for _, tc := range []struct {
		offset uint64
		count  uint32
		want   string
		eof    bool
	}{{0, 5, "begin", false}, {3, 1001, want[3:1004], false}, {uint64(len(want) - 3), 100, want[len(want)-3:], true}, {1 << 40, 10, "", true}, {0, 1 << 31, want, true}} {
		status, got, eof := c.read(f, tc.offset, tc.count)
		if status != ok || string(got) != tc.want || eof != tc.eof {
			t.Errorf("read %d at %d: status %d, %d bytes, end %t; want %d bytes, end %t", tc.count, tc.offset, status, len(got), eof, len(tc.want), tc.eof)
		}
	}
	a, _ := c.attributes(f)
	if a.Type != 1 || a.Mode != 0o640 || a.UID != 1000 || a.GID != 1000 || a.Size != uint64(len(want)) || a.Links != 1 {
		t.Errorf("the file: %+v", a)
	}
	if a, _ := c.attributes(d); a.Type != 2 || a.Mode != 0o750 || a.UID != 1000 {
		t.Errorf("the directory: %+v", a)
	}
}

func TestLinksAndSpecialFilesAreMade(t *testing.T) {
	dir := home(t)
	c := serve(t, dir, nfs.Config{})(1000)
	f := c.create(c.root, "f", 0o644)
	r := c.must(nfstest.Link, append(nfstest.Args{}.Bytes(f), at(c.root, "hard")...))
	if a := r.After(); a.Links != 2 {
		t.Errorf("a file with another name has %d links", a.Links)
	}
	r.WCC()
	c.end(r)
	if h, _ := c.lookup(c.root, "hard"); !bytes.Equal(h, f) {
		t.Errorf("two names of one file have the handles %x and %x", f, h)
	}
	soft := c.made(c.must(nfstest.SymLink, append(append(at(c.root, "soft"), asIs...), nfstest.Args{}.Bytes([]byte("../../etc/passwd"))...)))
	r = c.must(nfstest.ReadLink, nfstest.Args{}.Bytes(soft))
	r.After()
	if target := r.Bytes(); string(target) != "../../etc/passwd" {
		t.Errorf("the link leads to %q", target)
	}
	for name, kind := range map[string]uint32{"socket": 6, "fifo": 7} {
		h := c.made(c.must(nfstest.MkNod, append(at(c.root, name).U32(kind), withMode(0o600)...)))
		if a, _ := c.attributes(h); a.Type != kind || a.Mode != 0o600 || a.UID != 1000 {
			t.Errorf("%s: %+v", name, a)
		}
		if status, _, _ := c.read(h, 0, 10); status != invalid { // and it does not wait for somebody who writes
			t.Errorf("reading a %s: status %d", name, status)
		}
	}
	for _, kind := range []uint32{3, 4, 99} {
		if status, _ := c.call(nfstest.MkNod, append(at(c.root, "device").U32(kind), append(withMode(0o600), nfstest.Args{}.U32(1, 3)...)...)); status != badType {
			t.Errorf("a file of type %d: status %d", kind, status)
		}
	}
	if status, _, _ := c.read(soft, 0, 10); status != invalid {
		t.Errorf("reading through a link: status %d, want it refused", status)
	}
	if status, _ := c.write(soft, 0, []byte("x"), 0); status != invalid {
		t.Errorf("writing through a link: status %d, want it refused", status)
	}
	if status, _ := c.call(nfstest.SetAttr, append(nfstest.Args{}.Bytes(soft), append(withMode(0o777), 0, 0, 0, 0)...)); status != ok {
		t.Errorf("the mode of a link: status %d", status)
	}
}

func TestNamesThatAreRemovedAndRenamed(t *testing.T) {
	dir := home(t)
	c := serve(t, dir, nfs.Config{})(1000)
	d := c.mkdir(c.root, "d", 0o755)
	f := c.create(d, "f", 0o644)
	if status, _ := c.call(nfstest.RmDir, at(c.root, "d")); status != notEmpty {
		t.Errorf("a directory that is not empty: status %d", status)
	}
	r := c.must(nfstest.Rename, append(at(d, "f"), at(c.root, "g")...))
	r.WCC()
	r.WCC()
	c.end(r)
	if h, _ := c.lookup(c.root, "g"); !bytes.Equal(h, f) {
		t.Error("a file that was renamed has another handle")
	}
	if _, status := c.lookup(d, "f"); status != noEntry {
		t.Errorf("its old name: status %d", status)
	}
	c.must(nfstest.RmDir, at(c.root, "d"))
	if _, status := c.attributes(d); status != stale {
		t.Errorf("a directory that was removed: status %d", status)
	}
	c.must(nfstest.Remove, at(c.root, "g"))
	if _, status := c.attributes(f); status != stale {
		t.Errorf("a file that was removed: status %d", status)
	}
	for name, want := range map[string]uint32{".": invalid, "..": invalid, "": invalid, "a/b": invalid, "a\x00b": invalid, strings.Repeat("x", 256): nameTooLong} {
		if status, _ := c.call(nfstest.MkDir, append(at(c.root, name), withMode(0o755)...)); status != want {
			t.Errorf("a directory named %.10q: status %d, want %d", name, status, want)
		}
	}
}

func TestACallThatIsRepeatedIsDoneOnce(t *testing.T) {
	c := serve(t, home(t), nfs.Config{})(1000)
	c.create(c.root, "f", 0o644)
	call := c.Call(nfstest.NFS, nfstest.Remove, at(c.root, "f"))
	for n := range 3 {
		r, err := c.Send(call)
		if err != nil {
			t.Fatal(err)
		}
		if status := r.U32(); status != ok {
			t.Errorf("the removal, sent %d times: status %d", n+1, status)
		}
	}
	if status, _ := c.call(nfstest.Remove, at(c.root, "f")); status != noEntry {
		t.Errorf("another removal: status %d", status)
	}
	exclusive := at(c.root, "x").U32(2, 123456, 654321)
	one, other := c.made(c.must(nfstest.Create, exclusive)), c.made(c.must(nfstest.Create, exclusive))
	if !bytes.Equal(one, other) {
		t.Error("an exclusive creation that was repeated made two files")
	}
	if status, _ := c.call(nfstest.Create, at(c.root, "x").U32(2, 123456, 999)); status != exists {
		t.Errorf("somebody else's exclusive creation: status %d", status)
	}
	if status, _ := c.call(nfstest.Create, append(at(c.root, "x").U32(1), withMode(0o600)...)); status != exists {
		t.Errorf("a guarded creation of what is there: status %d", status)
	}
	c.must(nfstest.Create, append(at(c.root, "x").U32(0), withMode(0o777)...))
}

func TestACallerMayDoWhatItsUserMay(t *testing.T) {
	dir := home(t)
	as := serve(t, dir, nfs.Config{})
	owner, group, stranger, root := as(1000, 77), as(1001, 5, 77), as(1002), as(0)
	private := owner.mkdir(owner.root, "private", 0o700)
	f := owner.create(private, "f", 0o600)
	shared := owner.create(owner.root, "shared", 0o660)
	chgrp := append(nfstest.Args{}.Bytes(shared).U32(0, 0, 1, 77, 0, 0, 0), 0, 0, 0, 0)
	owner.must(nfstest.SetAttr, chgrp)
	for _, tc := range []struct {
		what string
		c    *client
		h    []byte
		want uint32
	}{
		{"the owner", owner, f, ok},
		{"a stranger who has the handle", stranger, f, access},
		{"a member of the group, by another of its groups", group, shared, ok},
		{"a stranger to the group", stranger, shared, access},
		{"root", root, f, ok},
	} {
		if status, _, _ := tc.c.read(tc.h, 0, 10); status != tc.want {
			t.Errorf("%s reads: status %d, want %d", tc.what, status, tc.want)
		}
		if status, _ := tc.c.write(tc.h, 0, []byte("x"), 0); status != tc.want {
			t.Errorf("%s writes: status %d, want %d", tc.what, status, tc.want)
		}
		if r := tc.c.must(nfstest.Access, nfstest.Args{}.Bytes(tc.h).U32(0x3f)); tc.want == ok == func() bool { r.After(); return r.U32()&1 == 0 }() {
			t.Errorf("%s is told otherwise by ACCESS", tc.what)
		}
	}
	if _, status := stranger.lookup(private, "f"); status != access {
		t.Errorf("a stranger in a private directory: status %d", status)
	}
	if status, _ := stranger.call(nfstest.SetAttr, append(nfstest.Args{}.Bytes(f).U32(1, 0o777, 0, 0, 0, 0, 0), 0, 0, 0, 0)); status != perm {
		t.Errorf("a stranger changes a mode: status %d", status)
	}
	if status, _ := owner.call(nfstest.SetAttr, append(nfstest.Args{}.Bytes(f).U32(0, 1, 0, 0, 0, 0, 0), 0, 0, 0, 0)); status != perm {
		t.Errorf("an owner gives a file away: status %d", status)
	}
	// What was opened before stays open, whatever its mode became.
	owner.must(nfstest.SetAttr, append(nfstest.Args{}.Bytes(f).U32(1, 0, 0, 0, 0, 0, 0), 0, 0, 0, 0))
	if status, _ := owner.write(f, 0, []byte("y"), 0); status != ok {
		t.Errorf("the owner writes to a file of mode 0 that it has open: status %d", status)
	}
	script := owner.create(owner.root, "script", 0o711)
	if status, _, _ := stranger.read(script, 0, 10); status != ok {
		t.Errorf("a stranger reads the pages of a program that it may execute: status %d", status)
	}
	if status, _ := stranger.write(script, 0, []byte("x"), 0); status != access {
		t.Errorf("a stranger writes to it: status %d", status)
	}
}

func TestACallerWhoIsNobodyIsNotServed(t *testing.T) {
	as := serve(t, home(t), nfs.Config{Workers: 1})
	root := as(0).root
	const none = 0xffffffff // no ID in any namespace
	c := &nfstest.Client{Do: as(0).Do, UID: none, GID: 1000}
	if _, _, err := c.NFS(nfstest.GetAttr, nfstest.Args{}.Bytes(root)); err == nil {
		t.Error("a user without an ID was served")
	}
	c = &nfstest.Client{Do: as(0).Do, UID: 1000, GID: 1000, Groups: make([]uint32, 17)}
	if _, _, err := c.NFS(nfstest.GetAttr, nfstest.Args{}.Bytes(root)); err == nil {
		t.Error("a caller of more groups than there may be was served")
	}
	if _, status := as(1000).attributes(root); status != ok {
		t.Errorf("after them another caller: status %d", status)
	}
}

// TestHandlesOutliveTheirServer has a second server look for the files that the first one gave handles of.
func TestHandlesOutliveTheirServer(t *testing.T) {
	dir := home(t)
	c := serve(t, dir, nfs.Config{})(1000)
	var handles [][]byte
	at := c.root
	for n := range 20 {
		at = c.mkdir(at, fmt.Sprintf("d%d", n), 0o700)
		handles = append(handles, at, c.create(at, "f", 0o600))
	}
	gone := handles[len(handles)-1]
	if err := errors.Join(os.Rename(filepath.Join(dir, "d0/d1/d2"), filepath.Join(dir, "moved")), os.Remove(filepath.Join(dir, "moved/d3/f"))); err != nil {
		t.Fatal(err)
	}
	for what, cfg := range map[string]nfs.Config{"a server": {}, "a server that keeps little": {MostOpen: 2, MostFiles: 50}} {
		c := serve(t, dir, cfg)(1000)
		for n, h := range handles {
			want := uint32(ok)
			if n == 7 { // that of d3
				want = stale
			}
			a, status := c.attributes(h)
			for status == later { // too soon after a search in vain
				a, status = c.attributes(h)
			}
			if status != want || status == ok && a.UID != 1000 {
				t.Errorf("%s, handle %d: status %d of %+v, want %d", what, n, status, a, want)
			}
		}
	}
	// Numbers of files that are not in the home lead nowhere.
	outside := filepath.Join(filepath.Dir(dir), "outside")
	if err := errors.Join(os.WriteFile(outside, []byte("secret"), 0o666), os.Symlink(outside, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(outside, &stat); err != nil {
		t.Fatal(err)
	}
	forged := append(bytes.Clone(gone[:4]), nfstest.Args{}.U64(stat.Ino).U64(0)...)
	root := serve(t, dir, nfs.Config{})(0)
	if status, data, _ := root.read(forged, 0, 100); status != stale {
		t.Errorf("a forged handle of a file outside: status %d, %q", status, data)
	}
	for _, h := range [][]byte{nil, gone[:10], append(bytes.Clone(gone), 0), bytes.Repeat([]byte{0xff}, 20)} {
		if _, status := root.attributes(h); status != badHandle {
			t.Errorf("handle %x: status %d", h, status)
		}
	}
}

// FuzzACall sends calls of any kind: nothing may break, and nothing outside is changed.
func FuzzACall(f *testing.F) {
	as := serve(f, home(f), nfs.Config{})
	c := as(1000)
	file := c.create(c.root, "f", 0o644)
	for procedure := range uint32(22) {
		f.Add(procedure, []byte(append(at(c.root, "f"), asIs...)))
		f.Add(procedure, []byte(nfstest.Args{}.Bytes(file).U64(0).U32(100, 0).Bytes([]byte("data"))))
	}
	f.Fuzz(func(t *testing.T, procedure uint32, args []byte) {
		if _, err := c.Do(c.Call(nfstest.NFS, procedure, args)); err != nil {
			t.Error(err)
		}
		if _, err := c.Do(args); err != nil {
			t.Error(err)
		}
	})
}

func TestADirectoryIsListedInParts(t *testing.T) {
	dir := home(t)
	c := serve(t, dir, nfs.Config{})(1000)
	var want []string
	for n := range 2000 {
		name := fmt.Sprintf("file-%04d", n)
		want = append(want, name)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, procedure := range []uint32{nfstest.ReadDir, nfstest.ReadDirPlus} {
		var got []string
		calls := 0
		for cookie, eof := uint64(0), false; !eof; calls++ {
			args := nfstest.Args{}.Bytes(c.root).U64(cookie).U64(0)
			if procedure == nfstest.ReadDirPlus {
				args = args.U32(8192)
			}
			r := c.must(procedure, args.U32(8192))
			r.After()
			r.Fixed(8)
			for r.U32() == 1 {
				r.U64()
				name := string(r.Bytes())
				cookie = r.U64()
				if procedure == nfstest.ReadDirPlus {
					r.After()
					if r.U32() == 1 {
						if h, _ := c.lookup(c.root, name); name[0] != '.' && !bytes.Equal(h, r.Bytes()) {
							t.Errorf("%s has another handle in the list", name)
						} else if name == "." {
							r.Bytes()
						}
					}
				}
				if name != "." && name != ".." {
					got = append(got, name)
				}
			}
			eof = r.U32() == 1
			c.end(r)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || calls < 3 {
			t.Errorf("procedure %d: %d names in %d calls, want %d in several", procedure, len(got), calls, len(want))
		}
	}
}
