package metal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/pidfd"
)

// program stands in for the member agent: it counts until it is told to end, and ends with the code that it is told.
const program = `#!/bin/sh
cd "$(dirname "$0")"
if [ -e stubborn ]; then trap '' TERM; fi
n=0
while [ ! -e end ]; do n=$((n+1)); echo $n >progress.new; mv progress.new progress; sleep 0.02; done
exit "$(cat end)"
`

// machine is a machine of a test: a directory for its root and one for the program.
type machine struct {
	root, state, tools string
	ports              *drivertest.Ports
	hostname           string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	needs.Root(t, "writes files of other owners")
	m := &machine{root: t.TempDir(), state: t.TempDir(), tools: t.TempDir(), ports: &drivertest.Ports{}}
	if err := os.WriteFile(filepath.Join(m.tools, "member"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // a failed case must leave no process
		if r, err := m.driver().recall(); err == nil && r != nil {
			if err := pidfd.Kill(context.Background(), r.PID, r.runs); err != nil {
				t.Error(err)
			}
		}
	})
	return m
}

func (m *machine) driver() *Driver {
	return New(Config{
		StateDir: m.state, Attacher: m.ports, Program: filepath.Join(m.tools, "member"), Layers: filepath.Join(m.state, "no-layers"), Root: m.root,
		SetHostname: func(name string) error { m.hostname = name; return nil },
	})
}

// say writes a file that the program looks for.
func (m *machine) say(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.tools, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

var serial atomic.Int64

func (m *machine) member(t *testing.T) driver.Member {
	return driver.Member{
		Assignment: api.Assignment{
			ID: fmt.Sprintf("c1.m-0.%d", serial.Add(1)), ClusterUID: "c1", Member: "m-0", Stack: api.StackMetal, Whole: true,
			Ports: []api.PortClaim{{Network: "net", Kind: api.PortPF, Address: netip.MustParseAddr("127.0.0.1"), MAC: "02:00:00:00:00:01"}},
		},
		Networks: []api.Network{{UID: "net", Index: 1}}, ControlDir: filepath.Join(m.state, "control"), User: driver.User{Name: "hpc", UID: 1000, GID: 1000},
		Files: []driver.File{{Path: "/etc/hosts", Content: []byte("127.0.0.1 localhost\n"), Mode: 0o644}},
	}
}

// left is what is left of members on the machine, but for what goes with the machine itself.
func (m *machine) left(t *testing.T) []string {
	t.Helper()
	if _, err := os.Stat(filepath.Join(m.state, "member.json")); err == nil {
		return []string{"member.json"}
	}
	return nil
}

func TestTheDriverOfWholeMachinesMeetsTheDriverContract(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Fixture {
		m := newMachine(t)
		return drivertest.Fixture{
			Driver: m.driver(), Ports: m.ports, Reopen: func(*testing.T) driver.Driver { return m.driver() }, Member: m.member, Many: 1, CantPause: true,
			Stubborn: func(*driver.Member) { m.say(t, "stubborn", "") },
			End: func(t *testing.T, _ driver.Observation, code int) {
				m.say(t, "end.new", strconv.Itoa(code))
				if err := os.Rename(filepath.Join(m.tools, "end.new"), filepath.Join(m.tools, "end")); err != nil {
					t.Fatal(err)
				}
			},
			Progress: func(t *testing.T, _ string) int64 {
				text, _ := os.ReadFile(filepath.Join(m.tools, "progress"))
				n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
				return n
			},
			Listen: func(t *testing.T, _ string) int {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close() })
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
					}
				}()
				return l.Addr().(*net.TCPAddr).Port
			},
			Left: m.left,
		}
	})
}

