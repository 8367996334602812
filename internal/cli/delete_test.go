package cli_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

// terminal is a pseudo terminal: what is typed at one end is read at the other.
func terminal(t *testing.T) (typed, read *os.File) {
	t.Helper()
	typed, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { typed.Close() })
	if err := unix.IoctlSetPointerInt(int(typed.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(typed.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	read, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close() })
	return typed, read
}

// deleted reports whether the server was asked to delete c1.
func (f *fake) deleted() bool {
	for _, asked := range f.requests() {
		if strings.HasPrefix(asked, "DELETE /v1/clusters/c1") {
			return true
		}
	}
	return false
}

// withHome is a server with a ready cluster c1 whose home is as given; an *api.Problem is one that can't be counted.
func withHome(t *testing.T, home any) *fake {
	f := newFake(t)
	f.fixed("GET /v1/clusters/c1", ready("c1", 1))
	f.fixed("GET /v1/clusters/c1/home", home)
	f.fixed("DELETE /v1/clusters/c1", after(ready("c1", 1), func(c *api.Cluster) { c.Status.Phase = api.ClusterDeleting }))
	return f
}

func TestAHomeWithFilesIsNotDeletedUnasked(t *testing.T) {
	for _, tc := range []struct {
		name string
		home any
		say  string
	}{
		{"files", api.HomeUsage{Files: 12, Bytes: 3 << 20}, "its shared home holds 12 files (3MiB), and is deleted with the cluster"},
		{"one small file", api.HomeUsage{Files: 1, Bytes: 5}, "holds 1 file (5 bytes)"},
		{"more than is counted", api.HomeUsage{Files: 100_000, Bytes: 9 << 30, AtLeast: true}, "at least 100000 files (9GiB)"},
		{"nothing found before the count stopped", api.HomeUsage{AtLeast: true}, "at least 0 files"},
		{"unknown", &api.Problem{Status: 502, Code: "home_unknown", Detail: "n1 is away"}, "can't be inspected (n1 is away)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := withHome(t, tc.home)
			r := f.shell().run(t, "cluster", "delete", "c1", "--no-wait")
			has(t, result{r.code, r.err, ""}, cli.ExitUsage, tc.say, "--yes", "nearmetal cp")
			if f.deleted() {
				t.Error("the cluster was deleted")
			}
			if r = f.shell().run(t, "cluster", "delete", "c1", "--no-wait", "--yes"); r.code != 0 || !f.deleted() {
				t.Errorf("--yes: exit code %d, %s", r.code, r.err)
			}
		})
	}
}

func TestAnEmptyHomeAsksNothing(t *testing.T) {
	f := withHome(t, api.HomeUsage{})
	if r := f.shell().run(t, "cluster", "delete", "c1", "--no-wait"); r.code != 0 || !f.deleted() {
		t.Errorf("exit code %d, %s", r.code, r.err)
	}
	// A cluster that is being deleted has been agreed about; its home need not be asked for again.
	f = newFake(t)
	f.fixed("GET /v1/clusters/c1", after(ready("c1", 1), func(c *api.Cluster) { c.Status.Phase = api.ClusterDeleting }))
	f.fixed("DELETE /v1/clusters/c1", ready("c1", 1))
	if r := f.shell().run(t, "cluster", "delete", "c1", "--no-wait"); r.code != 0 || !f.deleted() {
		t.Errorf("being deleted: exit code %d, %s", r.code, r.err)
	}
}

func TestOnATerminalTheUserIsAskedAboutAHome(t *testing.T) {
	for answer, agrees := range map[string]bool{"y": true, "YES": true, "n": false, "": false, "yy": false} {
		t.Run(fmt.Sprintf("%q", answer), func(t *testing.T) {
			f := withHome(t, api.HomeUsage{Files: 2, Bytes: 2 << 30})
			typed, read := terminal(t)
			if _, err := typed.WriteString(answer + "\n"); err != nil {
				t.Fatal(err)
			}
			sh := f.shell()
			sh.in = read
			r := sh.run(t, "cluster", "delete", "c1", "--no-wait")
			if !strings.Contains(r.err, `home of cluster "c1" holds 2 files (2GiB)`) {
				t.Errorf("not asked: %s", r.err)
			}
			if code := map[bool]int{true: 0, false: cli.ExitFailed}[agrees]; r.code != code || f.deleted() != agrees {
				t.Errorf("exit code %d, deleted %t; want %d, %t", r.code, f.deleted(), code, agrees)
			}
		})
	}
}

func TestAnInterruptIsNoAnswer(t *testing.T) {
	f := withHome(t, api.HomeUsage{Files: 2})
	_, read := terminal(t)
	sh := f.shell()
	sh.in, sh.interrupts = read, make(chan os.Signal, 1)
	var once sync.Once
	sh.told = func(text string) {
		if strings.Contains(text, "[y/N]") {
			once.Do(func() { sh.interrupts <- os.Interrupt })
		}
	}
	r := sh.run(t, "cluster", "delete", "c1")
	if r.code != cli.ExitInterrupted || f.deleted() {
		t.Errorf("exit code %d, deleted %t: %s", r.code, f.deleted(), r.err)
	}
}
