package container_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/driver/container"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
)

func TestAHostThatCanCarryContainersPassesItsChecks(t *testing.T) {
	r := newRig(t, "crun")
	if check := r.Check(t.Context()); !check.OK || len(check.Problems) > 0 {
		t.Errorf("problems: %q", check.Problems)
	}
	if _, err := os.Stat(r.cfg.StateDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("checking made the state directory: %v", err)
	}
}

func TestAHostWithoutARuntimeIsToldWhatToInstall(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	d, err := container.New(container.Config{
		StateDir: t.TempDir(), Node: "n1", Attacher: &drivertest.Ports{}, MemberBinary: "/no/such/member",
	})
	if err != nil {
		t.Fatal(err)
	}
	check := d.Check(t.Context())
	problems := strings.Join(check.Problems, "\n")
	for _, want := range []string{
		"no OCI runtime (crun or runc) is installed; run: apt-get install crun",
		"the member agent's binary is missing: stat /no/such/member: no such file or directory",
	} {
		if check.OK || !strings.Contains(problems, want) {
			t.Errorf("problems %q lack %q", problems, want)
		}
	}
}

func TestADriverWithoutWhatItNeedsIsRefused(t *testing.T) {
	good := container.Config{
		StateDir: "/state", Node: "n1", Attacher: &drivertest.Ports{}, MemberBinary: "/state/member",
	}
	cases := []struct {
		spoil func(c *container.Config)
		want  string
	}{
		{func(c *container.Config) { c.StateDir = "state" }, `container driver: the state directory must be an absolute path, not "state"`},
		{func(c *container.Config) { c.Node = "a/b" }, `container driver: "a/b" is not a valid node name; use letters, digits, '.', '_' and '-'`},
		{func(c *container.Config) { c.Attacher = nil }, "container driver: the Attacher, which connects members, is missing"},
		{func(c *container.Config) { c.MemberBinary = "" }, `container driver: the member binary must be an absolute path, not ""`},
	}
	for _, c := range cases {
		cfg := good
		c.spoil(&cfg)
		if _, err := container.New(cfg); err == nil || err.Error() != c.want {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

// TestAStateDirectoryThatOnlyRootMaySearchWorks: tenants' roots are nobody on the host and can't enter it.
func TestAStateDirectoryThatOnlyRootMaySearchWorks(t *testing.T) {
	r := newRig(t, "crun")
	m := r.member(t)
	if err := os.MkdirAll(filepath.Join(r.cfg.StateDir, "members"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(r.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
}
