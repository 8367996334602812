package environment

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// machine makes the parts of a file system that the local environment looks at.
func machine(t *testing.T) *Local {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{
		"usr/sbin/sshd": "x", "usr/bin/ssh": "x", "usr/bin/mpirun": "x", "usr/bin/sh": "x", "var/lib/dpkg/status": "Package: dash\n",
		"etc/ld.so.cache": "c", "etc/shadow": "s", "etc/hosts": "h", "etc/ssl/certs/a.pem": "p", "etc/ssl/private/key": "k",
		"etc/ssl/openssl.cnf": "o",
	}
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"bin": "usr/bin", "lib64": "usr/lib64", "etc/localtime": "/usr/share/zoneinfo/UTC", "etc/os-release": "../usr/lib/os-release",
		"etc/timezone": "/root/secret",
	} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	return &Local{root: root}
}

func TestTheLocalEnvironmentShowsOnlyWhatIsOnItsAllowList(t *testing.T) {
	l := machine(t)
	got, err := l.Root(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bind := func(path string) Bind { return Bind{Source: filepath.Join(l.root, path), Target: path} }
	want := Root{
		Binds: []Bind{bind("/etc/ld.so.cache"), bind("/etc/ssl/certs"), bind("/etc/ssl/openssl.cnf"), bind("/usr")},
		Links: []Link{
			{"/bin", "usr/bin"},
			{"/lib64", "usr/lib64"},
			{"/etc/localtime", "/usr/share/zoneinfo/UTC"},
			{"/etc/os-release", "../usr/lib/os-release"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

func TestMissingProgramsAreNamedWithTheirPackages(t *testing.T) {
	l := machine(t)
	if found := l.Inspect(t.Context()); !found.OK || len(found.Problems) > 0 {
		t.Fatalf("a complete machine has problems: %q", found.Problems)
	}
	for _, name := range []string{"usr/bin/mpirun", "usr/sbin/sshd"} {
		if err := os.Remove(filepath.Join(l.root, name)); err != nil {
			t.Fatal(err)
		}
	}
	found := l.Inspect(t.Context())
	want := []string{
		"/usr/sbin/sshd is missing; run: apt-get install openssh-server",
		"/usr/bin/mpirun is missing; run: apt-get install openmpi-bin",
	}
	if found.OK || !slices.Equal(found.Problems, want) {
		t.Errorf("problems %q, want %q", found.Problems, want)
	}
}

func TestAMachineWithoutAMergedUsrIsRefused(t *testing.T) {
	l := machine(t)
	if err := os.Mkdir(filepath.Join(l.root, "sbin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Root(t.Context()); err == nil || !strings.Contains(err.Error(), "apt-get install usrmerge") {
		t.Errorf("error %v, want one that says what to install", err)
	}
}

func TestTheDigestFollowsWhatIsInstalled(t *testing.T) {
	l := machine(t)
	first := l.Inspect(t.Context()).Digest
	if again := l.Inspect(t.Context()).Digest; again != first {
		t.Errorf("an unchanged machine has digests %s and %s", first, again)
	}
	status := filepath.Join(l.root, "var/lib/dpkg/status")
	if err := os.WriteFile(status, []byte("Package: dash\nPackage: gcc\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	second := l.Inspect(t.Context()).Digest
	if second == first {
		t.Error("installing a package does not change the digest")
	}
	if err := os.MkdirAll(filepath.Join(l.root, "usr/local/bin/tool"), 0o755); err != nil {
		t.Fatal(err)
	}
	if third := l.Inspect(t.Context()).Digest; third == second {
		t.Error("a program put into /usr/local does not change the digest")
	}
}

func TestEqualMachinesHaveEqualDigests(t *testing.T) {
	if a, b := machine(t).Inspect(t.Context()).Digest, machine(t).Inspect(t.Context()).Digest; a != b {
		t.Errorf("digests %s and %s", a, b)
	}
}

func TestAnUnknownEnvironmentIsRefusedByNamingThoseThereAre(t *testing.T) {
	_, err := Catalog{NewLocal()}.Lookup("gromacs")
	if err == nil || err.Error() != `this node has no environment "gromacs"; it has: local` {
		t.Errorf("error %v", err)
	}
}
