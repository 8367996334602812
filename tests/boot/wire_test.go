package boot

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// wire is a bridge between the server and the data centre, which others are plugged into.
type wire struct {
	s      *site
	bridge *netlink.Bridge
	plugs  int

	mu     sync.Mutex
	frames [][]byte // of DHCP and HTTP, as they passed
}

// newSiteOnAWire is newSite with a wire; its server is not started.
func newSiteOnAWire(t *testing.T, machines []vdc.MachineConfig, args ...string) (*site, *wire) {
	t.Helper()
	needTestbed(t)
	s := prepare(t, machines, args)
	w := &wire{s: s, bridge: &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: s.name + "br"}}}
	must(t, netlink.LinkAdd(w.bridge))
	t.Cleanup(func() {
		s.stop()
		must(t, netlink.LinkDel(w.bridge))
	})
	w.join(s.link)
	s.link = w.bridge.Name
	s.connect()
	s.copyTemplate()
	return s, w
}

// join makes a link a port of the bridge.
func (w *wire) join(name string) {
	w.s.t.Helper()
	link, err := netlink.LinkByName(name)
	must(w.s.t, err)
	must(w.s.t, netlink.LinkSetMaster(link, w.bridge))
	must(w.s.t, netlink.LinkSetUp(link))
}

// plug is a network namespace whose link "eth0" is on the wire, with this address, and this MAC unless it is empty.
func (w *wire) plug(address netip.Prefix, mac string) netns.Handle {
	t := w.s.t
	t.Helper()
	w.plugs++
	ns, err := netns.New()
	must(t, err)
	t.Cleanup(func() { _ = ns.Close() })
	outer := fmt.Sprintf("%sp%d", w.s.name, w.plugs)
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: outer}, PeerName: outer + "i", PeerNamespace: netlink.NsFd(ns.FD())}))
	t.Cleanup(func() {
		if link, err := netlink.LinkByName(outer); err == nil {
			_ = netlink.LinkDel(link)
		}
	})
	w.join(outer)
	must(t, ns.Do(func() error {
		link, err := netlink.LinkByName(outer + "i")
		if err != nil {
			return err
		}
		if hardware, err := net.ParseMAC(mac); err == nil {
			if err := netlink.LinkSetHardwareAddr(link, hardware); err != nil {
				return err
			}
		}
		if err := netlink.LinkSetName(link, "eth0"); err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), 32)}}); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}))
	return ns
}

// at is the provisioning network's address number n, with its prefix.
func (s *site) at(n byte) netip.Prefix {
	four := s.address.Addr().As4()
	four[3] = n
	return netip.PrefixFrom(netip.AddrFrom4(four), s.address.Bits())
}

// record notes what passes between server and machines, until the test ends.
func (w *wire) record() {
	t := w.s.t
	t.Helper()
	w.keep(listen(t, w.bridge.Name), func(frame []byte) bool {
		return port(frame, 67) || bytes.Contains(frame, []byte("/boot/")) || bytes.Contains(frame, []byte(tokenKey))
	})
}

// keep takes note of those frames that come by and are wanted, until the connection is closed.
func (w *wire) keep(conn *packet.Conn, wanted func(frame []byte) bool) {
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if frame := buf[:n]; wanted(frame) {
				w.mu.Lock()
				w.frames = append(w.frames, slices.Clone(frame))
				w.mu.Unlock()
			}
		}
	}()
}

func listen(t *testing.T, name string) *packet.Conn {
	t.Helper()
	link, err := net.InterfaceByName(name)
	must(t, err)
	conn, err := packet.Listen(link, packet.Raw, unix.ETH_P_ALL, nil)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// port tells whether a frame is an UDP datagram to this port (Ethernet and IPv4 without options, RFC 791 and RFC 768).
func port(frame []byte, n uint16) bool {
	return len(frame) > 42 && frame[12] == 8 && frame[13] == 0 && frame[14] == 0x45 && frame[23] == 17 && binary.BigEndian.Uint16(frame[36:]) == n
}

const tokenKey = "nearmetal.token="

var (
	scriptRequest = regexp.MustCompile(`GET (/boot/\S+)`)
	bootToken     = regexp.MustCompile(tokenKey + `(\S+)`)
)

// recorded are what a machine sent and got: its frames to a DHCP server, the paths of the scripts it fetched and the tokens in them.
func (w *wire) recorded(mac string) (requests [][]byte, paths, tokens []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	hardware, _ := net.ParseMAC(mac)
	for _, frame := range w.frames {
		if port(frame, 67) && bytes.Equal(frame[6:12], hardware) {
			requests = append(requests, frame)
		}
		if found := scriptRequest.FindSubmatch(frame); found != nil {
			paths = append(paths, string(found[1]))
		}
		if found := bootToken.FindSubmatch(frame); found != nil {
			tokens = append(tokens, string(found[1]))
		}
	}
	return requests, paths, tokens
}

// client is an HTTP client in a namespace.
func client(ns netns.Handle, transport *http.Transport) *http.Client {
	transport.DialContext = func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = ns.Do(func() error {
			conn, err = (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// get fetches by plain HTTP from the server.
func get(t *testing.T, c *http.Client, url string) (status int, body string) {
	t.Helper()
	r, err := c.Get(url)
	must(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	must(t, err)
	return r.StatusCode, string(text)
}

// bootsNothing checks that a script has nothing to boot in it.
func bootsNothing(t *testing.T, script string) {
	t.Helper()
	if strings.Contains(script, tokenKey) || strings.Contains(script, "kernel ") || strings.Contains(script, "initrd ") {
		t.Errorf("the script boots something:\n%s", script)
	}
}
