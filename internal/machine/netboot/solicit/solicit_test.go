package solicit

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv6"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// The fields of RFC 4861, section 4.2: type, code, checksum, hop limit, M and O, router lifetime, reachable time, retransmission timer; then
// the source link-layer address (section 4.6.1).
func TestAnAdvertisementAnnouncesNoRouter(t *testing.T) {
	got := Advertisement(net.HardwareAddr{2, 0, 0, 0, 0, 1})
	want := []byte{134, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 1}
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

func TestOnlySolicitationsOfThisLinkAreAnswered(t *testing.T) {
	good := func() ([]byte, *ipv6.ControlMessage) {
		return []byte{133, 0, 0, 0, 0, 0, 0, 0}, &ipv6.ControlMessage{IfIndex: 3, HopLimit: 255}
	}
	for name, change := range map[string]func(m []byte, c *ipv6.ControlMessage) []byte{
		"another type":     func(m []byte, _ *ipv6.ControlMessage) []byte { m[0] = 135; return m },
		"another code":     func(m []byte, _ *ipv6.ControlMessage) []byte { m[1] = 1; return m },
		"too short":        func(m []byte, _ *ipv6.ControlMessage) []byte { return m[:7] },
		"another link":     func(m []byte, c *ipv6.ControlMessage) []byte { c.IfIndex = 4; return m },
		"through a router": func(m []byte, c *ipv6.ControlMessage) []byte { c.HopLimit = 254; return m },
	} {
		m, c := good()
		if solicits(change(m, c), c, 3) {
			t.Errorf("%s is answered", name)
		}
	}
	if m, c := good(); !solicits(m, c, 3) {
		t.Error("a solicitation is not answered")
	}
}

// wire is two namespaces with a cable between them, whose ends are called cable.
func wire(t *testing.T) (server, machine netns.Handle) {
	t.Helper()
	needs.Root(t, "makes network namespaces")
	ends := make([]netns.Handle, 2)
	for i := range ends {
		h, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = h.Close() })
		ends[i] = h
	}
	must(t, ends[0].Do(func() error {
		cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cable"}, PeerName: "far"}
		if err := netlink.LinkAdd(cable); err != nil {
			return err
		}
		far, err := netlink.LinkByName("far")
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(far, ends[1].FD())
	}))
	must(t, ends[1].Do(func() error {
		far, err := netlink.LinkByName("far")
		if err != nil {
			return err
		}
		return netlink.LinkSetName(far, "cable")
	}))
	for _, end := range ends {
		must(t, end.Do(func() error {
			// An address that is being looked for on the wire could not be sent from for a second (RFC 4862, section 5.4).
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/cable/accept_dad", []byte("0"), 0o644); err != nil {
				return err
			}
			cable, err := netlink.LinkByName("cable")
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(cable)
		}))
	}
	return ends[0], ends[1]
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAMachineThatAsksForARouterIsToldThereIsNone(t *testing.T) {
	server, machine := wire(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	must(t, server.Do(func() error {
		r, err := Open("cable")
		if err != nil {
			return err
		}
		go func() { ended <- r.Run(ctx) }()
		return nil
	}))
	var got []byte
	must(t, machine.Do(func() error {
		conn, err := net.ListenPacket("ip6:ipv6-icmp", "::")
		if err != nil {
			return err
		}
		defer conn.Close()
		packets := ipv6.NewPacketConn(conn)
		filter := &ipv6.ICMPFilter{}
		filter.SetAll(true)
		filter.Accept(ipv6.ICMPTypeRouterAdvertisement)
		link, err := net.InterfaceByName("cable")
		if err != nil {
			return err
		}
		for _, err := range []error{
			packets.SetICMPFilter(filter), packets.SetChecksum(true, 2), packets.SetMulticastHopLimit(255), packets.SetMulticastInterface(link),
		} {
			if err != nil {
				return err
			}
		}
		to := &net.IPAddr{IP: net.IPv6linklocalallrouters, Zone: "cable"}
		buffer := make([]byte, 1500)
		for range 60 { // again: the kernel sends nothing until it has noticed that both ends of a new cable are up
			// Until then there is no address to send from either.
			if _, err := packets.WriteTo([]byte{routerSolicitation, 0, 0, 0, 0, 0, 0, 0}, nil, to); err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) {
				return err
			}
			if err := conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
				return err
			}
			var n int
			if n, _, _, err = packets.ReadFrom(buffer); err == nil {
				got = buffer[:n]
				return nil
			}
		}
		return err
	}))
	if len(got) != 24 || got[0] != routerAdvertisement || !bytes.Equal(got[4:16], make([]byte, 12)) {
		t.Errorf("it is told %x", got)
	}
	cancel()
	if err := <-ended; err != context.Canceled {
		t.Errorf("the responder ended with %v", err)
	}
}
