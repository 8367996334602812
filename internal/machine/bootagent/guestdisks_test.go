package bootagent

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestOnlyWhatIsEmptyIsFormatted(t *testing.T) {
	const size = 64 << 20
	mkfs := needs.Program(t, "mkfs.ext4")
	fresh := func(name string, bytes int64) string {
		path := filepath.Join(t.TempDir(), name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, bytes)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	with := func(at int64, what string) string {
		path := fresh("disk", size)
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = file.WriteAt([]byte(what), at)
		}
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	formatted := fresh("disk", size)
	if out, err := exec.Command(mkfs, "-q", "-F", formatted).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, c := range map[string]struct {
		path string
		want content
	}{
		"zeros":                            {fresh("disk", size), contentEmpty},
		"a small disk of zeros":            {fresh("disk", 4096), contentEmpty},
		"ext4":                             {formatted, contentExt4},
		"a partition table":                {with(510, "\x55\xaa"), contentOther},
		"the head of something":            {with(12<<20, "x"), contentOther},
		"the second copy of a GUID table":  {with(size-512, "EFI PART"), contentOther},
		"a superblock where ext4 has none": {with(2048+0x38, "\x53\xef"), contentOther},
	} {
		if got, err := contentOf(c.path); err != nil || got != c.want {
			t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
		}
	}
	head, err := os.ReadFile(formatted)
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := readSuperblock(head); !ok || s.blocks*s.blockBytes != size {
		t.Errorf("its superblock says %+v, %t", s, ok)
	}
}
