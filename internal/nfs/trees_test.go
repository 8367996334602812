package nfs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/nfs"
	"github.com/nearmetal/nearmetal/internal/nfs/nfstest"
)

// Further status numbers of RFC 1813.
const otherDevice, readOnlySystem = 18, 30

// openTree opens a directory as a tree, as the process of a server gets it.
func openTree(t testing.TB, dir string, readOnly bool) *os.File {
	t.Helper()
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if readOnly {
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
			t.Fatal(err)
		}
	}
	file := os.NewFile(uintptr(tree), dir)
	t.Cleanup(func() { _ = file.Close() })
	return file
}

// volumes serves a home and two volumes, which are directories of one file system: what keeps them apart is the server. The second one is read-only.
func volumes(t *testing.T, home string, dirs [2]string) (as func(uid uint32) (c *client, one, two []byte)) {
	t.Helper()
	clients := serve(t, home, nfs.Config{Trees: []nfs.Tree{
		{Export: "/volumes/one", Root: openTree(t, dirs[0], false)}, {Export: "/volumes/two", Root: openTree(t, dirs[1], true)},
	}})
	return func(uid uint32) (*client, []byte, []byte) {
		c := clients(uid)
		return c, rootOf(t, c, "/volumes/one"), rootOf(t, c, "/volumes/two")
	}
}

