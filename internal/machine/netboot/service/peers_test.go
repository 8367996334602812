package service_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/dhcp"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// dnsmasq runs another DHCP server on the cable, at the clients' end, on a bridge with the clients' NIC.
func (l *lab) dnsmasq() {
	t := l.t
	t.Helper()
	needs.Program(t, "dnsmasq")
	// The clients' NIC becomes a port of a switch; a new NIC in front of it is the client's, the switch's own address dnsmasq's.
	server, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	attrs := func(name string) netlink.LinkAttrs { a := netlink.NewLinkAttrs(); a.Name = name; return a }
	err = l.clients.Do(func() error {
		nic, err := netlink.LinkByName(clientLink)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetNsFd(nic, server.FD()); err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs(clientLink), PeerName: "port1", PeerNamespace: netlink.NsFd(server.FD())})
	})
	if err != nil {
		t.Fatal(err)
	}
	err = server.Do(func() error {
		br := &netlink.Bridge{LinkAttrs: attrs("sw")}
		if err := netlink.LinkAdd(br); err != nil {
			return err
		}
		for _, name := range []string{clientLink, "port1", "sw", "lo"} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if name == clientLink || name == "port1" {
				if err := netlink.LinkSetMaster(link, br); err != nil {
					return err
				}
			}
			if err := netlink.LinkSetUp(link); err != nil {
				return err
			}
		}
		return netlink.AddrAdd(br, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 77, 0, 53), Mask: net.CIDRMask(16, 32)}})
	})
	if err != nil {
		t.Fatal(err)
	}
	lease := filepath.Join(t.TempDir(), "leases")
	log, err := os.Create(filepath.Join(t.TempDir(), "dnsmasq.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("dnsmasq", "--keep-in-foreground", "--port=0", "--interface=sw", "--bind-interfaces", "--log-dhcp", "--log-facility=-",
		"--conf-file=/dev/null", "--dhcp-range=10.77.9.1,10.77.9.200,1h", "--dhcp-leasefile="+lease, "--user=root", "--no-ping", "--pid-file")
	cmd.Stdout, cmd.Stderr = log, log
	if err := server.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("dnsmasq said:\n%s", said)
		}
	})
	if err := l.clients.Do(func() error {
		nic, err := netlink.LinkByName(clientLink)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(nic)
	}); err != nil {
		t.Fatal(err)
	}
	l.awaitServer(server)
}

// awaitServer waits until dnsmasq has its port: /proc/net/udp of its namespace names it.
func (l *lab) awaitServer(ns netns.Handle) {
	l.t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for range 1000 {
		found := false
		_ = ns.Do(func() error {
			table, err := os.ReadFile("/proc/thread-self/net/udp")
			found = strings.Contains(string(table), ":0043 ")
			return err
		})
		if found {
			return
		}
		<-ticker.C
	}
	l.t.Fatal("dnsmasq does not listen")
}

func TestAnotherServerOnTheWireIsRefusedByName(t *testing.T) {
	l := newLab(t, nil)
	l.dnsmasq()
	l.probe = 10 * time.Second // it ends with the first answer
	l.open()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	err := l.service.Run(ctx)
	var other *dhcp.OtherServerError
	if !errors.As(err, &other) || other.Server != netip.MustParseAddr("10.77.0.53") {
		t.Fatalf("it ran, or ended with: %v", err)
	}
	if !strings.Contains(err.Error(), "another DHCP server, 10.77.0.53, answers on boot0") {
		t.Errorf("the error is %q", err)
	}
}

func TestAServerThatComesLaterIsTold(t *testing.T) {
	l := newLab(t, nil)
	l.start()
	l.service.SetTable(l.table(1, nil))
	l.setMAC(known)
	if _, err := l.udhcpc(); err != nil { // it serves
		t.Fatal(err)
	}
	l.dnsmasq()
	told := func(e netboot.Event) bool { return strings.Contains(e.Problem, "10.77.0.53") }
	// Whoever asks, the other one's broadcast answer is seen; but a bridge notices the carrier of a cable up to a second late.
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if _, err := l.udhcpc("-B"); err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		heard := slices.ContainsFunc(l.events, told)
		l.mu.Unlock()
		if heard {
			return
		}
	}
	t.Error("the other server is not told of")
}

