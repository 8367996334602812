package service_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/service"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/netns/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Run(m, true)) }

const (
	serverLink = "boot0"
	clientLink = "nic0"
	known      = "02:00:00:00:00:01"
	stranger   = "02:00:00:00:00:99"
)

// lab is a cable: the service at one end, in this process' namespace, clients in another one.
type lab struct {
	t       *testing.T
	clients netns.Handle
	network netboot.Network
	leases  *leases
	blobs   *blobs
	service *service.Service
	probe   time.Duration // for other servers

	mu      sync.Mutex
	events  []netboot.Event
	changed chan struct{}
}

func newLab(t *testing.T, change func(*netboot.Network)) *lab {
	t.Helper()
	needs.Root(t, "makes network namespaces")
	l := &lab{t: t, probe: 200 * time.Millisecond, changed: make(chan struct{}, 1), leases: &leases{by: map[string]api.Lease{}}, blobs: &blobs{dir: t.TempDir()}}
	l.network = netboot.Network{
		Interface: serverLink, Address: netip.MustParsePrefix("10.77.0.1/16"), HTTPPort: 8069,
		Machines:  netboot.Range{From: netip.MustParseAddr("10.77.1.1"), To: netip.MustParseAddr("10.77.1.250")},
		Strangers: netboot.Range{From: netip.MustParseAddr("10.77.2.1"), To: netip.MustParseAddr("10.77.2.250")},
		Router:    netip.MustParseAddr("10.77.0.254"), Nameservers: []netip.Addr{netip.MustParseAddr("10.77.0.253")},
	}
	if change != nil {
		change(&l.network)
	}
	l.clients = netnstest.Cable(t, serverLink, clientLink, l.network.Address)
	return l
}

// open makes the service; start runs it.
func (l *lab) open() {
	l.t.Helper()
	dir := l.t.TempDir()
	for _, name := range []string{"undionly.kpxe", "snponly.efi"} {
		if err := os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte(name+"\n"), 9000), 0o644); err != nil {
			l.t.Fatal(err)
		}
	}
	s, err := service.Open(service.Config{
		Network: l.network, BootServer: "10.77.0.1:7443", Pin: "sha256:" + strings.Repeat("ab", 32), Leases: l.leases, Blobs: l.blobs, Loaders: dir,
		Tokens: func(mac string, b *netboot.Boot, port string) string {
			return fmt.Sprintf("token/%s/%d/%s", mac, b.Generation, port)
		},
		ProbeWait: l.probe, Sink: l.sink, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.service = s
}

func (l *lab) start() {
	l.t.Helper()
	l.open()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.service.Run(ctx) }()
	l.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			l.t.Errorf("the service ended with: %v", err)
		}
	})
}

func (l *lab) sink(e netboot.Event) {
	l.mu.Lock()
	l.events = append(l.events, e)
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// await waits until an event fits.
func (l *lab) await(what string, fits func(netboot.Event) bool) netboot.Event {
	l.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		l.mu.Lock()
		events := slices.Clone(l.events)
		l.mu.Unlock()
		if i := slices.IndexFunc(events, fits); i >= 0 {
			return events[i]
		}
		select {
		case <-l.changed:
		case <-deadline:
			l.t.Fatalf("no event: %s; there were %+v", what, events)
		}
	}
}

// setMAC gives the client's NIC another MAC.
func (l *lab) setMAC(mac string) {
	l.t.Helper()
	hw, _ := net.ParseMAC(mac)
	if err := l.clients.Do(func() error {
		nic, err := netlink.LinkByName(clientLink)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetDown(nic); err != nil {
			return err
		}
		if err := netlink.LinkSetHardwareAddr(nic, hw); err != nil {
			return err
		}
		return netlink.LinkSetUp(nic)
	}); err != nil {
		l.t.Fatal(err)
	}
}

// try runs a program in the clients' namespace.
func (l *lab) try(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = l.blobs.dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := l.clients.Do(cmd.Start); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return out.String(), err
}

func (l *lab) run(name string, args ...string) string {
	l.t.Helper()
	needs.Program(l.t, name)
	out, err := l.try(name, args...)
	if err != nil {
		l.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// udhcpc runs busybox' DHCP client and returns what its script was told at the end.
func (l *lab) udhcpc(args ...string) (map[string]string, error) {
	l.t.Helper()
	needs.Program(l.t, "busybox")
	told := filepath.Join(l.blobs.dir, "told")
	script := filepath.Join(l.blobs.dir, "script")
	text := "#!/bin/sh\n[ $1 = bound ] || exit 0\nenv > " + told + "\nip addr flush dev $interface\nip addr add $ip/$mask dev $interface\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		l.t.Fatal(err)
	}
	_ = os.Remove(told)
	out, err := l.try("busybox", append([]string{"udhcpc", "-i", clientLink, "-f", "-n", "-q", "-t", "20", "-T", "1", "-s", script}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	content, err := os.ReadFile(told)
	values := map[string]string{}
	for line := range strings.Lines(string(content)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[key] = value
	}
	return values, err
}

// bindTo keeps a socket to one link and lets it broadcast.
func bindTo(link string) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = errors.Join(unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, link),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
		})
		return errors.Join(err, failed)
	}
}

// table is one machine that boots, and what strangers boot.
func (l *lab) table(revision int64, boot *netboot.Boot) *netboot.Table {
	return &netboot.Table{
		Term: 1, Revision: revision, Stranger: l.boot(0, api.BootEnroll),
		Machines: map[string]*netboot.Machine{known: {Name: "n1", MAC: known, Address: l.network.Machines.At(0), Boot: boot}},
	}
}

func (l *lab) boot(generation int64, purpose api.BootPurpose) *netboot.Boot {
	b := &netboot.Boot{
		Generation: generation, Purpose: purpose, Architecture: "x86_64", Arguments: "console=ttyS0",
		Manifest: image.DigestOf([]byte("manifest")), Kernel: l.blobs.add(bytes.Repeat([]byte("kernel "), 100_000)),
		Initrd: l.blobs.add(bytes.Repeat([]byte("initrd "), 200_000)), ExpiresAt: time.Now().Add(time.Hour),
	}
	if generation > 0 {
		b.Machine = "uid-1"
	}
	return b
}

// leases is a store of leases in memory that tells what it was told.
type leases struct {
	mu  sync.Mutex
	by  map[string]api.Lease
	log []string
	err error
}

func (s *leases) All() []api.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.by))
}

func (s *leases) Keep(_ context.Context, l api.Lease) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.by[l.MAC] = l
	s.log = append(s.log, "keep "+l.MAC+" "+l.Address.String())
	return nil
}

func (s *leases) Drop(_ context.Context, mac string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.by, mac)
	s.log = append(s.log, "drop "+mac)
	return nil
}

// blobs are files.
type blobs struct{ dir string }

func (s *blobs) add(content []byte) image.Digest {
	d := image.DigestOf(content)
	if err := os.WriteFile(filepath.Join(s.dir, d.Hex()), content, 0o644); err != nil {
		panic(err)
	}
	return d
}

func (s *blobs) Open(d image.Digest) (netboot.Blob, error) {
	return netboot.OpenFile(filepath.Join(s.dir, d.Hex()))
}
