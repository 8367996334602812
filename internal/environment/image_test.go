package environment

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree makes a small root: names that end in "/" are directories, those with " -> " links, the others files.
func tree(t *testing.T, entries ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, e := range entries {
		name, target, link := strings.Cut(e, " -> ")
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case link:
			err = os.Symlink(target, path)
		case strings.HasSuffix(e, "/"):
			err = os.MkdirAll(path, 0o755)
		default:
			err = os.WriteFile(path, nil, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestOfAnImageAMemberSeesAllButWhatItHasOfItsOwn(t *testing.T) {
	view := tree(t, "usr/bin/sh", "bin -> usr/bin", "opt/tool", "data/set", "vmlinuz -> boot/vmlinuz", "boot/vmlinuz", "home/user/x", "root/.bashrc",
		"proc/", "sys/", "dev/null", "tmp/x", "run/x", "lost+found/",
		"etc/hosts", "etc/tool/conf", "etc/link -> /usr/share/link",
		"var/lib/dpkg/status", "var/lib/munge/", "var/lib/deep/er/own/", "var/run -> /run", "var/mail -> spool/mail", "var/log/x.log", "var/tmp/x")
	root, err := RootOf("/inside", view)
	if err != nil {
		t.Fatal(err)
	}
	bind := func(path string) Bind { return Bind{Source: "/inside" + path, Target: path, View: view + path} }
	dir := func(path string) Dir { return Dir{Path: path, Mode: 0o755} }
	want := Root{
		Binds: []Bind{bind("/data"), bind("/etc/hosts"), bind("/etc/tool"), bind("/opt"), bind("/usr"), bind("/var/lib/dpkg")},
		Links: []Link{{"/bin", "usr/bin"}, {"/vmlinuz", "boot/vmlinuz"}, {"/etc/link", "/usr/share/link"}, {"/var/mail", "spool/mail"}},
		Dirs: []Dir{
			dir("/data"), dir("/opt"), dir("/usr"),
			dir("/var/lib"), dir("/var/lib/deep"), dir("/var/lib/deep/er"), dir("/var/lib/deep/er/own"), dir("/var/lib/dpkg"), dir("/var/lib/munge"),
			dir("/var/log"),
		},
	}
	if diff := cmp.Diff(want, root); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

func TestAnImageWithoutUsrIsRefused(t *testing.T) {
	if _, err := RootOf("/inside", tree(t, "bin/sh")); err == nil || !strings.Contains(err.Error(), "has no /usr") {
		t.Errorf("error %v, want that there is no /usr", err)
	}
}

func TestAnImageWhoseDirectoriesAreLinksToTheHostIsRefused(t *testing.T) {
	for _, link := range []string{"etc -> /etc", "etc -> ../../../../../../../etc", "var -> /etc"} {
		_, err := RootOf("/inside", tree(t, "usr/bin/sh", link))
		if err == nil || !strings.Contains(err.Error(), "must be a directory") {
			t.Errorf("%s: error %v, want that it must be a directory", link, err)
		}
	}
}
