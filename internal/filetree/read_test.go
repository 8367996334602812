package filetree

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLinksOfARootLeadNowhereElse(t *testing.T) {
	outside := t.TempDir()
	inside := filepath.Join(outside, "root")
	secret := filepath.Join(outside, "secret")
	err := errors.Join(
		os.WriteFile(secret, []byte("the machine's"), 0o600), os.MkdirAll(filepath.Join(inside, "etc"), 0o700),
		os.WriteFile(filepath.Join(inside, "etc/passwd"), []byte("the image's"), 0o600),
		os.Symlink(secret, filepath.Join(inside, "absolute")), os.Symlink("../../secret", filepath.Join(inside, "etc/relative")),
		os.Symlink("/etc/passwd", filepath.Join(inside, "link")), os.Symlink("etc", filepath.Join(inside, "dirlink")),
		unix.Mkfifo(filepath.Join(inside, "pipe"), 0o600), os.WriteFile(filepath.Join(inside, "big"), make([]byte, 101), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	root, err := OpenRoot(inside)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, c := range []struct{ name, want, refusal string }{
		{"/etc/passwd", "the image's", ""},
		{"/link", "the image's", ""},
		{"/dirlink/passwd", "the image's", ""},
		{"/../../secret", "", "no such file"},
		{"/absolute", "", "no such file"},
		{"/etc/relative", "", "no such file"},
		{"/pipe", "", "no regular file"},
		{"/etc", "", "no regular file"},
		{"/big", "", "more than 100 bytes"},
	} {
		data, err := root.ReadFile(c.name, 100)
		if string(data) != c.want || (err == nil) != (c.refusal == "") || err != nil && !strings.Contains(err.Error(), c.refusal) {
			t.Errorf("%s: got %q, %v; want %q, an error with %q", c.name, data, err, c.want, c.refusal)
		}
	}
	if _, err := root.ReadDir("/dirlink", 10); err == nil || !strings.Contains(err.Error(), "must be a directory") {
		t.Errorf("a link where a directory must be: %v", err)
	}
	if _, err := root.ReadDir("/", 3); err == nil || !strings.Contains(err.Error(), "more than 3 entries") {
		t.Errorf("a directory that is too large: %v", err)
	}
	if entries, err := root.ReadDir("/etc", 10); err != nil || len(entries) != 2 || entries[0].Name() != "passwd" {
		t.Errorf("/etc holds %v, %v", entries, err)
	}
}
