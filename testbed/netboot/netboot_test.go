// Package netboot_test boots machines of the virtual data centre through the network boot service: firmware and loaders that others wrote, up
// to the first words of a Debian kernel. It runs in a network namespace of its own. Start with TestMachinesBootOverTheNetwork.
package netboot_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"
	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/service"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/netns/netnstest"
	"github.com/nearmetal/nearmetal/testbed/guest"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

const (
	wanted = "NEARMETAL_TESTBED"
	link   = "nbprov0"
	// patience is for an emulated machine beside others on few cores.
	patience = 4 * time.Minute
)

func TestMain(m *testing.M) { os.Exit(netnstest.Run(m, os.Getenv(wanted) != "")) }

// site is a data centre with the service at its provisioning cable.
type site struct {
	t       *testing.T
	dc      *vdc.DataCentre
	network netboot.Network
	dir     string
	boot    *netboot.Boot

	mu      sync.Mutex
	events  []netboot.Event
	changed chan struct{}
}

func newSite(t *testing.T, proxy bool, machines ...vdc.MachineConfig) *site {
	t.Helper()
	needs.Request(t, wanted, "make test-testbed")
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	if lo, err := netlink.LinkByName("lo"); err == nil {
		_ = netlink.LinkSetUp(lo)
	}
	dc, err := vdc.Start(ctx, vdc.Config{
		Name: "netboot", Machines: machines, ProvisioningLink: link, BMCLink: "nbbmc0", BMCNetwork: netip.MustParsePrefix("10.98.77.0/24"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dc.Close(); err != nil {
			t.Errorf("the data centre: %v", err)
		}
	})
	s := &site{t: t, dc: dc, dir: t.TempDir(), changed: make(chan struct{}, 1)}
	s.network = netboot.Network{
		Interface: link, Address: netip.MustParsePrefix("10.77.0.1/16"), HTTPPort: 8069, Proxy: proxy,
		Machines:  netboot.Range{From: netip.MustParseAddr("10.77.1.1"), To: netip.MustParseAddr("10.77.1.250")},
		Strangers: netboot.Range{From: netip.MustParseAddr("10.77.2.1"), To: netip.MustParseAddr("10.77.2.250")},
	}
	if proxy {
		s.network.Interface = s.beside(t.TempDir())
	}
	l, err := netlink.LinkByName(s.network.Interface)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 77, 0, 1), Mask: net.CIDRMask(16, 32)}}); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
	s.artefacts(ctx)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, m := range dc.Machines() {
			log, _ := os.ReadFile(m.ConsoleLog)
			t.Logf("console of %s:\n%s", m.Name, log[max(0, len(log)-4000):])
		}
		t.Logf("events: %+v", s.events)
	})
	return s
}