func TestAMachineIsMadeTheMember(t *testing.T) {
	m := newMachine(t)
	d, member := m.driver(), m.member(t)
	if err := d.Start(t.Context(), member); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Clean(t.Context(), member.Assignment.ID) })
	if m.hostname != "m-0" {
		t.Errorf("the host name is %q", m.hostname)
	}
	if text, err := os.ReadFile(filepath.Join(m.root, "etc/hosts")); err != nil || string(text) != "127.0.0.1 localhost\n" {
		t.Errorf("the generated file has %q, %v", text, err)
	}
	if info, err := os.Stat(filepath.Join(m.root, "home/hpc")); err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		t.Errorf("the user's home: %v, %v", info, err)
	}
	if to, err := os.Readlink(filepath.Join(m.root, memberconfig.Socket)); err != nil || to != filepath.Join(member.ControlDir, "agent.sock") {
		t.Errorf("the member agent finds the socket at %q, %v", to, err)
	}
}

func TestAMachineIsOneMemberOnly(t *testing.T) {
	m := newMachine(t)
	d, first := m.driver(), m.member(t)
	if err := d.Start(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Clean(t.Context(), first.Assignment.ID) })
	if err := d.Start(t.Context(), m.member(t)); err == nil || !strings.Contains(err.Error(), "is member "+first.Assignment.ID+" already") {
		t.Errorf("another member: %v", err)
	}
	part := m.member(t)
	part.Assignment.Whole = false
	if err := d.Start(t.Context(), part); err == nil || !strings.Contains(err.Error(), "not of a whole machine") {
		t.Errorf("a member with a part of the machine: %v", err)
	}
}

// The machine's users find volumes at their paths, the home among them, and what they wrote is in the volume when the member is gone.
func TestAMachineHasItsVolumesAtTheirPaths(t *testing.T) {
	m := newMachine(t)
	d, member := m.driver(), m.member(t)
	sources := map[string]string{}
	for _, name := range []string{"home", "data", "ref"} { // volumes are mounts of their own
		dir := filepath.Join(t.TempDir(), name)
		if err := errors.Join(os.Mkdir(dir, 0o755), unix.Mount("volume", dir, "tmpfs", 0, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		sources[name] = dir
	}
	if err := os.WriteFile(filepath.Join(sources["ref"], "file"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	member.HomeDir = sources["home"]
	member.Mounts = []driver.Mount{{Source: sources["data"], Path: "/volumes/data"}, {Source: sources["ref"], Path: "/volumes/data/../ref", ReadOnly: true}}
	member.Assignment.Volumes = []api.VolumeClaim{{UID: "h", Path: "/home"}, {UID: "d", Path: "/volumes/data"}, {UID: "r", Path: "/volumes/ref", ReadOnly: true}}
	if err := d.Start(t.Context(), member); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.driver().Clean(context.Background(), member.Assignment.ID) })
	for path, source := range map[string]string{"home/hpc/one": "home/hpc/one", "volumes/data/two": "data/two"} {
		if err := os.WriteFile(filepath.Join(m.root, path), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		name, below, _ := strings.Cut(source, "/")
		if _, err := os.Stat(filepath.Join(sources[name], below)); err != nil {
			t.Errorf("what was written to /%s: %v", path, err)
		}
	}
	var stat unix.Stat_t
	if err := unix.Stat(filepath.Join(sources["home"], "hpc"), &stat); err != nil || stat.Uid != 1000 || stat.Mode&0o777 != 0o700 {
		t.Errorf("the user's directory in the home belongs to %d, with mode %o (%v)", stat.Uid, stat.Mode&0o777, err)
	}
	if err := os.WriteFile(filepath.Join(m.root, "volumes/ref/file"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("writing to a volume that is to be read: %v", err)
	}
	if err := m.driver().Clean(t.Context(), member.Assignment.ID); err != nil { // by the next process
		t.Fatal(err)
	}
	for _, path := range []string{"home/hpc/one", "volumes/data/two", "volumes/ref/file"} {
		if _, err := os.Stat(filepath.Join(m.root, path)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the member is gone, /%s: %v", path, err)
		}
	}
}