func TestBesideAnotherServerOnlyTheBootIsTold(t *testing.T) {
	l := newLab(t, func(n *netboot.Network) { n.Proxy = true; n.Machines, n.Strangers = netboot.Range{}, netboot.Range{} })
	l.dnsmasq()
	l.start()
	table := l.table(1, nil)
	m := table.Machines[known]
	m.Address, m.Boot = netip.Addr{}, l.boot(7, api.BootEnvironment)
	l.service.SetTable(table)
	l.setMAC(known)
	pxe := l.firmware(t)
	from := func(server string) func(*dhcpv4.DHCPv4) bool {
		return func(r *dhcpv4.DHCPv4) bool { return r.ServerIdentifier().Equal(net.ParseIP(server)) }
	}
	offer := pxe.ask(from("10.77.0.1"), dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover))
	if offer.BootFileName != "snponly.efi" || !offer.YourIPAddr.IsUnspecified() || offer.ClassIdentifier() != "PXEClient" ||
		!offer.ServerIPAddr.Equal(net.IPv4(10, 77, 0, 1)) {
		t.Errorf("the ProxyDHCP offer is %s", offer.Summary())
	}
	offer = pxe.ask(from("10.77.0.53"), dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover))
	lease := pxe.ask(func(r *dhcpv4.DHCPv4) bool { return r.MessageType() == dhcpv4.MessageTypeAck },
		dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(offer.ServerIdentifier())))
	if !from("10.77.0.53")(lease) || !strings.HasPrefix(lease.YourIPAddr.String(), "10.77.9.") {
		t.Fatalf("the address is %s", lease.Summary())
	}
	l.run("ip", "addr", "add", lease.YourIPAddr.String()+"/16", "dev", clientLink)
	// Its request to the other server was heard, so it is known by its address.
	script := l.run("curl", "-sSf", "http://10.77.0.1:8069/boot/02-00-00-00-00-01.ipxe?generation=7")
	if !strings.Contains(script, "token/"+known+"/7/") {
		t.Errorf("the script is %s", script)
	}
}

// firmware is a client that hears both servers (PXE 2.1, section 2.2); one that knows no ProxyDHCP takes whichever offer comes first.
type firmware struct {
	t    *testing.T
	conn net.PacketConn
}

