package condition

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/netns"
)

var nearAddress, farAddress = netip.MustParsePrefix("10.99.0.1/24"), netip.MustParsePrefix("10.99.0.2/24")

func space(t testing.TB) netns.Handle {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("network namespaces need root")
	}
	made, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { made.Close() })
	return made
}

// link opens a link between two namespaces.
func link(t testing.TB, there, back Condition) (*Link, Config) {
	t.Helper()
	cfg := Config{Near: End{space(t), "near0", nearAddress}, Far: End{space(t), "far0", farAddress}, There: there, Back: back}
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, cfg
}

// in calls something in a namespace.
func in(t testing.TB, space netns.Handle, f func() error) {
	t.Helper()
	if err := space.Do(f); err != nil {
		t.Fatal(err)
	}
}

// await polls until something is so.
func await(t testing.TB, what string, is func() bool) {
	t.Helper()
	again, late := time.NewTicker(time.Millisecond), time.After(20*time.Second)
	defer again.Stop()
	for !is() {
		select {
		case <-again.C:
		case <-late:
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// listen returns a socket for datagrams at the far end that holds all of a test, and one at the near end whose peer it is.
func sockets(t testing.TB, cfg Config) (near, far *net.UDPConn) {
	t.Helper()
	at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(farAddress.Addr(), 7))
	in(t, cfg.Far.Space, func() (err error) {
		far, err = net.ListenUDP("udp4", at)
		return err
	})
	in(t, cfg.Near.Space, func() (err error) {
		near, err = net.DialUDP("udp4", nil, at)
		return err
	})
	t.Cleanup(func() { near.Close(); far.Close() })
	raw, err := far.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return near, far
}

// datagrams sends numbered datagrams from near to far, a few at once, and returns the numbers that came, in their order.
func datagrams(t testing.TB, l *Link, cfg Config, packets int) (came []uint32) {
	t.Helper()
	near, far := sockets(t, cfg)
	before, _ := l.Counters()
	for i := range packets {
		if _, err := near.Write(binary.BigEndian.AppendUint32(nil, uint32(i))); err != nil {
			t.Fatal(err)
		}
		if i%200 == 199 || i == packets-1 { // the device holds a thousand
			await(t, "the link takes what was sent", func() bool { now, _ := l.Counters(); return now.Packets-before.Packets > int64(i) })
		}
	}
	passed := func(c Counters) int64 { return c.Packets - c.Lost - c.Overflowed + c.Duplicated }
	await(t, "the link sends what it took", func() bool {
		now, _ := l.Counters()
		return now.Sent+now.Refused-before.Sent-before.Refused == passed(now)-passed(before)
	})
	raw, err := far.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 2048)
	for { // the kernel has put all of them into the socket
		var n int
		var failed error
		if err := raw.Read(func(fd uintptr) bool { n, failed = unix.Read(int(fd), data); return true }); err != nil {
			t.Fatal(err)
		}
		if errors.Is(failed, unix.EAGAIN) {
			return came
		}
		if failed != nil || n != 4 {
			t.Fatalf("a datagram of %d B came: %v", n, failed)
		}
		came = append(came, binary.BigEndian.Uint32(data))
	}
}

func TestWithoutConditionsEverythingPassesInOrder(t *testing.T) {
	l, cfg := link(t, Condition{}, Condition{})
	came := datagrams(t, l, cfg, 1000)
	if len(came) != 1000 || !slices.IsSorted(came) {
		t.Errorf("%d of 1,000 datagrams came, sorted: %v", len(came), slices.IsSorted(came))
	}
	transfer(t, cfg, 16<<20)
	for name, c := range counted(l) {
		if c.Lost+c.Overflowed+c.Duplicated+c.Corrupted+c.Reordered+c.Refused != 0 || c.Packets == 0 {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func counted(l *Link) map[string]Counters {
	there, back := l.Counters()
	return map[string]Counters{"there": there, "back": back}
}

// connect returns the near end of a TCP connection, whose far end is handled by a function and then closed.
func connect(t testing.TB, cfg Config, handle func(far net.Conn)) net.Conn {
	t.Helper()
	var listener net.Listener
	in(t, cfg.Far.Space, func() (err error) {
		listener, err = net.Listen("tcp4", netip.AddrPortFrom(farAddress.Addr(), 7).String())
		return err
	})
	go func() {
		far, err := listener.Accept()
		_ = listener.Close() // the next one gets its port
		if err == nil {
			handle(far)
			_ = far.Close()
		}
	}()
	var near net.Conn
	t.Cleanup(func() { listener.Close() })
	in(t, cfg.Near.Space, func() (err error) {
		near, err = net.DialTimeout("tcp4", listener.Addr().String(), 20*time.Second)
		return err
	})
	t.Cleanup(func() { near.Close() })
	return near
}

// transfer sends bytes from near to far and back by TCP, and fails unless they are the same. It returns how long that took.
func transfer(t testing.TB, cfg Config, bytes int) time.Duration {
	t.Helper()
	conn := connect(t, cfg, func(far net.Conn) { _, _ = io.Copy(far, far) })
	began := time.Now()
	if err := conn.SetDeadline(began.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	sent, got := rand.NewChaCha8([32]byte{1}), rand.NewChaCha8([32]byte{1})
	failed := make(chan error, 1)
	go func() {
		_, err := io.CopyN(conn, sent, int64(bytes))
		failed <- err
	}()
	data, want := make([]byte, 64<<10), make([]byte, 64<<10)
	for read := 0; read < bytes; {
		n, err := conn.Read(data)
		if err != nil {
			t.Fatalf("after %d B: %v", read, err)
		}
		_, _ = io.ReadFull(got, want[:n])
		if !slices.Equal(data[:n], want[:n]) {
			t.Fatalf("what came after %d B is not what was sent", read)
		}
		read += n
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

func TestChancesHoldOnTheWire(t *testing.T) {
	const packets = 5000
	for _, c := range []Condition{{Loss: 0.1, Seed: 1}, {Duplicate: 0.1, Seed: 2}, {Corrupt: 0.1, Seed: 3}} {
		l, cfg := link(t, c, Condition{})
		came := datagrams(t, l, cfg, packets)
		there, _ := l.Counters()
		within(t, "lost", int(there.Lost), packets, c.Loss)
		within(t, "duplicated", int(there.Duplicated), packets, c.Duplicate)
		within(t, "corrupted", int(there.Corrupted), packets, c.Corrupt)
		// The far side's checksums find each bit that is turned over.
		if want := packets - there.Lost + there.Duplicated - there.Corrupted; int64(len(came)) != want {
			t.Errorf("%+v: %d datagrams came, and the link counted %+v", c, len(came), there)
		}
	}
}

func TestReorderedPacketsOvertake(t *testing.T) {
	l, cfg := link(t, Condition{Delay: 5 * time.Millisecond, Reorder: 0.05}, Condition{})
	came := datagrams(t, l, cfg, 2000)
	there, _ := l.Counters()
	within(t, "reordered", int(there.Reordered), 2000, 0.05)
	if len(came) != 2000 || slices.IsSorted(came) {
		t.Errorf("%d of 2,000 datagrams came, sorted: %v", len(came), slices.IsSorted(came))
	}
}

// TCP has to get all through whatever happens: a packet that were not whole, or one with the offload of another, would stop it.
func TestTCPGetsThroughAllConditionsAtOnce(t *testing.T) {
	all := Condition{Delay: 2 * time.Millisecond, Jitter: time.Millisecond, Loss: 0.01, Duplicate: 0.01, Corrupt: 0.01, Reorder: 0.01, BitsPerSecond: 200e6}
	l, cfg := link(t, all, all)
	transfer(t, cfg, 1<<20)
	for name, c := range counted(l) {
		if c.Lost == 0 || c.Duplicated == 0 || c.Corrupted == 0 || c.Reordered == 0 {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// echo sends back what comes until the socket is closed.
func echo(far *net.UDPConn) {
	data := make([]byte, 64)
	for {
		n, from, err := far.ReadFromUDPAddrPort(data)
		if err != nil {
			return
		}
		_, _ = far.WriteToUDPAddrPort(data[:n], from)
	}
}

func TestDelaysOfBothDirectionsAddUp(t *testing.T) {
	l, cfg := link(t, Condition{Delay: 30 * time.Millisecond}, Condition{Delay: 20 * time.Millisecond})
	near, far := sockets(t, cfg)
	go echo(far)
	trip := func() time.Duration {
		began := time.Now()
		_, err := near.Write([]byte{1})
		if err == nil {
			_, err = near.Read(make([]byte, 64))
		}
		if err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	for range 5 {
		if took := trip(); took < 50*time.Millisecond {
			t.Errorf("a round trip took %v, less than both delays", took)
		}
	}
	if err := l.Change(Condition{}, Condition{Delay: -1}); err == nil {
		t.Error("a negative delay was set")
	}
	if took := trip(); took < 50*time.Millisecond {
		t.Errorf("after a change that was refused, a round trip took %v", took)
	}
	if err := l.Change(Condition{}, Condition{}); err != nil {
		t.Fatal(err)
	}
	await(t, "round trips are short without delays", func() bool { return trip() < 40*time.Millisecond })
}

func TestARateIsNeverExceeded(t *testing.T) {
	const rate, bytes = 40e6, 2 << 20
	_, cfg := link(t, Condition{BitsPerSecond: rate}, Condition{BitsPerSecond: rate})
	least := time.Duration(8 * bytes / rate * float64(time.Second))
	if took := transfer(t, cfg, bytes); took < least {
		t.Errorf("%d B took %v, less than the %v that the rate needs", bytes, took, least)
	}
}

func TestALinkIsVerified(t *testing.T) {
	c := Condition{Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond, Loss: 0.2}
	l, _ := link(t, c, c)
	err := l.Verify(t.Context(), 40)
	for range 20 { // a machine that is busy adds to the delay
		if err == nil {
			break
		}
		err = l.Verify(t.Context(), 40)
	}
	if err != nil {
		t.Error(err)
	}
	c.Loss = 0
	if err := l.Change(c, c); err != nil {
		t.Fatal(err)
	}
	for name, pretended := range map[string]Condition{"longer": {Delay: 40 * time.Millisecond}, "shorter": {Delay: time.Millisecond}} {
		l.there.mu.Lock()
		l.there.asked = pretended // and the model goes on as before
		l.there.mu.Unlock()
		if err := l.Verify(t.Context(), 4); !errors.Is(err, ErrNotInForce) {
			t.Errorf("a link whose delay should be %s than it is: %v", name, err)
		}
	}
	if err := l.Change(Condition{Loss: 1}, Condition{}); err != nil {
		t.Fatal(err)
	}
	if err := l.Verify(t.Context(), 1); !errors.Is(err, ErrNotInForce) {
		t.Errorf("a link that loses everything: %v", err)
	}
}

// has reports whether a namespace has a device.
func has(t testing.TB, space netns.Handle, name string) bool {
	t.Helper()
	there := false
	in(t, space, func() error {
		_, err := netlink.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		there = err == nil
		return err
	})
	return there
}

func TestNothingIsLeftOfALink(t *testing.T) {
	cfg := Config{Near: End{space(t), "near0", nearAddress}, Far: End{space(t), "far0", farAddress}, There: Condition{Delay: time.Second}}
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	near, _ := sockets(t, cfg)
	if _, err := near.Write([]byte("waits for a second")); err != nil {
		t.Fatal(err)
	}
	if !has(t, cfg.Near.Space, "near0") || !has(t, cfg.Far.Space, "far0") {
		t.Fatal("an open link has no devices")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if has(t, cfg.Near.Space, "near0") || has(t, cfg.Far.Space, "far0") {
		t.Error("a closed link has devices")
	}
	bad := cfg
	bad.There = Condition{Loss: 2}
	if _, err := Open(bad); err == nil {
		t.Error("a link with a loss of 2 was opened")
	}
	bad = cfg
	bad.Far.Name = "a-name-that-is-too-long"
	if _, err := Open(bad); err == nil {
		t.Error("a link whose far device can't be made was opened")
	}
	if has(t, cfg.Near.Space, "near0") {
		t.Error("a link that could not be opened has left a device")
	}
}

// A process that is killed takes its links with it. The test is such a process itself, if its variable says where the namespaces are.
func TestALinkEndsWithItsProcess(t *testing.T) {
	const variable = "NEARMETAL_TEST_LINK"
	if spaces, ok := os.LookupEnv(variable); ok {
		near, far, _ := strings.Cut(spaces, " ")
		cfg := Config{Near: End{Name: "near0", Address: nearAddress}, Far: End{Name: "far0", Address: farAddress}}
		var err error
		if cfg.Near.Space, err = netns.Open(near); err == nil {
			cfg.Far.Space, err = netns.Open(far)
		}
		if err == nil {
			_, err = Open(cfg)
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("open")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the other process ends or kills this one
		return
	}
	near, far := space(t), space(t)
	cmd := exec.Command(os.Args[0], "-test.run", "^TestALinkEndsWithItsProcess$")
	cmd.Env = append(os.Environ(), variable+"="+near.Path()+" "+far.Path())
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 5)
	_, err = io.ReadFull(out, said)
	if err != nil || string(said) != "open\n" || !has(t, near, "near0") || !has(t, far, "far0") {
		t.Errorf("the other process said %q, %v; the namespaces have its devices: %v, %v", said, err, has(t, near, "near0"), has(t, far, "far0"))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	await(t, "the devices go", func() bool { return !has(t, near, "near0") && !has(t, far, "far0") })
}
