package condition

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// lan is a bridge with three hosts: two members of one network, and one that reaches it by its router.
type lan struct{ one, two, outside netns.Handle }

const (
	oneAddress, twoAddress, outsideAddress = "10.98.0.1", "10.98.0.2", "10.97.0.9"
	insideNetwork                          = "10.98.0.0/24"
)

func run(t testing.TB, space netns.Handle, commands ...string) string {
	t.Helper()
	var out strings.Builder
	for _, command := range commands {
		in(t, space, func() error {
			said, err := exec.Command("sh", "-ec", command).CombinedOutput()
			out.Write(said)
			if err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, said)
			}
			return nil
		})
	}
	return out.String()
}

func newLAN(t testing.TB) lan {
	t.Helper()
	l := lan{space(t), space(t), space(t)}
	router := space(t)
	run(t, router, "ip link add inside type bridge", "ip link set inside up", "ip addr add 10.98.0.254/24 dev inside", "echo 1 >/proc/sys/net/ipv4/ip_forward")
	for i, h := range []struct {
		space   netns.Handle
		address string
	}{{l.one, oneAddress}, {l.two, twoAddress}} {
		run(t, router, fmt.Sprintf("ip link add p%d type veth peer name eth0 netns /proc/%d/fd/%d", i, os.Getpid(), h.space.FD()), fmt.Sprintf("ip link set p%d master inside up", i))
		run(t, h.space, "ip link set lo up", "ip addr add "+h.address+"/24 dev eth0", "ip link set eth0 up", "ip route add default via 10.98.0.254",
			"for c in all default eth0; do echo 1 >/proc/sys/net/ipv4/conf/$c/rp_filter; done")
	}
	run(t, router, fmt.Sprintf("ip link add far type veth peer name eth0 netns /proc/%d/fd/%d", os.Getpid(), l.outside.FD()), "ip link set far up", "ip addr add 10.97.0.254/24 dev far")
	run(t, l.outside, "ip addr add "+outsideAddress+"/24 dev eth0", "ip link set eth0 up", "ip route add default via 10.97.0.254")
	return l
}

func detour(t testing.TB, space netns.Handle, c Condition) *Detour {
	t.Helper()
	d, err := OpenDetour(space, DetourConfig{Device: "eth0", Inside: []netip.Prefix{netip.MustParsePrefix(insideNetwork)}, Condition: c})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// fastest is the shortest of some round trips.
func fastest(t testing.TB, from netns.Handle, to string) time.Duration {
	t.Helper()
	shortest := time.Hour
	for i := range 5 {
		trip, err := echoes(t.Context(), from, netip.MustParseAddr(to), i, 5*time.Second)
		if err != nil {
			t.Fatalf("an echo to %s: %v", to, err)
		}
		shortest = min(shortest, trip)
	}
	return shortest
}

// sees fails unless a round trip takes what the delays on its way say, or longer: this machine may be busy.
func sees(t testing.TB, what string, from netns.Handle, to string, delays time.Duration) {
	t.Helper()
	for try := 0; ; try++ {
		trip := fastest(t, from, to)
		if trip >= delays && (trip < delays+15*time.Millisecond || try == 20) {
			return
		}
		if trip < delays {
			t.Fatalf("%s: a round trip takes %v, less than its delays, %v", what, trip, delays)
		}
	}
}

func state(t testing.TB, space netns.Handle) string {
	t.Helper()
	return run(t, space, "ip -4 rule", "ip -4 route show table all", "ip -o link | sed 's/ qdisc.*//'",
		"cd /proc/sys/net/ipv4; cat ip_early_demux conf/all/rp_filter conf/eth0/rp_filter conf/eth0/forwarding")
}

func TestPacketsOfDetoursMeetOneCondition(t *testing.T) {
	l := newLAN(t)
	before := state(t, l.one)
	const delay = 20 * time.Millisecond
	one := detour(t, l.one, Condition{Delay: delay})
	sees(t, "from a member", l.one, twoAddress, delay)
	sees(t, "to a member", l.two, oneAddress, delay)
	sees(t, "from outside", l.outside, oneAddress, 2*delay)
	sees(t, "to outside", l.one, outsideAddress, 2*delay)
	if err := one.Verify(t.Context(), 50); err != nil {
		t.Error(err)
	}
	sees(t, "to itself", l.one, oneAddress, 0)
	if trip := fastest(t, l.one, oneAddress); trip > delay {
		t.Errorf("a packet to the member itself took %v", trip)
	}
	two := detour(t, l.two, Condition{Delay: delay})
	sees(t, "between two", l.one, twoAddress, 2*delay)
	if err := two.Change(Condition{Delay: 3 * delay}); err != nil {
		t.Fatal(err)
	}
	sees(t, "between two, after a change", l.one, twoAddress, 4*delay)
	if err := errors.Join(one.Close(), two.Close()); err != nil {
		t.Fatal(err)
	}
	if after := state(t, l.one); after != before {
		t.Errorf("a detour left something:\n%s\nbefore:\n%s", after, before)
	}
	sees(t, "without detours", l.one, outsideAddress, 0)
}

func TestTCPPassesDetours(t *testing.T) {
	l := newLAN(t)
	for _, space := range []netns.Handle{l.one, l.two} {
		d := detour(t, space, Condition{Delay: time.Millisecond, Loss: 0.001, Duplicate: 0.001})
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	const size = 8 << 20
	for _, from := range []netns.Handle{l.two, l.outside} {
		var listener net.Listener
		in(t, l.one, func() (err error) {
			listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp4", oneAddress+":7000")
			return err
		})
		sent := make(chan error, 1)
		go func() {
			sent <- from.Do(func() error {
				conn, err := net.DialTimeout("tcp4", listener.Addr().String(), 20*time.Second)
				if err != nil {
					return err
				}
				_, err = conn.Write(make([]byte, size))
				return errors.Join(err, conn.Close())
			})
		}()
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, conn)
		if err := errors.Join(err, <-sent, conn.Close(), listener.Close()); err != nil || n != size {
			t.Fatalf("%d of %d B came: %v", n, size, err)
		}
	}
}

func TestADetourFollowsOneThatWasLeft(t *testing.T) {
	l := newLAN(t)
	before := state(t, l.one)
	left := detour(t, l.one, Condition{Delay: 20 * time.Millisecond})
	if err := left.link.Close(); err != nil { // as when its process ends: the devices go, the rules stay
		t.Fatal(err)
	}
	sees(t, "after its process", l.one, twoAddress, 0)
	if fastest(t, l.outside, oneAddress) > 20*time.Millisecond {
		t.Error("packets still wait")
	}
	next := detour(t, l.one, Condition{Delay: 30 * time.Millisecond})
	sees(t, "the next", l.one, outsideAddress, 60*time.Millisecond)
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	if after := state(t, l.one); after != before {
		t.Errorf("something was left:\n%s\nbefore:\n%s", after, before)
	}
	if err := ClearDetour(l.one); err != nil {
		t.Error(err)
	}
}

func TestABadDetourChangesNothing(t *testing.T) {
	l := newLAN(t)
	before := state(t, l.one)
	for _, cfg := range []DetourConfig{{Device: "eth7"}, {Device: "eth0", Condition: Condition{Loss: 200}}, {Device: "eth0", Condition: Condition{Jitter: 1}}} {
		if d, err := OpenDetour(l.one, cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
			_ = d.Close()
		}
	}
	if after := state(t, l.one); after != before {
		t.Errorf("something was left:\n%s\nbefore:\n%s", after, before)
	}
}
