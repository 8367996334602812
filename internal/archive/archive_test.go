package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/needs"
)

const volumeBytes = 64 << 20

// fill makes files of every kind in a directory, and returns what the archive should have of them.
func fill(t *testing.T, dir string) []string {
	t.Helper()
	in := func(name string) string { return filepath.Join(dir, name) }
	var err error
	do := func(more error) { err = errors.Join(err, more) }
	do(os.MkdirAll(in("a/b"), 0o750))
	do(os.WriteFile(in("a/b/plain"), []byte("plain\n"), 0o640))
	do(os.Link(in("a/b/plain"), in("a/second")))
	do(os.WriteFile(in("empty"), nil, 0o600))
	do(os.WriteFile(in("name \xff\n=%"), []byte("x"), 0o604))
	do(os.Symlink("/etc/passwd", in("a/out")))
	do(os.Symlink("nowhere", in("a/dangling")))
	do(unix.Mkfifo(in("pipe"), 0o620))
	do(os.WriteFile(in(strings.Repeat("long", 60)), bytes.Repeat([]byte("0123456789"), 100_000), 0o644))
	do(os.WriteFile(in("holes"), []byte("begin"), 0o644))
	do(os.Truncate(in("holes"), 8<<20))
	file, more := os.OpenFile(in("holes"), os.O_WRONLY, 0)
	do(more)
	_, more = file.WriteAt([]byte("middle"), 4<<20)
	do(errors.Join(more, file.Close()))
	do(os.WriteFile(in("hole"), nil, 0o644))
	do(os.Truncate(in("hole"), 1<<20+1))
	do(unix.Setxattr(in("a"), "user.empty", nil, 0))
	do(unix.Setxattr(in("a/b/plain"), "user.k=1%", []byte("v\x00\n"), 0))
	do(unix.Setxattr(in("a/b/plain"), "trusted.not", []byte("v"), 0))
	do(os.Chown(in("a/b/plain"), 1000, 65535))
	do(os.Chmod(in("a/b/plain"), 0o4711|fs.ModeSetuid))
	do(os.Lchown(in("a/out"), 12, 13))
	do(os.Chmod(in("a"), 0o777|fs.ModeSticky|fs.ModeSetgid))
	when := time.Unix(1_000_000_000, 250_000_000)
	for _, name := range []string{"a/b/plain", "a/out", "a/b", "a", "."} {
		at := []unix.Timespec{{Sec: when.Unix(), Nsec: int64(when.Nanosecond())}, {Sec: when.Unix(), Nsec: int64(when.Nanosecond())}}
		do(unix.UtimesNanoAt(unix.AT_FDCWD, in(name), at, unix.AT_SYMLINK_NOFOLLOW))
	}
	if err != nil {
		t.Fatal(err)
	}
	return listing(t, dir)
}

