package vm_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cgroup"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
	"github.com/nearmetal/nearmetal/internal/driver/vm"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/bootbin"
	"github.com/nearmetal/nearmetal/internal/machine/initrd"
	"github.com/nearmetal/nearmetal/internal/memberbin"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/testbed/debiantree"
)

var serial atomic.Int64

const (
	// idBase is apart from what a running product hands out on the same machine.
	idBase = 3_000_000_000
	// patience is for a few emulated machines on a busy host.
	patience = 4 * time.Minute
	digest   = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
)

// images holds one image: a Debian system.
type images struct{ image environment.Image }

func (i images) Image(string) (environment.Image, error) { return i.image, nil }

// needGuests skips what boots machines unless it is asked for, and returns the image that they boot.
func needGuests(t testing.TB) images {
	t.Helper()
	needs.Request(t, "NEARMETAL_GUESTS", "make test-testbed")
	needs.Root(t, "makes virtual machines")
	needs.Program(t, "libvirtd")
	needs.Program(t, "qemu-system-x86_64")
	tree := debiantree.Ensure(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "initrd"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := initrd.Build(t.Context(), file, initrd.Config{Root: tree.Path("tree"), Small: true}); err != nil {
		t.Fatal(err)
	}
	return images{environment.Image{
		Digest: digest, Layers: []environment.Layer{{Path: tree.Path("root.erofs"), Format: image.EROFS}},
		Kernel: &environment.Kernel{Path: tree.Path("vmlinuz"), Initrd: file.Name(), Arguments: "console=ttyS0 quiet"},
	}}
}

// taps are ports on no network: TAP devices and nothing else, beside the suite's account of them.
type taps struct{ *drivertest.Ports }

func (p taps) Attach(ctx context.Context, port fabric.Port, place fabric.Place) error {
	if err := p.Ports.Attach(ctx, port, place); err != nil {
		return err
	}
	if link, err := netlink.LinkByName(place.At); err == nil {
		if was, ok := link.(*netlink.Tuntap); ok && was.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 == (place.Queues > 1) {
			return nil
		}
		if err := netlink.LinkDel(link); err != nil { // a device keeps the kind of queues that it was made with
			return err
		}
	}
	tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: place.At}, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR, Queues: 0}
	if place.Queues > 1 {
		tap.Flags |= netlink.TUNTAP_MULTI_QUEUE
	}
	if err := netlink.LinkAdd(tap); err != nil {
		return err
	}
	return netlink.LinkSetUp(tap)
}

func (p taps) Detach(ctx context.Context, id string) error {
	link, err := netlink.LinkByName(fabric.DeviceName(id))
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if missing := (netlink.LinkNotFoundError{}); err != nil && !errors.As(err, &missing) {
		return err
	}
	return p.Ports.Detach(ctx, id)
}

// rig is a node with a VM driver, in a temporary directory. Its driver is the one that was opened last: there is one agent at a time.
type rig struct {
	*vm.Driver
	t     testing.TB
	cfg   vm.Config
	ports *drivertest.Ports
	dir   string

	mu       sync.Mutex
	sockets  map[string]*net.UnixListener
	sessions map[string]*session
	made     []string
}

// session is the connection of a running member.
type session struct {
	answers chan answer
	out     *json.Encoder
	bootID  string
	counted atomic.Int64
}

func newRig(t testing.TB, images images) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "vm") // short, as sockets are below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	r := &rig{t: t, dir: dir, ports: &drivertest.Ports{}, sockets: map[string]*net.UnixListener{}, sessions: map[string]*session{}}
	r.cfg = vm.Config{
		StateDir: filepath.Join(dir, "state"), Node: "n1", Attacher: taps{r.ports}, Images: images, Boot: bootbin.Binary, Program: self, HomeServer: memberbin.Binary,
		Accelerate: emulate, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	r.reopen(t)
	t.Cleanup(r.cleanAll)
	return r
}

// self is this test binary.
func self() ([]byte, error) { return os.ReadFile("/proc/self/exe") }

// emulate: tests are the same on every machine.
func emulate() error { return errors.New("tests emulate") }

// reopen opens a new driver in place of the present one.
func (r *rig) reopen(t testing.TB) {
	t.Helper()
	if r.Driver != nil {
		if err := r.Driver.Close(); err != nil {
			t.Error(err)
		}
	}
	d, err := vm.New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Driver = d
}

