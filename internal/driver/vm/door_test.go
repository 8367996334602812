package vm

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// guestBehind makes a namespace that stands in for a guest at the address 10.64.0.2, behind a device of the calling thread's namespace.
func guestBehind(t *testing.T) (device string, guest netns.Handle) {
	t.Helper()
	needs.Root(t, "makes network namespaces")
	device = "doort" + strconv.Itoa(os.Getpid()%1_000_000)
	guest, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = guest.Close() })
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: device, MTU: 1450}, PeerName: "eth0", PeerNamespace: netlink.NsFd(guest.FD())}); err != nil {
		t.Fatal(err)
	}
	host, err := netlink.LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(host) })
	if err := errors.Join(netlink.LinkSetUp(host), guest.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		address, err := netlink.ParseAddr("10.64.0.2/20")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetMTU(link, 1450), netlink.AddrAdd(link, address), netlink.LinkSetUp(link))
	})); err != nil {
		t.Fatal(err)
	}
	return device, guest
}

var doorAt = doorAddress{address: netip.MustParsePrefix("10.64.0.1/20"), mac: "06:6e:6d:00:01:01"}

func TestADoorReachesAGuestPastItsNetworkAndIsSharedByAllWhoUseIt(t *testing.T) {
	device, guest := guestBehind(t)
	var listener net.Listener
	if err := guest.Do(func() (err error) {
		listener, err = net.Listen("tcp4", "10.64.0.2:2222")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { // more than fits into one frame, and the end of what comes is the end of what goes
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	var all doors
	one, shutOne, err := all.use("m", device, doorAt)
	if err != nil {
		t.Fatal(err)
	}
	two, shutTwo, err := all.use("m", device, doorAt)
	if err != nil || one != two {
		t.Fatalf("two users have doors %p and %p (%v)", one, two, err)
	}
	first := echo(t, one)
	second := echo(t, two)
	shutOne()
	shutOne() // is no second user's
	exchange(t, second)
	exchange(t, first)
	shutTwo()
	if len(all.open) != 0 {
		t.Error("a door that nobody uses is open")
	}
	if _, err := one.guest.Write(make([]byte, 64)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed door passes frames on (%v)", err)
	}
}

// echo connects to the guest's server.
func echo(t *testing.T, d *door) net.Conn {
	t.Helper()
	conn, err := d.dial(t.Context(), netip.MustParseAddrPort("10.64.0.2:2222"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	deadline, ok := t.Deadline()
	if ok {
		_ = conn.SetDeadline(deadline)
	}
	exchange(t, conn)
	return conn
}

// exchange sends much and gets it back.
func exchange(t *testing.T, conn net.Conn) {
	t.Helper()
	const much = 1 << 20
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(make([]byte, much))
		sent <- err
	}()
	_, err := io.CopyN(io.Discard, conn, much)
	if err := errors.Join(err, <-sent); err != nil {
		t.Fatal(err)
	}
}

func TestADoorDoesNotRefuseTheGuestsQuestionsToItsNode(t *testing.T) {
	device, guest := guestBehind(t)
	var all doors
	_, shut, err := all.use("m", device, doorAt)
	if err != nil {
		t.Fatal(err)
	}
	defer shut()
	var question net.Conn
	if err := guest.Do(func() (err error) {
		question, err = net.Dial("udp4", "10.64.0.1:53")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer question.Close()
	if _, err := question.Write([]byte("question")); err != nil {
		t.Fatal(err)
	}
	// A refused connection to the same address comes after the question: the door has answered both by then.
	if err := guest.Do(func() error {
		_, err := net.Dial("tcp4", "10.64.0.1:53")
		return err
	}); !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatalf("the door does not take TCP from its guest: %v", err)
	}
	_ = question.SetReadDeadline(time.Now().Add(-time.Second))
	if _, err := question.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the guest's question gets %v, want nothing from the door", err)
	}
	if _, err := question.Write([]byte("question")); err != nil {
		t.Errorf("the guest may not ask again: %v", err)
	}
}

func TestADoorIsNoWayForAGuestToAnything(t *testing.T) {
	device, guest := guestBehind(t)
	var all doors
	way, shut, err := all.use("m", device, doorAt)
	if err != nil {
		t.Fatal(err)
	}
	defer shut()
	if err := way.space.Do(func() error {
		links, err := netlink.LinkList()
		if err == nil && len(links) != 2 { // its loopback and its end
			err = errors.New("a door has links besides its own")
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := guest.Do(func() error {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp4", "10.64.0.1:22")
		if err == nil {
			_ = conn.Close()
			return errors.New("a guest reached something behind its door")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