// artefacts are a Debian kernel and the smallest initrd.
func (s *site) artefacts(ctx context.Context) {
	s.t.Helper()
	built, err := guest.EnsureImage(ctx, guest.CacheDir, guest.NodePackages())
	if err != nil {
		s.t.Fatal(err)
	}
	kernel, err := os.ReadFile(built.Kernel)
	if err != nil {
		s.t.Fatal(err)
	}
	var archive bytes.Buffer
	w := cpio.NewWriter(&archive)
	note := bytes.Repeat([]byte("hello "), 200_000)
	if err := w.WriteHeader(&cpio.Header{Name: "note", Mode: 0o100644, Size: int64(len(note))}); err != nil {
		s.t.Fatal(err)
	}
	if _, err := w.Write(note); err != nil {
		s.t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.boot = &netboot.Boot{
		Machine: "uid", Generation: 7, Purpose: api.BootEnvironment, Architecture: "x86_64", Manifest: image.DigestOf(nil),
		Arguments: "console=ttyS0 panic=0", Kernel: s.add(kernel), Initrd: s.add(archive.Bytes()), ExpiresAt: time.Now().Add(time.Hour),
	}
}

func (s *site) add(content []byte) image.Digest {
	d := image.DigestOf(content)
	if err := os.WriteFile(filepath.Join(s.dir, d.Hex()), content, 0o644); err != nil {
		s.t.Fatal(err)
	}
	return d
}

// Open makes it netboot.Blobs.
func (s *site) Open(d image.Digest) (netboot.Blob, error) {
	return netboot.OpenFile(filepath.Join(s.dir, d.Hex()))
}

// noLeases stores nothing: all machines here are known.
type noLeases struct{}

func (noLeases) All() []api.Lease                      { return nil }
func (noLeases) Keep(context.Context, api.Lease) error { return nil }
func (noLeases) Drop(context.Context, string) error    { return nil }

// start runs the service; boots says what each machine boots, nil: nothing.
func (s *site) start(boots map[string]*netboot.Boot) {
	s.t.Helper()
	srv, err := service.Open(service.Config{
		Network: s.network, BootServer: "10.77.0.1:7443", Pin: "sha256:" + strings.Repeat("ab", 32), Leases: noLeases{}, Blobs: s,
		Tokens: func(mac string, b *netboot.Boot, port string) string {
			return fmt.Sprintf("T-%s-%d-%s", mac, b.Generation, port)
		},
		Sink: s.sink, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), ProbeWait: time.Second,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	table := &netboot.Table{Term: 1, Revision: 1, Machines: map[string]*netboot.Machine{}}
	for i, m := range s.dc.Machines() {
		machine := &netboot.Machine{Name: m.Name, MAC: m.MAC, Boot: boots[m.Name]}
		if !s.network.Proxy {
			machine.Address = s.network.Machines.At(i)
		}
		table.Machines[m.MAC] = machine
	}
	srv.SetTable(table)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("the service ended with: %v", err)
		}
	})
}

func (s *site) sink(e netboot.Event) {
	s.mu.Lock()
	s.events = append(s.events, e)
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *site) awaitStage(m vdc.Machine, stage api.BootStage) netboot.Event {
	s.t.Helper()
	deadline := time.After(patience)
	for {
		s.mu.Lock()
		events := slices.Clone(s.events)
		s.mu.Unlock()
		if i := slices.IndexFunc(events, func(e netboot.Event) bool { return e.Stage == stage && e.MAC.String() == m.MAC }); i >= 0 {
			return events[i]
		}
		select {
		case <-s.changed:
		case <-deadline:
			s.t.Fatalf("%s: stage %s never ended", m.Name, stage)
		}
	}
}

// awaitConsole waits until a machine's console has said something.
func (s *site) awaitConsole(m vdc.Machine, words string) {
	s.t.Helper()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(patience)
	for {
		said, _ := os.ReadFile(m.ConsoleLog)
		if strings.Contains(string(said), words) {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			s.t.Fatalf("%s: its console never said %q", m.Name, words)
		}
	}
}

func (s *site) powerOn(m vdc.Machine) {
	s.t.Helper()
	if err := s.dc.PressPower(m.Name); err != nil {
		s.t.Fatal(err)
	}
}

func both() []vdc.MachineConfig {
	return []vdc.MachineConfig{{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: 512}, {Name: "u1", Firmware: api.FirmwareUEFI, MemoryMiB: 512}}
}

func (s *site) boots() {
	for _, m := range s.dc.Machines() {
		s.powerOn(m)
	}
	for _, m := range s.dc.Machines() {
		from := s.awaitStage(m, api.StageFirmware)
		if from.Firmware != m.Firmware || from.Generation != 7 {
			s.t.Errorf("%s: %+v", m.Name, from)
		}
		end := s.awaitStage(m, api.StageLoader)
		s.awaitConsole(m, "Linux version 6")
		s.awaitConsole(m, "nearmetal.token=T-"+m.MAC+"-7-"+s.network.Interface)
		s.awaitConsole(m, "Freeing initrd memory: 1")
		s.t.Logf("%s: %.1f s from its first DHCP request to kernel and initrd, %d bytes", m.Name, end.At.Sub(from.At).Seconds(), end.Bytes)
	}
}