func rootOf(t *testing.T, c *client, export string) []byte {
	t.Helper()
	root, err := c.Root(export)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func dirs(t *testing.T) (home string, volumes [2]string) {
	t.Helper()
	base := t.TempDir()
	for _, name := range []string{"home", "one", "two"} {
		if err := os.Mkdir(filepath.Join(base, name), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(base, name, "file"), []byte("of "+name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(base, "home"), [2]string{filepath.Join(base, "one"), filepath.Join(base, "two")}
}

func TestEachTreeIsMountedByItsExportAndHasFilesOfItsOwn(t *testing.T) {
	home, both := dirs(t)
	c, one, two := volumes(t, home, both)(1000)
	systems := map[uint64]bool{}
	for want, root := range map[string][]byte{"of home": c.root, "of one": one, "of two": two} {
		h, status := c.lookup(root, "file")
		if status != ok {
			t.Fatalf("%s: status %d", want, status)
		}
		if _, data, _ := c.read(h, 0, 100); string(data) != want {
			t.Errorf("the file reads %q, want %q", data, want)
		}
		for _, h := range [][]byte{root, h} {
			a, _ := c.attributes(h)
			systems[a.FileSystem] = true
		}
		if up, _ := c.lookup(root, ".."); !bytes.Equal(up, root) {
			t.Errorf("%s: above the root of its tree is %x", want, up)
		}
	}
	if len(systems) != 3 {
		t.Errorf("three trees are %d file systems: a client takes those with one number for one", len(systems))
	}
	for _, export := range []string{"", "/volumes", "/volumes/one/file", "/volumes/three", "volumes/one", strings.Repeat("/x", 2000)} {
		if root, err := c.Root(export); err == nil || !strings.Contains(err.Error(), "status 2") {
			t.Errorf("%.20q is mounted as %x, %v", export, root, err)
		}
	}
	if a, _ := c.attributes(c.root); a.FileSystem != 1 {
		t.Errorf("the home is file system %d, and was 1 in machines that were saved", a.FileSystem)
	}
}

// TestAHandleOfOneTreeNeverReachesAnother writes the numbers of a file of one tree into handles of the others.
func TestAHandleOfOneTreeNeverReachesAnother(t *testing.T) {
	home, both := dirs(t)
	as := volumes(t, home, both)
	c, one, two := as(0)
	for _, warm := range []string{"before it was looked up", "after it was looked up"} {
		for _, victim := range []string{home, both[0], both[1]} {
			var stat unix.Statx_t
			if err := unix.Statx(unix.AT_FDCWD, filepath.Join(victim, "file"), 0, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &stat); err != nil {
				t.Fatal(err)
			}
			for dir, root := range map[string][]byte{home: c.root, both[0]: one, both[1]: two} {
				forged := append(bytes.Clone(root[:len(root)-16]), nfstest.Args{}.U64(stat.Ino).U64(0)...)
				status, data, _ := c.read(forged, 0, 100)
				for status == later {
					status, data, _ = c.read(forged, 0, 100)
				}
				if want := map[bool]uint32{true: ok, false: stale}[dir == victim]; status != want {
					t.Errorf("%s, a file of %s by a handle of %s: status %d, %q; want %d", warm, filepath.Base(victim), filepath.Base(dir), status, data, want)
				}
			}
		}
		for _, root := range [][]byte{c.root, one, two} {
			c.lookup(root, "file")
		}
	}
	unknown := bytes.Clone(one)
	unknown[4]++
	if _, status := c.attributes(unknown); status != stale {
		t.Errorf("a handle of a tree that is not served: status %d", status)
	}
	alias := append(append([]byte("NMh2"), 0, 0, 0, 0, 0, 0, 0, 1), c.root[4:]...)
	if _, status := c.attributes(alias); status != badHandle {
		t.Errorf("a second handle of the home: status %d", status)
	}
	for _, name := range []string{"../two/file", "/etc/passwd", "../one"} {
		if _, status := c.lookup(one, name); status != invalid {
			t.Errorf("LOOKUP of %q: status %d", name, status)
		}
	}
	d := c.mkdir(one, "d", 0o777)
	if up, _ := c.lookup(d, ".."); !bytes.Equal(up, one) {
		t.Error("above a directory of a volume is something else than its root")
	}
	if err := os.Rename(filepath.Join(both[0], "d"), filepath.Join(home, "d")); err != nil {
		t.Fatal(err)
	}
	if h, status := c.lookup(d, ".."); status == ok {
		if _, status := c.lookup(h, "file"); status == ok {
			t.Error("a directory that the host moved to another tree leads there")
		}
	}
}

func TestWhatAReadOnlyTreeHoldsStaysAsItIs(t *testing.T) {
	home, both := dirs(t)
	for _, uid := range []uint32{0, 1000} {
		c, _, two := volumes(t, home, both)(uid)
		h, _ := c.lookup(two, "file")
		for what, call := range map[string]struct {
			procedure uint32
			args      nfstest.Args
		}{
			"WRITE":               {nfstest.Write, nfstest.Args{}.Bytes(h).U64(0).U32(1, 0).Bytes([]byte("x"))},
			"SETATTR":             {nfstest.SetAttr, append(append(nfstest.Args{}.Bytes(h), withMode(0o600)...), 0, 0, 0, 0)},
			"an owner by SETATTR": {nfstest.SetAttr, nfstest.Args{}.Bytes(h).U32(0, 1, uid, 0, 0, 0, 0, 0)},
			"a size by SETATTR":   {nfstest.SetAttr, nfstest.Args{}.Bytes(h).U32(0, 0, 0, 1).U64(0).U32(0, 0, 0)},
			"a time by SETATTR":   {nfstest.SetAttr, nfstest.Args{}.Bytes(h).U32(0, 0, 0, 0, 1, 1, 0)},
			"CREATE":              {nfstest.Create, append(at(two, "new").U32(1), withMode(0o644)...)},
			"MKDIR":               {nfstest.MkDir, append(at(two, "new"), withMode(0o755)...)},
			"SYMLINK":             {nfstest.SymLink, append(append(at(two, "new"), asIs...), nfstest.Args{}.Bytes([]byte("x"))...)},
			"MKNOD":               {nfstest.MkNod, append(at(two, "new").U32(7), withMode(0o600)...)},
			"REMOVE":              {nfstest.Remove, at(two, "file")},
			"RENAME":              {nfstest.Rename, append(at(two, "file"), at(two, "new")...)},
			"LINK":                {nfstest.Link, append(nfstest.Args{}.Bytes(h), at(two, "new")...)},
		} {
			if status, _ := c.call(call.procedure, call.args); status != readOnlySystem {
				t.Errorf("%s by user %d: status %d, want %d", what, uid, status, readOnlySystem)
			}
		}
		r := c.must(nfstest.Access, nfstest.Args{}.Bytes(h).U32(0x3f))
		if r.After(); r.U32()&(4|8) != 0 {
			t.Errorf("ACCESS tells user %d that it may write", uid)
		}
		if status, data, _ := c.read(h, 0, 100); status != ok || string(data) != "of two" {
			t.Errorf("user %d reads %q, status %d", uid, data, status)
		}
	}
}

// plain serves a home, and two directories of one mount as volumes: nothing but the server keeps them apart.
func plain(t *testing.T, home string, both [2]string) (c *client, one, two []byte) {
	t.Helper()
	var trees []nfs.Tree
	for i, export := range []string{"/volumes/one", "/volumes/two"} {
		dir, err := os.Open(both[i])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = dir.Close() })
		trees = append(trees, nfs.Tree{Export: export, Root: dir})
	}
	c = serve(t, home, nfs.Config{Trees: trees})(0)
	return c, rootOf(t, c, "/volumes/one"), rootOf(t, c, "/volumes/two")
}

// TestAFileSystemBelowATreeIsNotEntered, nor what is above the root of a tree.
func TestAFileSystemBelowATreeIsNotEntered(t *testing.T) {
	home, both := dirs(t)
	below := filepath.Join(both[0], "below")
	if err := os.Mkdir(below, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", below, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(below, unix.MNT_DETACH) })
	if err := os.WriteFile(filepath.Join(below, "secret"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	c, one, _ := plain(t, home, both)
	if _, status := c.lookup(one, "below"); status != access {
		t.Errorf("LOOKUP of another file system: status %d, want %d", status, access)
	}
	if up, _ := c.lookup(one, ".."); !bytes.Equal(up, one) {
		t.Error("above the root of a tree is something else")
	}
	r := c.must(nfstest.ReadDirPlus, nfstest.Args{}.Bytes(one).U64(0).U64(0).U32(8192, 8192))
	r.After()
	for r.Fixed(8); r.U32() == 1; {
		r.U64()
		name := string(r.Bytes())
		r.U64()
		r.After()
		if r.U32() == 1 {
			if r.Bytes(); name == "below" || name == ".." {
				t.Errorf("READDIRPLUS gives a handle of %s", name)
			}
		}
	}
	for _, path := range []string{below, filepath.Join(below, "secret")} {
		var stat unix.Stat_t
		if err := unix.Stat(path, &stat); err != nil {
			t.Fatal(err)
		}
		forged := append(bytes.Clone(one[:12]), nfstest.Args{}.U64(stat.Ino).U64(0)...)
		fresh, _, _ := plain(t, home, both)
		if _, status := fresh.attributes(forged); status != stale {
			t.Errorf("a forged handle of %s: status %d, want %d", path, status, stale)
		}
	}
}

// TestNothingIsLinkedOrRenamedBetweenTrees also where the kernel would do it, since both are of one mount.
func TestNothingIsLinkedOrRenamedBetweenTrees(t *testing.T) {
	home, both := dirs(t)
	c, one, two := plain(t, home, both)
	h, _ := c.lookup(one, "file")
	for _, to := range [][]byte{two, c.root} {
		if status, _ := c.call(nfstest.Rename, append(at(one, "file"), at(to, "new")...)); status != otherDevice {
			t.Errorf("RENAME to another tree: status %d, want %d", status, otherDevice)
		}
		if status, _ := c.call(nfstest.Link, append(nfstest.Args{}.Bytes(h), at(to, "new")...)); status != otherDevice {
			t.Errorf("LINK in another tree: status %d, want %d", status, otherDevice)
		}
		if _, status := c.lookup(to, "new"); status != noEntry {
			t.Errorf("it is there: status %d", status)
		}
	}
}

// TestHandlesOfVolumesOutliveTheirServer has a second server, with its trees in another order, look for the files that the first one gave handles of.
func TestHandlesOfVolumesOutliveTheirServer(t *testing.T) {
	home, both := dirs(t)
	c, one, two := volumes(t, home, both)(0)
	deep := c.mkdir(c.mkdir(one, "a", 0o755), "b", 0o755)
	file, _ := c.lookup(two, "file")
	next := serve(t, home, nfs.Config{Trees: []nfs.Tree{
		{Export: "/volumes/two", Root: openTree(t, both[1], true)}, {Export: "/volumes/three", Root: openTree(t, t.TempDir(), true)}, {Export: "/volumes/one", Root: openTree(t, both[0], false)},
	}})(0)
	for what, h := range map[string][]byte{"the root of a volume": one, "a directory": deep, "a file of another volume": file} {
		if _, status := next.attributes(h); status != ok {
			t.Errorf("%s: status %d", what, status)
		}
	}
}

func TestAServerIsNotMadeOfTreesThatItCantTellApart(t *testing.T) {
	home, both := dirs(t)
	for want, trees := range map[string][]nfs.Tree{
		"it is served already":               {{Export: "/v", Root: openTree(t, home, false)}, {Export: "/v", Root: openTree(t, both[0], false)}},
		"an export is a clean absolute path": {{Export: "/v/../w", Root: openTree(t, home, false)}},
		"an export is a clean":               {{Export: "v", Root: openTree(t, home, false)}},
		"not a directory":                    {{Export: "/v", Root: openTree(t, filepath.Join(home, "file"), false)}},
	} {
		if _, err := nfs.New(nfs.Config{Trees: trees, Descriptors: "/proc/self/fd"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := nfs.New(nfs.Config{}); err != nil {
		t.Errorf("a server of nothing: %v", err)
	}
}