// cleanAll leaves nothing on the host whatever a test did.
func (r *rig) cleanAll() {
	for _, id := range r.made {
		if err := r.Clean(context.Background(), id); err != nil {
			r.t.Errorf("cleaning up: %v", err)
		}
	}
	for _, l := range r.sockets {
		_ = l.Close()
	}
	if err := r.Driver.Close(); err != nil {
		r.t.Error(err)
	}
}

// member makes a member with directories and a control socket of its own.
func (r *rig) member(t testing.TB) driver.Member {
	t.Helper()
	n := serial.Add(1)
	name := fmt.Sprintf("m-%d", n)
	m := driver.Member{
		Assignment: api.Assignment{
			ID: fmt.Sprintf("test%d.%s.1", os.Getpid(), name), Cluster: "test", Member: name, Slots: []int{0}, CPUs: []int{int(n) % 2}, NUMANodes: []int{0},
			Memory: []api.MemoryClaim{{Bytes: 384 << 20}}, UserIDs: api.IDRange{First: idBase, Count: 65536},
			Ports: []api.PortClaim{{Network: "test", Kind: api.PortTAP, Address: netip.MustParseAddr("10.64.0.2"), MAC: "02:00:00:00:00:02"}},
			Stack: api.StackVM, Environment: "debian", EnvironmentDigest: digest,
		},
		Networks:   []api.Network{{UID: "test", Index: 1, Prefix: netip.MustParsePrefix("10.64.0.0/20"), Gateway: netip.MustParseAddr("10.64.0.1")}},
		HomeDir:    filepath.Join(r.dir, "home"),
		ControlDir: filepath.Join(r.dir, name),
		User:       driver.User{Name: "hpc", UID: 1000, GID: 1000},
		Files: []driver.File{
			{Path: "/etc/passwd", Content: []byte("root:x:0:0::/root:/bin/sh\nhpc:x:1000:1000::/home/hpc:/bin/sh\n"), Mode: 0o644},
		},
	}
	for _, dir := range []string{m.HomeDir, m.ControlDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(m.ControlDir, "agent.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, idBase, idBase); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sockets[m.Assignment.ID] = listener
	r.made = append(r.made, m.Assignment.ID)
	return m
}

// Start starts a member and waits until the program in it has said so: a signal sent next meets its handler.
func (r *rig) Start(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	observations, err := r.Driver.Observe(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(observations, func(o driver.Observation) bool {
		return o.ID == id && (o.State == driver.StateRunning || o.State == driver.StatePaused)
	}) {
		return r.Driver.Start(ctx, m)
	}
	if err := r.Driver.Start(ctx, m); err != nil {
		return err
	}
	return r.accept(ctx, id)
}

// Reboot reboots a member and waits until the program in its new boot has said so.
func (r *rig) Reboot(ctx context.Context, m driver.Member, grace time.Duration) error {
	observations, err := r.Driver.Observe(ctx)
	if err != nil {
		return err
	}
	running := slices.ContainsFunc(observations, func(o driver.Observation) bool {
		return o.ID == m.Assignment.ID && o.PID != 0 && o.Member != nil && o.Member.Boot == m.Boot
	})
	if err := r.Driver.Reboot(ctx, m, grace); err != nil || running {
		return err
	}
	return r.accept(ctx, m.Assignment.ID)
}

// Restore restores and updates a member and waits until the program in it has said so.
func (r *rig) Restore(ctx context.Context, m driver.Member, from string) error {
	observations, err := r.Driver.Observe(ctx)
	if err != nil {
		return err
	}
	running := slices.ContainsFunc(observations, func(o driver.Observation) bool { return o.ID == m.Assignment.ID && o.PID != 0 })
	if err := r.Driver.Restore(ctx, m, from); err != nil || running {
		return err
	}
	if err := r.Driver.Update(ctx, m); err != nil {
		return err
	}
	return r.accept(ctx, m.Assignment.ID)
}

// Receive receives and updates a member and waits until the program in it has said so.
func (r *rig) Receive(ctx context.Context, m driver.Member, from string, conn net.Conn) error {
	if err := r.Driver.Receive(ctx, m, from, conn); err != nil {
		return err
	}
	if err := r.Driver.Update(ctx, m); err != nil {
		return err
	}
	return r.accept(ctx, m.Assignment.ID)
}

// accept takes connections of a member's QEMU until one brings a word of the program: earlier ones may be of machines that did not come so far.
func (r *rig) accept(ctx context.Context, id string) error {
	r.mu.Lock()
	listener := r.sockets[id]
	r.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = listener.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("the member's program did not connect: %w", err)
		}
		s := &session{answers: make(chan answer), out: json.NewEncoder(conn)}
		in := json.NewDecoder(conn)
		ended := context.AfterFunc(ctx, func() { _ = conn.Close() })
		var hello answer
		err = in.Decode(&hello)
		ended()
		if err != nil {
			_ = conn.Close()
			continue
		}
		s.bootID = hello.BootID
		s.counted.Store(hello.Count)
		go s.read(in)
		r.mu.Lock()
		r.sessions[id] = s
		r.mu.Unlock()
		return nil
	}
}

// read takes what a member says until its connection ends.
func (s *session) read(in *json.Decoder) {
	defer close(s.answers)
	for {
		var a answer
		if err := in.Decode(&a); err != nil {
			return
		}
		if a.Count > 0 {
			s.counted.Store(a.Count)
			continue
		}
		s.answers <- a
	}
}

// order gives a member an order.
func (r *rig) order(t testing.TB, id string, o order) *session {
	t.Helper()
	r.mu.Lock()
	s := r.sessions[id]
	r.mu.Unlock()
	if s == nil {
		t.Fatalf("member %q has not connected", id)
	}
	if err := s.out.Encode(o); err != nil {
		t.Fatal(err)
	}
	return s
}

// tell gives a member an order and returns the answer.
func (r *rig) tell(t testing.TB, id string, o order) answer {
	t.Helper()
	s := r.order(t, id, o)
	if o.Exit != nil {
		return answer{}
	}
	a, ok := <-s.answers
	if !ok {
		t.Fatalf("member %q has hung up", id)
	}
	if a.Err != "" {
		t.Fatalf("the member can't: %s", a.Err)
	}
	return a
}

// progress is how far a member has counted, as far as it has said.
func (r *rig) progress(t testing.TB, id string) int64 {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sessions[id]; s != nil {
		return s.counted.Load()
	}
	return 0
}

// left lists what is on the host of members.
func (r *rig) left(t testing.TB) []string {
	t.Helper()
	var left []string
	for _, dir := range []string{"vms", "libvirt/log/qemu"} {
		entries, _ := os.ReadDir(filepath.Join(r.cfg.StateDir, dir))
		for _, e := range entries {
			left = append(left, filepath.Join(dir, e.Name()))
		}
	}
	for _, pattern := range []string{"libvirt/run/qemu/*.1.*", "libvirt/lib/qemu/domain-*"} {
		files, _ := filepath.Glob(filepath.Join(r.cfg.StateDir, pattern))
		left = append(left, files...)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/nearmetal/%s-vm/test*", "/sys/fs/cgroup/*/nearmetal/%s-vm/test*"} {
		groups, _ := filepath.Glob(fmt.Sprintf(pattern, cgroup.NodeGroup(r.cfg.Node, r.cfg.StateDir)))
		left = append(left, groups...)
	}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && bytes.Contains(line, fmt.Appendf(nil, "guest=test%d.", os.Getpid())) {
			left = append(left, "QEMU: "+file)
		}
	}
	for _, id := range r.made {
		if _, err := netlink.LinkByName(fabric.DeviceName(id)); err == nil {
			left = append(left, "device of "+id)
		}
	}
	return left
}

// pidOf is the process of a member's machine, as text.
func pidOf(t testing.TB, r *rig, id string) string {
	t.Helper()
	all, err := r.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if o.ID == id {
			return fmt.Sprint(o.PID)
		}
	}
	t.Fatalf("member %q was not found", id)
	return ""
}

// childrenNamed are the living processes of a name that are this one's children.
func childrenNamed(t testing.TB, name string) map[int]bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]bool{}
	for _, file := range files {
		text, _ := os.ReadFile(file)
		begin, rest, ok := strings.Cut(string(text), " ("+name+") ")
		fields := strings.Fields(rest)
		if pid, err := strconv.Atoi(begin); ok && err == nil && len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(os.Getpid()) {
			found[pid] = true
		}
	}
	return found
}
