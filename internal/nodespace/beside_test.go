package nodespace

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// patience is for what must get an answer, proof for what must get none.
const patience, proof = 10 * time.Second, 300 * time.Millisecond

// host is a network namespace in the host's place, with one uplink.
type host struct {
	netns.Handle
	outside  netns.Handle
	internet string // an address beyond the uplink where something listens
}

func besideHost(t *testing.T, f func(h host)) {
	t.Helper()
	onHost(t, func(inside netns.Handle) {
		h := host{Handle: inside, outside: space(t)}
		script(t, `echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6
			ip link set lo up; ip link add up0 type veth peer name eth0 netns `+h.outside.Path()+`
			ip link set up0 up; ip address add 192.0.2.2/24 dev up0; ip route add default via 192.0.2.1`)
		in(t, h.outside, `ip link set lo up; ip link set eth0 up; ip address add 192.0.2.1/24 dev eth0; ip address add 203.0.113.1/32 dev lo`)
		script(t, `timeout 10 sh -c 'until ip link show up0 | grep -q "state UP"; do sleep 0.01; done'`) // the kernel says it a little later
		h.internet = listen(t, h.outside, "203.0.113.1:0")
		f(h)
	})
}

// space makes a network namespace that lasts as long as the test.
func space(t *testing.T) netns.Handle {
	t.Helper()
	made, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { made.Close() })
	return made
}

func in(t *testing.T, where netns.Handle, text string) {
	t.Helper()
	if err := where.Do(func() error { script(t, text); return nil }); err != nil {
		t.Fatal(err)
	}
}