// listing tells everything of the files in a directory that an archive has.
func listing(t *testing.T, dir string) (lines []string) {
	t.Helper()
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var stat unix.Stat_t
		if err := errors.Join(err, unix.Lstat(path, &stat)); err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		line := fmt.Sprintf("%q %o %d:%d %d.%09d", name, stat.Mode, stat.Uid, stat.Gid, stat.Mtim.Sec, stat.Mtim.Nsec)
		switch stat.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %x", len(data), bytes.TrimRight(data[:min(len(data), 100)], "\x00"))
			if i := bytes.Index(data, []byte("middle")); i >= 0 {
				line += fmt.Sprintf(" middle at %d", i)
			}
			if first := inodes[stat.Ino]; first != "" {
				line += " is " + first
			}
			inodes[stat.Ino] = name
			value := make([]byte, 100)
			if n, err := unix.Getxattr(path, "user.k=1%", value); err == nil {
				line += fmt.Sprintf(" %q", value[:n])
			}
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + target
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func openDir(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func pack(t *testing.T, dir string) ([]byte, archive.Trailer) {
	t.Helper()
	var out bytes.Buffer
	trailer, err := archive.Pack(t.Context(), archive.Source{Dir: openDir(t, dir), VolumeBytes: volumeBytes, Scratch: t.TempDir()}, &out)
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), trailer
}

func unpack(t *testing.T, dir string, data []byte) (archive.Trailer, error) {
	t.Helper()
	return archive.Unpack(t.Context(), bytes.NewReader(data), archive.Target{Dir: openDir(t, dir), VolumeBytes: volumeBytes})
}

func TestAnArchiveHasAllOfADirectory(t *testing.T) {
	needs.Root(t, "makes files of other users")
	from, to := t.TempDir(), t.TempDir()
	fill(t, from)
	if err := unix.Mknod(filepath.Join(from, "socket"), unix.S_IFSOCK|0o600, 0); err != nil {
		t.Fatal(err)
	}
	beforeTheEpoch(t, filepath.Join(from, "empty"))
	beforeTheEpoch(t, from)
	want := slices.DeleteFunc(listing(t, from), func(line string) bool { return strings.HasPrefix(line, `"socket"`) })
	data, trailer := pack(t, from)
	var tail archive.Tail
	for chunk := range slices.Chunk(data, 700) {
		_, _ = tail.Write(chunk)
	}
	if passed, err := tail.Trailer(); err != nil || passed.Files != trailer.Files || passed.SHA256 != trailer.SHA256 || trailer.Skipped != 1 || trailer.Files != int64(len(want)) {
		t.Errorf("the trailer is %+v (%v), packed was %+v, and there are %d files", passed, err, trailer, len(want))
	}
	if len(data) > 1<<20 {
		t.Errorf("it has %d bytes", len(data))
	}
	if got, err := unpack(t, to, data); err != nil || got.SHA256 != trailer.SHA256 {
		t.Fatalf("unpacked %+v, %v", got, err)
	}
	if got := listing(t, to); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if _, err := unix.Getxattr(filepath.Join(to, "a/b/plain"), "trusted.not", make([]byte, 10)); !errors.Is(err, unix.ENODATA) {
		t.Errorf("an attribute of the host has come along: %v", err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(filepath.Join(to, "holes"), &stat); err != nil || stat.Blocks*512 > 1<<20 {
		t.Errorf("a file with holes takes %d bytes, %v", stat.Blocks*512, err)
	}
}

// beforeTheEpoch sets the time of a file to one before 1970.
func beforeTheEpoch(t *testing.T, path string) {
	t.Helper()
	at := unix.Timespec{Sec: -5, Nsec: 250_000_000}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{at, at}, 0); err != nil {
		t.Fatal(err)
	}
}

func TestOtherProgramsReadArchives(t *testing.T) {
	needs.Root(t, "makes files of other users")
	program := needs.Program(t, "tar")
	from, to := t.TempDir(), t.TempDir()
	want := fill(t, from)
	data, _ := pack(t, from)
	// The tar file as zstd -d makes it: this host may lack that program.
	cmd := exec.Command(program, "-x", "-p", "--numeric-owner", "--xattrs", "--xattrs-include=user.*", "-C", to, "-f", "-")
	cmd.Stdin = bytes.NewReader(plain(t, data))
	if output, err := cmd.CombinedOutput(); err != nil || len(output) > 0 {
		t.Fatalf("%v: %s", err, output)
	}
	if got := listing(t, to); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestManyNamesAndDeepTreesAreBounded(t *testing.T) {
	needs.Root(t, "makes files of other users")
	from := t.TempDir()
	dir := openDir(t, from)
	fd := int(dir.Fd())
	name := strings.Repeat("d", 200)
	for range 21 { // 4200 bytes, deeper than a path can name
		if err := unix.Mkdirat(fd, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(next) })
		fd = next
	}
	_, err := archive.Pack(t.Context(), archive.Source{Dir: openDir(t, from), VolumeBytes: volumeBytes, Scratch: t.TempDir()}, io.Discard)
	if !errors.Is(err, archive.ErrRefused) || len(err.Error()) > 300 {
		t.Errorf("packing it: %v", err)
	}
}

func TestSeemingContentIsBounded(t *testing.T) {
	from := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(from, "huge"), nil, 0o600), os.Truncate(filepath.Join(from, "huge"), 65*volumeBytes)); err != nil {
		t.Fatal(err)
	}
	_, err := archive.Pack(t.Context(), archive.Source{Dir: openDir(t, from), VolumeBytes: volumeBytes, Scratch: t.TempDir()}, io.Discard)
	if !errors.Is(err, archive.ErrRefused) {
		t.Errorf("packing it: %v", err)
	}
}

