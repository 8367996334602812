package container_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/container"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/needs"
)

var serial atomic.Int64

// idBase is apart from what a running product hands out on the same machine.
const idBase = 3_000_000_000

// rig is a node with a container driver, in a temporary directory.
type rig struct {
	*container.Driver
	t        testing.TB
	cfg      container.Config
	ports    *drivertest.Ports
	dir      string
	mu       sync.Mutex
	sockets  map[string]net.Listener
	sessions map[string]*session
}

// session is the connection of a running member.
type session struct {
	mu   sync.Mutex
	conn net.Conn
	in   *json.Decoder
	out  *json.Encoder
}

// needHost skips where containers can't be carried.
func needHost(t testing.TB, runtime string) {
	t.Helper()
	needs.Root(t, "runs containers")
	needs.Program(t, runtime)
}

func newRig(t testing.TB, runtime string, adjust ...func(*container.Config)) *rig {
	t.Helper()
	needHost(t, runtime)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := &rig{
		t: t, dir: dir, ports: &drivertest.Ports{}, sockets: map[string]net.Listener{}, sessions: map[string]*session{},
		cfg: container.Config{
			StateDir:     filepath.Join(dir, "state"),
			Node:         fmt.Sprintf("test-%d-%d", os.Getpid(), serial.Add(1)),
			Environments: environment.Catalog{environment.NewLocal()},
			MemberBinary: self,
			Runtime:      runtime,
			Logger:       slog.New(slog.NewTextHandler(t.Output(), nil)),
		},
	}
	r.cfg.Attacher = r.ports
	for _, change := range adjust {
		change(&r.cfg)
	}
	r.Driver = r.open(t)
	t.Cleanup(r.cleanAll)
	return r
}