func (l *lab) firmware(t *testing.T) firmware {
	t.Helper()
	var conn net.PacketConn
	err := l.clients.Do(func() (err error) {
		config := net.ListenConfig{Control: bindTo(clientLink)}
		conn, err = config.ListenPacket(context.Background(), "udp4", ":68")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return firmware{t, conn}
}

// ask sends a message until an answer to it is the wanted one.
func (f firmware) ask(wanted func(*dhcpv4.DHCPv4) bool, more ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	f.t.Helper()
	hw, _ := net.ParseMAC(known)
	request, err := dhcpv4.New(append(more, dhcpv4.WithHwAddr(hw), dhcpv4.WithBroadcast(true),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:003016")),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, 7})))...)
	if err != nil {
		f.t.Fatal(err)
	}
	buffer := make([]byte, 2048)
	for range 20 {
		if _, err := f.conn.WriteTo(request.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67}); err != nil {
			f.t.Fatal(err)
		}
		if err := f.conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			f.t.Fatal(err)
		}
		for {
			n, _, err := f.conn.ReadFrom(buffer)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				f.t.Fatal(err)
			}
			reply, err := dhcpv4.FromBytes(buffer[:n])
			if err == nil && reply.TransactionID == request.TransactionID && wanted(reply) {
				return reply
			}
		}
	}
	f.t.Fatalf("no such answer to %s", request.Summary())
	return nil
}

func TestWithoutAServerBesideItIsTold(t *testing.T) {
	l := newLab(t, func(n *netboot.Network) { n.Proxy = true; n.Machines, n.Strangers = netboot.Range{}, netboot.Range{} })
	l.start()
	l.await("its absence", func(e netboot.Event) bool { return strings.Contains(e.Problem, "no DHCP server answers on boot0") })
}

func TestOtherClientsAreServed(t *testing.T) {
	l := newLab(t, nil)
	l.start()
	l.service.SetTable(l.table(1, nil))
	t.Run("ISC dhclient", func(t *testing.T) {
		l.t = t
		l.setMAC(known)
		dir := t.TempDir()
		script := filepath.Join(dir, "script")
		if err := os.WriteFile(script, []byte("#!/bin/sh\nenv >> "+dir+"/told\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		l.run("dhclient", "-4", "-1", "-v", "-sf", script, "-lf", dir+"/leases", "-pf", dir+"/pid", clientLink)
		defer l.run("dhclient", "-4", "-r", "-sf", script, "-lf", dir+"/leases", "-pf", dir+"/pid", clientLink)
		told, _ := os.ReadFile(dir + "/told")
		if !strings.Contains(string(told), "new_ip_address=10.77.1.1\n") {
			t.Errorf("it was told %s", told)
		}
	})
	t.Run("dhcping", func(t *testing.T) {
		l.t = t
		l.setMAC(known)
		if _, err := l.udhcpc(); err != nil {
			t.Fatal(err)
		}
		if out := l.run("dhcping", "-t", "20", "-h", known, "-s", "10.77.0.1", "-c", "10.77.1.1"); !strings.Contains(out, "Got answer from: 10.77.0.1") {
			t.Errorf("dhcping said %s", out)
		}
	})
	t.Run("curl by TFTP with blksize", func(t *testing.T) {
		l.t = t
		l.setMAC(known)
		if _, err := l.udhcpc(); err != nil {
			t.Fatal(err)
		}
		if out := l.run("curl", "-sSv", "--tftp-blksize", "1400", "-o", "loader", "tftp://10.77.0.1/snponly.efi"); !strings.Contains(out, "blksize") {
			t.Logf("curl said %s", out)
		}
		got, _ := os.ReadFile(filepath.Join(l.blobs.dir, "loader"))
		if len(got) != 9000*len("snponly.efi\n") {
			t.Errorf("%d bytes came", len(got))
		}
	})
}

func TestAStrangersLeaseIsDurableBeforeItIsOffered(t *testing.T) {
	l := newLab(t, nil)
	l.start()
	l.service.SetTable(l.table(1, nil))
	l.setMAC(stranger)
	l.leases.mu.Lock()
	l.leases.err = errors.New("the disk is full")
	l.leases.mu.Unlock()
	if told, err := l.udhcpc("-t", "3"); err == nil {
		t.Fatalf("it was offered without being stored: %v", told)
	}
	l.await("a problem", func(e netboot.Event) bool { return strings.Contains(e.Problem, "the disk is full") })
	l.leases.mu.Lock()
	l.leases.err = nil
	l.leases.mu.Unlock()
	told, err := l.udhcpc("-R")
	if err != nil {
		t.Fatal(err)
	}
	l.leases.mu.Lock()
	defer l.leases.mu.Unlock()
	want := "keep " + stranger + " " + told["ip"]
	if len(l.leases.log) == 0 || l.leases.log[0] != want {
		t.Errorf("the store was told %v, want first %q", l.leases.log, want)
	}
}

// A queue of one byte drops every packet and says so, as a busy interface does now and then.
func TestAFullQueueOfTheInterfaceDelaysTheStartOnly(t *testing.T) {
	l := newLab(t, nil)
	needs.Program(t, "tc")
	tc := func(arguments ...string) string {
		t.Helper()
		out, err := exec.Command("tc", append([]string{"-s", "qdisc"}, arguments...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("tc: %v: %s", err, out)
		}
		return string(out)
	}
	tc("add", "dev", serverLink, "root", "bfifo", "limit", "1")
	l.start()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	dropped := regexp.MustCompile(`dropped [1-9]`)
	for end := time.Now().Add(20 * time.Second); !dropped.MatchString(tc("show", "dev", serverLink)); <-ticker.C {
		if time.Now().After(end) {
			t.Fatal("the service asked for no other server")
		}
	}
	tc("del", "dev", serverLink, "root")
	l.service.SetTable(l.table(1, nil))
	l.setMAC(known)
	if _, err := l.udhcpc(); err != nil {
		t.Fatal(err)
	}
}