func TestACutOrChangedArchiveIsRefused(t *testing.T) {
	needs.Root(t, "makes files of other users")
	from := t.TempDir()
	fill(t, from)
	data, trailer := pack(t, from)
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "other"), []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	foreign, _ := pack(t, other)
	last := len(data) - 1024
	cases := map[string][]byte{
		"empty":                    nil,
		"no archive":               bytes.Repeat([]byte("no archive"), 500),
		"no trailer":               data[:last],
		"the trailer of another":   append(slices.Clone(data[:last]), foreign[len(foreign)-1024:]...),
		"only a trailer":           data[last:],
		"another in front":         append(slices.Clone(foreign), data...),
		"another number of files":  bytes.Replace(data, fmt.Appendf(nil, `"files":%d`, trailer.Files), fmt.Appendf(nil, `"files":%d`, trailer.Files+1), 1),
		"another version":          bytes.Replace(data, []byte(`"nearmetal_volume_archive":1`), []byte(`"nearmetal_volume_archive":2`), 1),
		"changed in the middle":    flip(data, last/2),
		"changed in the beginning": flip(data, 30),
	}
	for cut := range 20 {
		cases[fmt.Sprintf("cut at %d/20", cut)] = data[:len(data)*cut/20]
	}
	for name, bad := range cases {
		if _, err := unpack(t, t.TempDir(), bad); !errors.Is(err, archive.ErrDamaged) && !errors.Is(err, archive.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var out bytes.Buffer
	if err := archive.WriteFailure(&out, errors.New("the disk\n"+strings.Repeat("\"", 9000))); err != nil {
		t.Fatal(err)
	}
	var tail archive.Tail
	_, _ = tail.Write(append(slices.Clone(data[:last/2]), out.Bytes()...))
	if _, err := tail.Trailer(); err == nil || !strings.HasPrefix(err.Error(), `the disk "`) {
		t.Errorf("of one that has failed: %v", err)
	}
}

func flip(data []byte, at int) []byte {
	data = slices.Clone(data)
	data[at] ^= 0x55
	return data
}

func TestHostileArchivesAreRefused(t *testing.T) {
	needs.Root(t, "makes files of other users")
	file := func(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644} }
	link := func(name, target string, kind byte) *tar.Header {
		return &tar.Header{Typeflag: kind, Name: name, Linkname: target}
	}
	with := func(h *tar.Header, change func(*tar.Header)) *tar.Header { change(h); return h }
	dir := &tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}
	acl := string([]byte{2, 0, 0, 0, 2, 0, 7, 0, 0, 0, 1, 0}) // the user 65536
	for name, entries := range map[string][]*tar.Header{
		"a parent":                       {file("../out")},
		"a parent in between":            {file("a/../../out")},
		"an absolute path":               {file("/out")},
		"no name":                        {file("")},
		"a path with a dot":              {file("./out")},
		"a long path":                    {file(strings.Repeat("d/", 2100) + "f")},
		"a directory that is not there":  {file("a/b")},
		"through a link":                 {link("a", "OUT", tar.TypeSymlink), file("a/out")},
		"a directory in place of a link": {link("a", "OUT", tar.TypeSymlink), {Typeflag: tar.TypeDir, Name: "a/"}},
		"a file in place of a link":      {link("a", "OUT/out", tar.TypeSymlink), file("a")},
		"a file twice":                   {file("a"), file("a")},
		"a link to a file outside":       {link("a", "../out", tar.TypeLink)},
		"a link to an absolute path":     {link("a", "/etc/passwd", tar.TypeLink)},
		"a link through a link":          {link("a", "/etc", tar.TypeSymlink), link("b", "a/passwd", tar.TypeLink)},
		"a link to a directory":          {{Typeflag: tar.TypeDir, Name: "d/"}, link("b", "d", tar.TypeLink)},
		"a character device":             {{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}},
		"a block device":                 {{Typeflag: tar.TypeBlock, Name: "disk", Devmajor: 7}},
		"a user beyond":                  {with(file("a"), func(h *tar.Header) { h.Uid = 65536 })},
		"a group beyond":                 {with(file("a"), func(h *tar.Header) { h.Gid = 1 << 31 })},
		"a file that is too large":       {with(file("a"), func(h *tar.Header) { h.Size = 65 * volumeBytes })},
		"a huge size":                    {with(file("a"), func(h *tar.Header) { h.Size = 1 << 62 })},
		"a right on the host":            {with(file("a"), func(h *tar.Header) { h.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "x"} })},
		"a trusted attribute":            {with(file("a"), func(h *tar.Header) { h.PAXRecords = map[string]string{"SCHILY.xattr.trusted.a": "x"} })},
		"a list for a user beyond":       {with(file("a"), func(h *tar.Header) { h.PAXRecords = map[string]string{"SCHILY.xattr.system.posix_acl_access": acl} })},
		"a list that is cut":             {with(file("a"), func(h *tar.Header) { h.PAXRecords = map[string]string{"SCHILY.xattr.system.posix_acl_access": acl[:7]} })},
		"a second root":                  {file("a"), dir},
		"a file as the root":             {with(file("."), func(h *tar.Header) { h.Typeflag = tar.TypeSymlink; h.Linkname = "/" })},
		"a global record":                {{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"path": "../x"}}},
	} {
		parent := t.TempDir()
		outside, inside := filepath.Join(parent, "outside"), filepath.Join(parent, "inside")
		if err := errors.Join(os.Mkdir(outside, 0o755), os.Mkdir(inside, 0o755)); err != nil {
			t.Fatal(err)
		}
		for _, h := range entries {
			h.Linkname = strings.Replace(h.Linkname, "OUT", outside, 1)
		}
		_, err := unpack(t, inside, hostile(t, append([]*tar.Header{dir}, entries...)))
		if err == nil {
			t.Errorf("%s: it was unpacked", name)
		}
		for _, h := range entries {
			if (h.Typeflag == tar.TypeChar || h.Uid > 0 || h.Size > 0) && !errors.Is(err, archive.ErrRefused) && !errors.Is(err, archive.ErrDamaged) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
			t.Errorf("%s: outside is %v, %v", name, left, err)
		}
		if beside, err := os.ReadDir(parent); err != nil || len(beside) != 2 {
			t.Errorf("%s: beside is %v, %v", name, beside, err)
		}
	}
	if _, err := unpack(t, t.TempDir(), hostile(t, []*tar.Header{dir, file("a")})); err != nil {
		t.Errorf("one that is not hostile: %v", err)
	}
}

func TestPackingAndUnpackingEndWithTheirContext(t *testing.T) {
	needs.Root(t, "makes files of other users")
	from := t.TempDir()
	fill(t, from)
	data, _ := pack(t, from)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := archive.Pack(ctx, archive.Source{Dir: openDir(t, from), VolumeBytes: volumeBytes, Scratch: t.TempDir()}, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("packing: %v", err)
	}
	if _, err := archive.Unpack(ctx, bytes.NewReader(data), archive.Target{Dir: openDir(t, t.TempDir()), VolumeBytes: volumeBytes}); !errors.Is(err, context.Canceled) {
		t.Errorf("unpacking: %v", err)
	}
}