func listen(t *testing.T, where netns.Handle, address string) string {
	t.Helper()
	var l net.Listener
	if err := where.Do(func() (err error) {
		l, err = net.Listen("tcp4", address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// reaches dials from a namespace.
func reaches(do func(func() error) error, address string, wait time.Duration) error {
	return do(func() error {
		conn, err := net.DialTimeout("tcp4", address, wait)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func from(s Space) func(func() error) error {
	return func(f func() error) error { return inside(s, f) }
}

// container is one behind a bridge, with a published port.
type container struct {
	netns.Handle
	published string
}

// startDocker does to the host what Docker Engine 28 does, as iptables-nft writes it: forwarding on for the machine, and off by policy for
// all that Docker does not know.
func startDocker(t *testing.T, h host) container {
	t.Helper()
	c := container{Handle: space(t), published: "192.0.2.2:8080"}
	in(t, h.Handle, `echo 1 > /proc/sys/net/ipv4/ip_forward
		ip link add docker0 type bridge mcast_snooping 0; ip link set docker0 up; ip address add 172.17.0.1/16 dev docker0
		ip link add c1 type veth peer name eth0 netns `+c.Path()+`; ip link set c1 master docker0 up
		nft -f - <<-EOF
		table ip filter {
			chain DOCKER-USER { }
			chain DOCKER-FORWARD {
				oifname "docker0" ct state related,established counter accept
				iifname != "docker0" oifname "docker0" ip daddr 172.17.0.2 tcp dport 80 counter accept
				iifname "docker0" counter accept
			}
			chain FORWARD {
				type filter hook forward priority filter; policy drop;
				counter jump DOCKER-USER
				counter jump DOCKER-FORWARD
			}
		}
		table ip nat {
			chain DOCKER {
				iifname != "docker0" tcp dport 8080 counter dnat to 172.17.0.2:80
			}
			chain PREROUTING {
				type nat hook prerouting priority dstnat; policy accept;
				fib daddr type local counter jump DOCKER
			}
			chain POSTROUTING {
				type nat hook postrouting priority srcnat; policy accept;
				oifname != "docker0" ip saddr 172.17.0.0/16 counter masquerade
			}
		}
		EOF`)
	in(t, c.Handle, "ip link set lo up; ip link set eth0 up; ip address add 172.17.0.2/16 dev eth0; ip route add default via 172.17.0.1")
	listen(t, c.Handle, "172.17.0.2:80")
	return c
}

func (c container) works(t *testing.T, h host, when string) {
	t.Helper()
	if err := reaches(c.Do, h.internet, patience); err != nil {
		t.Errorf("%s: a container does not reach the outside: %v", when, err)
	}
	if err := reaches(h.outside.Do, c.published, patience); err != nil {
		t.Errorf("%s: the outside does not reach a container's published port: %v", when, err)
	}
}

// keep runs KeepEgress until the function that it returns is called.
func keep(t *testing.T, h host, cfg Config, spaces Spaces) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Do(func() error { return KeepEgress(ctx, cfg, spaces, 20*time.Millisecond) }) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func forwarding(t *testing.T, link string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + link + "/forwarding")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestTwoSitesOnOneMachineLeaveEachOtherTheWayOut(t *testing.T) {
	besideHost(t, func(h host) {
		dirs := []string{t.TempDir(), t.TempDir()}
		before := hostState(t, dirs[0])
		spaces := make([]Spaces, 2)
		for _, first := range []int{0, 1} { // the one that switched forwarding on ends first, or last
			second := 1 - first
			for _, i := range []int{first, second} {
				spaces[i] = ensure(t, Config{StateDir: dirs[i], Nodes: []string{"n1"}, Egress: true})
			}
			for i, s := range spaces {
				if err := reaches(from(s.Nodes[0]), h.internet, patience); err != nil {
					t.Errorf("a node of site %d of two does not reach the outside: %v", i, err)
				}
			}
			other := listen(t, nodeNet(t, spaces[1].Nodes[0]), spaces[1].Nodes[0].Address.String()+":0")
			if err := reaches(from(spaces[0].Nodes[0]), other, proof); err == nil {
				t.Error("a node of one site reaches a node of another")
			}
			remove(t, dirs[0])
			if err := reaches(from(spaces[1].Nodes[0]), h.internet, patience); err != nil {
				t.Errorf("a node does not reach the outside once the other site has ended: %v", err)
			}
			remove(t, dirs[1])
			if diff := cmp.Diff(lasting(before), lasting(hostState(t, dirs[0]))); diff != "" {
				t.Errorf("both sites ended, and something is not as before (-want +got):\n%s", diff)
			}
		}
	})
}

func nodeNet(t *testing.T, s Space) netns.Handle {
	t.Helper()
	handle, err := netns.Open(s.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { handle.Close() })
	return handle
}

func TestDockerThatWasStartedFirstAndASiteBothReachTheOutside(t *testing.T) {
	besideHost(t, func(h host) { aSiteComesAndGoes(t, h, startDocker(t, h)) })
}

// aSiteComesAndGoes checks that a container that was there first works before, beside and after a site, which leaves the host as it was.
func aSiteComesAndGoes(t *testing.T, h host, c container) {
	t.Helper()
	c.works(t, h, "alone") // by now its links are up
	dir := t.TempDir()
	before := hostState(t, dir)
	cfg := Config{StateDir: dir, Nodes: []string{"n1"}, Egress: true}
	spaces := ensure(t, cfg)
	defer remove(t, dir)
	c.works(t, h, "beside a site")
	if err := reaches(from(spaces.Nodes[0]), h.internet, patience); err != nil {
		t.Errorf("a node does not reach the outside: %v", err)
	}
	ensure(t, cfg) // adds no rule a second time
	remove(t, dir)
	c.works(t, h, "after the site")
	if diff := cmp.Diff(lasting(before), lasting(hostState(t, dir))); diff != "" {
		t.Errorf("the site ended, and something is not as before (-want +got):\n%s", diff)
	}
}

func TestDockerThatIsStartedLaterAndASiteBothReachTheOutside(t *testing.T) {
	besideHost(t, func(h host) {
		dir := t.TempDir()
		cfg := Config{StateDir: dir, Nodes: []string{"n1"}, Egress: true}
		spaces := ensure(t, cfg)
		c := startDocker(t, h)
		c.works(t, h, "beside a site that has not noticed")
		end := keep(t, h, cfg, spaces)
		if err := reaches(from(spaces.Nodes[0]), h.internet, patience); err != nil {
			t.Errorf("a node does not reach the outside: %v", err)
		}
		end()
		c.works(t, h, "beside a site")
		remove(t, dir)
		c.works(t, h, "after the site")
	})
}

func TestSomebodyWhoRoutesLaterIsLeftAlone(t *testing.T) {
	besideHost(t, func(h host) {
		behind := behindHost(t, h)
		address := listen(t, behind, "198.51.100.2:0")
		in(t, h.Handle, "echo 1 > /proc/sys/net/ipv4/conf/m0/forwarding") // what keeps the outside from it is up0's alone
		dir := t.TempDir()
		cfg := Config{StateDir: dir, Nodes: []string{"n1"}, Egress: true}
		spaces := ensure(t, cfg)
		in(t, h.outside, "ip route add 198.51.100.0/24 via 192.0.2.2")
		if err := reaches(h.outside.Do, address, proof); err == nil {
			t.Error("the site's forwarding leads somebody outside to a network behind the host")
		}
		in(t, h.Handle, "echo 1 > /proc/sys/net/ipv4/ip_forward")
		end := keep(t, h, cfg, spaces)
		if err := reaches(h.outside.Do, address, patience); err != nil {
			t.Errorf("the host was made a router, and the site drops what it routes: %v", err)
		}
		end()
		remove(t, dir)
		if err := reaches(h.outside.Do, address, patience); err != nil {
			t.Errorf("the site ended, and the host routes no more: %v", err)
		}
	})
}

// behindHost is a machine on another link of the host.
func behindHost(t *testing.T, h host) netns.Handle {
	t.Helper()
	behind := space(t)
	in(t, h.Handle, "ip link add m0 type veth peer name eth0 netns "+behind.Path()+"; ip link set m0 up; ip address add 198.51.100.1/24 dev m0")
	in(t, behind, "ip link set lo up; ip link set eth0 up; ip address add 198.51.100.2/24 dev eth0; ip route add default via 198.51.100.1")
	return behind
}

func TestForwardingStaysOnWhileAnotherLinkForwards(t *testing.T) {
	besideHost(t, func(h host) {
		behindHost(t, h)
		dir := t.TempDir()
		ensure(t, Config{StateDir: dir, Nodes: []string{"n1"}, Egress: true})
		in(t, h.Handle, "echo 1 > /proc/sys/net/ipv4/conf/m0/forwarding")
		remove(t, dir)
		if got := forwarding(t, "up0"); got != "1" {
			t.Errorf("m0 forwards, and forwarding on up0 is %s", got)
		}
	})
}

func TestAWayOutThatSomebodyClosesIsOpenedAgain(t *testing.T) {
	besideHost(t, func(h host) {
		dir := t.TempDir()
		defer remove(t, dir)
		cfg := Config{StateDir: dir, Nodes: []string{"n1"}, Egress: true}
		spaces := ensure(t, cfg)
		for _, harm := range []string{"nft flush ruleset", "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv4/ip_forward"} {
			in(t, h.Handle, harm)
			end := keep(t, h, cfg, spaces)
			if err := reaches(from(spaces.Nodes[0]), h.internet, patience); err != nil {
				t.Errorf("after %s: %v", harm, err)
			}
			end()
		}
	})
}

func TestAFirewallThatDropsWhatIsForwardedIsNamed(t *testing.T) {
	besideHost(t, func(h host) {
		dir := t.TempDir()
		defer remove(t, dir)
		script(t, `nft 'table inet firewall { chain forward { type filter hook forward priority 0; policy drop; }; }'`)
		var log strings.Builder
		ensure(t, Config{StateDir: dir, Nodes: []string{"n1"}, Egress: true, Logger: logTo(&log)})
		for _, want := range []string{"chain forward of table inet firewall", "iptables -I FORWARD -i nmu"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("got the log %q, want it to name %q", log.String(), want)
			}
		}
	})
}

// passing is what changes by itself: counters, whether a bridge has seen its carriers, and what ip complains of while a namespace ends.
var passing = regexp.MustCompile(`packets \d+ bytes \d+|state (UP|UNKNOWN)|Error: Peer netns reference is invalid.\n`)

func lasting(state string) string { return passing.ReplaceAllString(state, "") }

func logTo(out io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(out, nil)) }