func (r *rig) open(t testing.TB) *container.Driver {
	t.Helper()
	d, err := container.New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// cleanAll leaves nothing on the host whatever a test did.
func (r *rig) cleanAll() {
	ctx := context.Background()
	r.mu.Lock()
	for _, l := range r.sockets {
		_ = l.Close()
	}
	r.mu.Unlock()
	observations, err := r.Observe(ctx)
	if err != nil {
		r.t.Errorf("cleaning up: %v", err)
	}
	for _, o := range observations {
		if err := r.Clean(ctx, o.ID); err != nil {
			r.t.Errorf("cleaning up: %v", err)
		}
	}
}

// member makes a member with directories and a control socket of its own.
func (r *rig) member(t testing.TB) driver.Member {
	t.Helper()
	n := serial.Add(1)
	name := fmt.Sprintf("m-%d", n)
	m := driver.Member{
		Assignment: api.Assignment{
			ID: fmt.Sprintf("testcluster.%s.1", name), ClusterUID: "testcluster", Cluster: "testcluster", Member: name, CPUs: []int{0}, NUMANodes: []int{0},
			Memory: []api.MemoryClaim{{Bytes: 256 << 20}}, UserIDs: api.IDRange{First: idBase, Count: 65536},
			Ports: []api.PortClaim{{Network: "testcluster", Kind: api.PortVeth, Address: netip.MustParseAddr("10.64.0.2"), MAC: "02:00:00:00:00:02"}},
			Stack: api.StackContainer, Environment: environment.LocalName,
		},
		Networks:   []api.Network{{UID: "testcluster", Index: 1, Prefix: netip.MustParsePrefix("10.64.0.0/20"), Gateway: netip.MustParseAddr("10.64.0.1")}},
		HomeDir:    filepath.Join(r.dir, "home"),
		ControlDir: filepath.Join(r.dir, name),
		User:       driver.User{Name: "hpc", UID: 1000, GID: 1000},
	}
	m.Files = []driver.File{
		{Path: "/etc/passwd", Content: []byte("root:x:0:0::/root:/bin/sh\nhpc:x:1000:1000::/home/hpc:/bin/sh\n"), Mode: 0o644},
		{Path: "/etc/group", Content: []byte("root:x:0:\nhpc:x:1000:\n"), Mode: 0o644},
	}
	for _, dir := range []string{m.HomeDir, m.ControlDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(m.ControlDir, "agent.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, idBase, idBase); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sockets[m.Assignment.ID] = listener
	return m
}

// Start starts a member and waits until its first process has connected.
func (r *rig) Start(ctx context.Context, m driver.Member) error {
	return r.startBy(ctx, r.Driver, m)
}

func (r *rig) startBy(ctx context.Context, d driver.Driver, m driver.Member) error {
	id := m.Assignment.ID
	observations, err := d.Observe(ctx)
	if err != nil {
		return err
	}
	for _, o := range observations {
		if o.ID == id && (o.State == driver.StateRunning || o.State == driver.StatePaused) {
			return d.Start(ctx, m)
		}
	}
	if err := d.Start(ctx, m); err != nil {
		return err
	}
	return r.accept(ctx, d, id)
}

func (r *rig) accept(ctx context.Context, d driver.Driver, id string) error {
	r.mu.Lock()
	listener := r.sockets[id]
	r.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	died := make(chan string, 1)
	var watcher sync.WaitGroup
	watcher.Go(func() { // a first process that ends instead of connecting
		if o, err := d.Wait(ctx, id); err == nil {
			died <- o.Message
			_ = listener.(*net.UnixListener).SetDeadline(expired)
		}
	})
	defer func() { // the same socket serves its next life, which this one's end says nothing about
		cancel()
		watcher.Wait()
		_ = listener.(*net.UnixListener).SetDeadline(time.Time{})
	}()
	conn, err := listener.Accept()
	if err != nil {
		return fmt.Errorf("the member's first process did not connect: %s (%w)", <-died, err)
	}
	s := &session{conn: conn, in: json.NewDecoder(conn), out: json.NewEncoder(conn)}
	var ready answer
	if err := s.in.Decode(&ready); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions[id] = s
	return nil
}

// tell gives a member an order and returns the answer.
func (r *rig) tell(t testing.TB, id string, o order) answer {
	t.Helper()
	r.mu.Lock()
	s := r.sessions[id]
	r.mu.Unlock()
	if s == nil {
		t.Fatalf("member %q has not connected", id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.out.Encode(o); err != nil {
		t.Fatal(err)
	}
	if o.Exit != nil {
		return answer{}
	}
	var a answer
	if err := s.in.Decode(&a); err != nil {
		t.Fatal(err)
	}
	return a
}

// run runs a command in a member; its failure fails the test.
func (r *rig) run(t testing.TB, id string, args ...string) string {
	t.Helper()
	a := r.tell(t, id, order{Run: args})
	if a.Err != "" {
		t.Errorf("%s in the member: %s: %s", strings.Join(args, " "), a.Err, a.Output)
	}
	return a.Output
}

// progress is how often a member that counts has done so: one byte a time, in the shared home.
func (r *rig) progress(t *testing.T, id string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(r.dir, "home", "progress-"+strings.Split(id, ".")[1]))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// listen makes a member send back what it is sent, and returns the port.
func (r *rig) listen(t *testing.T, id, address string) int {
	t.Helper()
	a := r.tell(t, id, order{Probe: "echo", Argument: address})
	port, err := strconv.Atoi(a.Output)
	if err != nil || a.Err != "" {
		t.Fatalf("the member listens at %q: %s", a.Output, a.Err)
	}
	return port
}

// left lists what of this rig's members is on the host.
func (r *rig) left(t *testing.T) []string {
	var left []string
	patterns := []string{
		filepath.Join(r.cfg.StateDir, "*"),
		filepath.Join("/sys/fs/cgroup/nearmetal", r.cfg.Group()),
		filepath.Join("/sys/fs/cgroup/*/nearmetal", r.cfg.Group()),
	}
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), r.dir) {
		left = append(left, "a mount below "+r.dir)
	}
	children, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range children {
		text, _ := os.ReadFile(path)
		for pid := range strings.FieldsSeq(string(text)) {
			comm, _ := os.ReadFile("/proc/" + pid + "/comm")
			left = append(left, "process "+pid+" "+strings.TrimSpace(string(comm)))
		}
	}
	return left
}