func TestMachinesBootOverTheNetwork(t *testing.T) {
	s := newSite(t, false, both()...)
	s.start(map[string]*netboot.Boot{"b1": s.boot, "u1": s.boot})
	s.boots()
}

func TestMachinesNotMeantToBootGoOnAtOnce(t *testing.T) {
	s := newSite(t, false, both()...)
	s.start(nil)
	for _, m := range s.dc.Machines() {
		s.powerOn(m)
	}
	for _, m := range s.dc.Machines() {
		s.awaitStage(m, api.StageFirmware)
		if m.Firmware == api.FirmwareBIOS {
			s.awaitConsole(m, "not meant to boot from the network")
			s.awaitConsole(m, "Booting from Hard Disk") // SeaBIOS goes on
		} else {
			s.awaitConsole(m, "failed to load Boot") // OVMF goes on with the next entry
		}
	}
}

// beside puts dnsmasq, a DHCP server that gives addresses, and the machines on one switch, and returns its link on our side.
func (s *site) beside(dir string) string {
	t := s.t
	t.Helper()
	needs.Program(t, "dnsmasq")
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	attrs := func(name string) netlink.LinkAttrs { a := netlink.NewLinkAttrs(); a.Name = name; return a }
	br := &netlink.Bridge{LinkAttrs: attrs("nbsw")}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netlink.LinkAdd(br))
	t.Cleanup(func() { _ = netlink.LinkDel(br) })
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs("nbdns"), PeerName: "eth0", PeerNamespace: netlink.NsFd(ns.FD())}))
	for _, name := range []string{link, "nbdns"} {
		port, err := netlink.LinkByName(name)
		must(err)
		must(netlink.LinkSetMaster(port, br))
		must(netlink.LinkSetUp(port))
	}
	must(ns.Do(func() error {
		eth, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(eth, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 77, 0, 53), Mask: net.CIDRMask(16, 32)}}); err != nil {
			return err
		}
		return netlink.LinkSetUp(eth)
	}))
	cmd := exec.Command("dnsmasq", "--keep-in-foreground", "--port=0", "--conf-file=/dev/null", "--dhcp-range=10.77.9.1,10.77.9.200,1h",
		"--dhcp-leasefile="+filepath.Join(dir, "leases"), "--user=root", "--no-ping", "--pid-file", "--log-facility="+filepath.Join(dir, "log"))
	must(ns.Do(cmd.Start))
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return "nbsw"
}

func TestMachinesBootBesideAnotherDHCPServer(t *testing.T) {
	s := newSite(t, true, both()...)
	s.start(map[string]*netboot.Boot{"b1": s.boot, "u1": s.boot})
	s.boots()
}

// OVMF tries PXE first, for minutes; the service starts when it has come to HTTP boot.
func TestAMachineBootsByUEFIHTTPBoot(t *testing.T) {
	s := newSite(t, false, vdc.MachineConfig{Name: "u1", Firmware: api.FirmwareUEFI, MemoryMiB: 512})
	iface, err := net.InterfaceByName(link)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := packet.Listen(iface, packet.Raw, unix.ETH_P_IP, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = wire.Close() }()
	m := s.dc.Machines()[0]
	s.powerOn(m)
	if err := wire.SetReadDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	for frame := make([]byte, 4096); ; {
		n, _, err := wire.ReadFrom(frame)
		if err != nil {
			t.Fatalf("OVMF never asked for HTTP boot: %v", err)
		}
		if bytes.Contains(frame[:n], []byte("HTTPClient:Arch:00016")) {
			break
		}
	}
	s.start(map[string]*netboot.Boot{"u1": s.boot})
	s.awaitStage(m, api.StageLoader)
	s.awaitConsole(m, "Linux version 6")
}
