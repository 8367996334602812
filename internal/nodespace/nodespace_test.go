package nodespace

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

func needRoot(t testing.TB) {
	t.Helper()
	needs.Root(t, "makes namespaces")
}

// onHost calls f with a network namespace in the host's place, so that these tests leave the real one alone.
func onHost(t *testing.T, f func(host netns.Handle)) {
	t.Helper()
	needRoot(t)
	host, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if err := host.Do(func() error {
		if err := setSysctl("ipv4/ip_forward", "0"); err != nil { // which the kernel copies from the machine's first namespace
			return err
		}
		f(host)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// sh runs a script inside a node and returns what it prints.
func sh(t *testing.T, space Space, script string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("/bin/sh", "-ec", script)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := Start(space, cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("on %s: %s: %v\n%s", space.Name, script, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

func ensure(t *testing.T, cfg Config) Spaces {
	t.Helper()
	spaces, err := Ensure(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return spaces
}

func remove(t *testing.T, dir string) {
	t.Helper()
	if err := Remove(context.Background(), dir); err != nil {
		t.Error(err)
	}
}

// hostState is what Ensure could leave on a host: links, addresses, routes, rules, forwarding, mounts, files.
func hostState(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", `ip -o link | sed 's/^[0-9]*: //'; ip -o address; ip route show table all; nft list ruleset
		for f in /proc/sys/net/ipv4/conf/*/forwarding; do echo "$f $(cat $f)"; done
		grep "$1" /proc/self/mountinfo; find "$1"`, "sh", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func TestANodeHasItsOwnNetworkHostNameAndSys(t *testing.T) {
	onHost(t, func(netns.Handle) {
		dir := t.TempDir()
		defer remove(t, dir)
		spaces := ensure(t, Config{StateDir: dir, Nodes: []string{"n1", "n2"}})
		for _, space := range spaces.Nodes {
			if got := sh(t, space, "hostname"); got != space.Name {
				t.Errorf("host name of %s: got %q", space.Name, got)
			}
			if got := sh(t, space, "ls /sys/class/net"); got != "lo\nunderlay" {
				t.Errorf("links in /sys of %s: got %q, want lo and underlay", space.Name, got)
			}
			if got := sh(t, space, "cat /proc/sys/net/ipv4/ip_forward"); got != "0" {
				t.Errorf("forwarding on %s: got %s; it is no router, whatever the host is", space.Name, got)
			}
			if got := sh(t, space, "ls /sys/fs/cgroup"); got == "" {
				t.Errorf("%s sees no control groups", space.Name)
			}
			if got := sh(t, space, "ls "+filepath.Join(dir, "spaces")); got != "" {
				t.Errorf("%s sees the pins of the nodes: %q; they would keep namespaces alive", space.Name, got)
			}
			if got := sh(t, space, "cat /sys/class/net/underlay/mtu"); got != fmt.Sprint(spaces.MTU) {
				t.Errorf("MTU on %s: got %s, want %d", space.Name, got, spaces.MTU)
			}
		}
		out, err := exec.Command("nsenter", "--net="+spaces.Nodes[1].NetNS, "--mount="+spaces.Nodes[1].MountNS, "--uts="+spaces.Nodes[1].UTSNS, "hostname").CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != "n2" {
			t.Errorf("nsenter into n2: %v, %s", err, out)
		}
	})
}

func TestNodesAndHostReachEachOtherOverTheUnderlay(t *testing.T) {
	onHost(t, func(netns.Handle) {
		dir := t.TempDir()
		defer remove(t, dir)
		spaces := ensure(t, Config{StateDir: dir, Nodes: []string{"n1", "n2"}})
		listener, err := net.Listen("tcp", netip.AddrPortFrom(spaces.Host, 0).String())
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		for _, space := range spaces.Nodes {
			if !spaces.Underlay.Contains(space.Address) {
				t.Errorf("address %v of %s is not in %v", space.Address, space.Name, spaces.Underlay)
			}
			var remote string
			err := inside(space, func() error {
				conn, err := net.Dial("tcp", listener.Addr().String())
				if err != nil {
					return err
				}
				remote = conn.LocalAddr().(*net.TCPAddr).IP.String()
				return conn.Close()
			})
			if err != nil || remote != space.Address.String() {
				t.Errorf("from %s to the host: address %s, %v", space.Name, remote, err)
			}
		}
		other, err := inNode(spaces.Nodes[1], func() (net.Listener, error) {
			return net.Listen("tcp", netip.AddrPortFrom(spaces.Nodes[1].Address, 0).String())
		})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if err := inside(spaces.Nodes[0], func() error {
			conn, err := net.Dial("tcp", other.Addr().String())
			if err != nil {
				return err
			}
			return conn.Close()
		}); err != nil {
			t.Errorf("from n1 to n2: %v", err)
		}
	})
}

// inside calls f in the network namespace of a node.
func inside(space Space, f func() error) error {
	handle, err := netns.Open(space.NetNS)
	if err != nil {
		return err
	}
	defer handle.Close()
	return handle.Do(f)
}

func inNode[T any](space Space, f func() (T, error)) (T, error) {
	var result T
	err := inside(space, func() (err error) {
		result, err = f()
		return err
	})
	return result, err
}

func TestEnsureFindsWhatAnEarlierProcessMade(t *testing.T) {
	onHost(t, func(netns.Handle) {
		dir := t.TempDir()
		defer remove(t, dir)
		first := ensure(t, Config{StateDir: dir, Nodes: []string{"n1", "n2"}})
		state := hostState(t, dir)
		sh(t, first.Nodes[0], "mkdir -p "+dir+"/m && mount -t tmpfs none "+dir+"/m && touch "+dir+"/m/here")
		second := ensure(t, Config{StateDir: dir, Nodes: []string{"n2", "n1"}})
		slices.Reverse(second.Nodes)
		if fmt.Sprint(first) != fmt.Sprint(second) {
			t.Errorf("got %+v, want %+v", second, first)
		}
		if got := sh(t, second.Nodes[0], "ls "+dir+"/m"); got != "here" {
			t.Errorf("a mount made on n1 is gone for the next process: %q", got)
		}
		if err := os.Remove(filepath.Join(dir, "m")); err != nil {
			t.Error(err)
		}
		if got := hostState(t, dir); got != state {
			t.Errorf("the second Ensure changed the host: got\n%s\nwant\n%s", got, state)
		}
		third := ensure(t, Config{StateDir: dir, Nodes: []string{"n3", "n1"}})
		if third.Nodes[1].Address != first.Nodes[0].Address {
			t.Errorf("n1 moved from %v to %v", first.Nodes[0].Address, third.Nodes[1].Address)
		}
		if third.Nodes[0].Address == first.Nodes[1].Address {
			t.Errorf("n3 got the address %v of n2", third.Nodes[0].Address)
		}
	})
}

func TestRemoveLeavesTheHostAsItWas(t *testing.T) {
	onHost(t, func(host netns.Handle) {
		addUplink(t)
		dir := t.TempDir()
		before := hostState(t, dir)
		for _, egress := range []bool{false, true} {
			ensure(t, Config{StateDir: dir, Nodes: []string{"n1", "n2", "n3"}, Egress: egress})
			remove(t, dir)
			remove(t, dir)
			if after := hostState(t, dir); after != before {
				t.Errorf("egress %t: got\n%s\nwant\n%s", egress, after, before)
			}
		}
	})
}

func TestRemoveRefusesWhileAProcessRunsInASpaceAndNamesIt(t *testing.T) {
	onHost(t, func(netns.Handle) {
		dir := t.TempDir()
		defer remove(t, dir)
		spaces := ensure(t, Config{StateDir: dir, Nodes: []string{"n1"}})
		cmd := exec.Command("/bin/cat")
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := Start(spaces.Nodes[0], cmd); err != nil {
			t.Fatal(err)
		}
		err = Remove(context.Background(), dir)
		if want := fmt.Sprintf("cat on n1 (PID %d)", cmd.Process.Pid); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestAProcessIsInASessionOfItsOwn(t *testing.T) {
	onHost(t, func(netns.Handle) {
		dir := t.TempDir()
		defer remove(t, dir)
		spaces := ensure(t, Config{StateDir: dir, Nodes: []string{"n1"}})
		cmd := exec.Command("/bin/cat")
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := Start(spaces.Nodes[0], cmd); err != nil {
			t.Fatal(err)
		}
		if sid, err := unix.Getsid(cmd.Process.Pid); err != nil || sid != cmd.Process.Pid {
			t.Errorf("session %d, %v; want %d: signals of the terminal would end the process with the caller", sid, err, cmd.Process.Pid)
		}
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// addUplink gives the host of a test a link with a default route, on which forwarding is off.
func addUplink(t *testing.T) {
	t.Helper()
	out, err := exec.Command("sh", "-ec", `echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; ip link add up0 type bridge; ip link set up0 up; ip address add 192.0.2.2/24 dev up0
		ip route add default via 192.0.2.1`).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestNamesOfNodesAreChecked(t *testing.T) {
	for _, nodes := range [][]string{{"_switch"}, {"N1"}, {"a/b"}, {""}, {"n1", "n1"}, {strings.Repeat("n", 64)}} {
		if _, err := Ensure(context.Background(), Config{StateDir: t.TempDir(), Nodes: nodes}); err == nil {
			t.Errorf("%q: want an error", nodes)
		}
	}
}

func TestEgressLeadsNodesOutAndNobodyIn(t *testing.T) {
	onHost(t, func(host netns.Handle) {
		outside, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		defer outside.Close()
		script(t, `ip link set lo up; ip link add up0 type veth peer name eth0 netns `+outside.Path()+`
			ip link set up0 up; ip address add 192.0.2.2/24 dev up0; ip route add default via 192.0.2.1`)
		if err := outside.Do(func() error {
			script(t, `ip link set lo up; ip link set eth0 up; ip address add 192.0.2.1/24 dev eth0; ip address add 203.0.113.1/32 dev lo
				ip route add 198.18.0.0/15 via 192.0.2.2`)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		defer remove(t, dir)
		listener := func(in func(func() error) error, address string) net.Listener {
			var l net.Listener
			if err := in(func() (err error) {
				l, err = net.Listen("tcp4", net.JoinHostPort(address, "0"))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			return l
		}
		internet := listener(outside.Do, "203.0.113.1")
		hostsOwn := listener(host.Do, "192.0.2.2")
		dial := func(to net.Listener, wait time.Duration) error {
			conn, err := net.DialTimeout("tcp4", to.Addr().String(), wait)
			if err != nil {
				return err
			}
			return conn.Close()
		}
		const patience, proof = 20 * time.Second, 300 * time.Millisecond

		spaces := ensure(t, Config{StateDir: dir, Nodes: []string{"n1"}})
		if err := inside(spaces.Nodes[0], func() error { return dial(internet, proof) }); err == nil {
			t.Error("without egress a node reaches the outside")
		}
		spaces = ensure(t, Config{StateDir: dir, Nodes: []string{"n1"}, Egress: true})
		nodes := listener(func(f func() error) error { return inside(spaces.Nodes[0], f) }, spaces.Nodes[0].Address.String())
		server := listener(host.Do, spaces.Host.String())
		if err := inside(spaces.Nodes[0], func() error { return dial(internet, patience) }); err != nil {
			t.Errorf("with egress a node does not reach the outside: %v", err)
		}
		if err := inside(spaces.Nodes[0], func() error { return dial(server, patience) }); err != nil {
			t.Errorf("with egress a node does not reach the server: %v", err)
		}
		if err := inside(spaces.Nodes[0], func() error { return dial(hostsOwn, proof) }); err == nil {
			t.Error("a node reaches an address of the host that is not in the underlay")
		}
		if err := outside.Do(func() error { return dial(nodes, proof) }); err == nil {
			t.Error("the outside reaches a node")
		}
		ensure(t, Config{StateDir: dir, Nodes: []string{"n1"}})
		if err := inside(spaces.Nodes[0], func() error { return dial(internet, proof) }); err == nil {
			t.Error("a node reaches the outside after egress was taken back")
		}
	})
}

// script runs a shell script in the network namespace of the calling thread.
func script(t *testing.T, text string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", text).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
