// Package fabrictest holds the suites that every implementation of fabric.Fabric and of site.Site passes, the fake ones included.
//
// The suites test the contract: the promises of Apply, Attach, Detach and Audit to their callers. Each implementation tests the traffic
// that its networks pass. A suite must never look inside an implementation. Start with Run and RunSite.
package fabrictest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// Harness makes what the suite works on.
type Harness struct {
	// New returns a fabric on a node of its own, without networks. It is called again with the same node (a number) when an
	// agent starts anew.
	New func(t *testing.T, node int) fabric.Fabric
	// NetNS returns a path that opens a new network namespace for a member.
	NetNS func(t *testing.T) string
	// Kinds are the kinds of ports that it makes, besides veth ports.
	Kinds []api.PortKind
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	t.Helper()
	tests := []struct {
		name string
		test func(t *testing.T, h Harness)
	}{
		{"what was applied shows no drift", noDrift},
		{"applying again, and less, and nothing, works", applyIsRepeatable},
		{"invalid networks are refused and change nothing", invalidNetworks},
		{"invalid security groups are refused and change nothing", invalidGroups},
		{"security groups come, change and go", groupsChange},
		{"a port is attached only when its network was applied with it", attachNeedsApply},
		{"attaching and detaching may be repeated", attachIsRepeatable},
		{"a member has ports on several networks, which go together", severalPorts},
		{"a port of a kind that the node can't make is refused", otherKinds},
		{"a new process finds members attached", survivesRestart},
		{"ports may come and go at once", parallelPorts},
		{"a probe reports missing ports", probe},
		{"attached ports have counters", counters},
		{"a network without peers meets nobody, and one that was not applied is an error", meetsNobody},
		{"a context that has ended ends every call", cancelled},
	}
	for node, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			one := Harness{New: func(t *testing.T, n int) fabric.Fabric { t.Helper(); return h.New(t, node*100+n) }, NetNS: h.NetNS, Kinds: h.Kinds}
			tt.test(t, one)
		})
	}
}

// Network returns a valid network with this many ports.
func Network(index, ports int) fabric.Network {
	base := netip.AddrFrom4([4]byte{10, byte(64 + index>>4), byte(index << 4), 0})
	n := fabric.Network{Network: api.Network{Index: index, Prefix: netip.PrefixFrom(base, 20), Gateway: base.Next()}}
	address := n.Gateway
	for i := range ports {
		address = address.Next()
		n.Ports = append(n.Ports, fabric.Port{
			ID: fmt.Sprintf("uid%d.c-%d.1", index, i), Address: address, MAC: fmt.Sprintf("02:00:%02x:%02x:00:%02x", index>>8, index&0xff, i+2),
			Interface: "eth0",
		})
	}
	return n
}

// Remote returns a member of the network of this index on another node. It has the address and the MAC that port i has where Network gives that many.
func Remote(index, i int) fabric.Remote {
	p := Network(index, i+1).Ports[i]
	return fabric.Remote{Peer: netip.MustParseAddr("198.18.0.2"), Address: p.Address, MAC: p.MAC}
}

// end is a port and where a driver wants it.
type end struct {
	fabric.Port
	place fabric.Place
}

// port returns port i of a network, in a new network namespace.
func port(t *testing.T, h Harness, n fabric.Network, i int) end {
	t.Helper()
	return end{n.Ports[i], fabric.Namespace(h.NetNS(t))}
}

func (e end) attach(f fabric.Fabric) error { return f.Attach(context.Background(), e.Port, e.place) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustBeAsApplied(t *testing.T, f fabric.Fabric) {
	t.Helper()
	drifts, err := f.Audit(context.Background())
	must(t, err)
	for _, d := range drifts {
		t.Errorf("drift in network %d: %s: want %s, got %s", d.Network, d.Object, d.Want, d.Got)
	}
}

func noDrift(t *testing.T, h Harness) {
	f := h.New(t, 0)
	mustBeAsApplied(t, f)
	must(t, f.Apply(context.Background(), []fabric.Network{Network(1, 2), Network(2, 0)}))
	mustBeAsApplied(t, f)
}

func applyIsRepeatable(t *testing.T, h Harness) {
	f := h.New(t, 0)
	all := []fabric.Network{Network(1, 2), Network(2, 1), Network(3, 1)}
	for _, networks := range [][]fabric.Network{all, all, all[1:], nil, nil, all[:1]} {
		must(t, f.Apply(context.Background(), networks))
		mustBeAsApplied(t, f)
	}
}

func invalidNetworks(t *testing.T, h Harness) {
	f := h.New(t, 0)
	good := Network(1, 1)
	good.Prefix6 = netip.MustParsePrefix("fd12:3456:789a:1::/64")
	must(t, f.Apply(context.Background(), []fabric.Network{good}))
	change := func(c func(n *fabric.Network)) fabric.Network {
		n := Network(2, 2)
		c(&n)
		return n
	}
	remote := func(c func(r *fabric.Remote)) fabric.Network {
		return change(func(n *fabric.Network) {
			n.Remotes = []fabric.Remote{Remote(2, 10), Remote(2, 11)}
			c(&n.Remotes[0])
		})
	}
	for what, n := range map[string]fabric.Network{
		"index 0":                  change(func(n *fabric.Network) { n.Index = 0 }),
		"an index twice":           good,
		"an overlapping subnet":    change(func(n *fabric.Network) { n.Prefix, n.Gateway, n.Ports = good.Prefix, good.Gateway, nil }),
		"no subnet":                change(func(n *fabric.Network) { n.Prefix = netip.Prefix{} }),
		"an IPv6 subnet twice":     change(func(n *fabric.Network) { n.Prefix6 = good.Prefix6 }),
		"a long IPv6 subnet":       change(func(n *fabric.Network) { n.Prefix6 = netip.MustParsePrefix("fd12:3456:789a:2::/80") }),
		"an IPv6 subnet of a host": change(func(n *fabric.Network) { n.Prefix6 = netip.MustParsePrefix("fd12:3456:789a:2::1/64") }),
		"IPv4 as an IPv6 subnet":   change(func(n *fabric.Network) { n.Prefix6 = netip.MustParsePrefix("192.0.2.0/24") }),
		"a gateway elsewhere":      change(func(n *fabric.Network) { n.Gateway = netip.MustParseAddr("192.0.2.1") }),
		"a port elsewhere":         change(func(n *fabric.Network) { n.Ports[0].Address = netip.MustParseAddr("192.0.2.1") }),
		"the gateway's address":    change(func(n *fabric.Network) { n.Ports[0].Address = n.Gateway }),
		"an address twice":         change(func(n *fabric.Network) { n.Ports[0].Address = n.Ports[1].Address }),
		"a MAC twice":              change(func(n *fabric.Network) { n.Ports[0].MAC = n.Ports[1].MAC }),
		"a multicast MAC":          change(func(n *fabric.Network) { n.Ports[0].MAC = "01:00:00:00:00:01" }),
		"no MAC":                   change(func(n *fabric.Network) { n.Ports[0].MAC = "" }),
		"a port of another's ID":   change(func(n *fabric.Network) { n.Ports[0].ID = good.Ports[0].ID }),
		"a port without an ID":     change(func(n *fabric.Network) { n.Ports[0].ID = "" }),
		"a peer that is not IPv4":  remote(func(r *fabric.Remote) { r.Peer = netip.MustParseAddr("::1") }),
		"a remote elsewhere":       remote(func(r *fabric.Remote) { r.Address = netip.MustParseAddr("192.0.2.1") }),
		"a remote gateway":         remote(func(r *fabric.Remote) { r.Address = Network(2, 0).Gateway }),
		"a remote multicast MAC":   remote(func(r *fabric.Remote) { r.MAC = "01:00:00:00:00:01" }),
		"a remote without a MAC":   remote(func(r *fabric.Remote) { r.MAC = "" }),
		"a remote address twice":   remote(func(r *fabric.Remote) { r.Address = Remote(2, 11).Address }),
		"a remote MAC twice":       remote(func(r *fabric.Remote) { r.MAC = Remote(2, 11).MAC }),
		"an index that is too big": change(func(n *fabric.Network) { n.Index = fabric.MaxIndex + 1 }),
	} {
		if err := f.Apply(context.Background(), []fabric.Network{good, n}); err == nil {
			t.Errorf("%s: want an error", what)
		}
	}
	mustBeAsApplied(t, f)
	must(t, port(t, h, good, 0).attach(f))
}

// withGroup is a network of this many ports; the first has a security group, whose rules name that of the second.
func withGroup(ports int) fabric.Network {
	n := Network(1, ports)
	from := func(group string) securitygroup.Rule {
		return securitygroup.Rule{Direction: securitygroup.In, Protocol: securitygroup.TCP, Ports: securitygroup.Range{First: 22, Last: 22}, Group: group}
	}
	n.Groups = []fabric.Group{
		{ID: "web", Ports: []string{n.Ports[0].ID}, Members: []netip.Addr{n.Ports[0].Address}, Rules: []securitygroup.Rule{from("admin")}},
		{ID: "admin", Members: []netip.Addr{n.Ports[1].Address}},
	}
	return n
}

func invalidGroups(t *testing.T, h Harness) {
	f := h.New(t, 0)
	good := withGroup(2)
	must(t, f.Apply(context.Background(), []fabric.Network{good}))
	for what, change := range map[string]func(n *fabric.Network){
		"a group without an ID":              func(n *fabric.Network) { n.Groups[1].ID = "" },
		"a group twice":                      func(n *fabric.Network) { n.Groups[1].ID = "web" },
		"a rule that names an unknown group": func(n *fabric.Network) { n.Groups[0].Rules[0].Group = "nobody" },
		"a rule with two other ends":         func(n *fabric.Network) { n.Groups[0].Rules[0].Prefix = n.Prefix },
		"a rule without another end":         func(n *fabric.Network) { n.Groups[0].Rules[0].Group = "" },
		"a rule twice":                       func(n *fabric.Network) { n.Groups[0].Rules = append(n.Groups[0].Rules, n.Groups[0].Rules[0]) },
		"a range that ends before it begins": func(n *fabric.Network) { n.Groups[0].Rules[0].Ports.Last = 1 },
		"a port without an ID in a group":    func(n *fabric.Network) { n.Groups[0].Ports[0] = "" },
		"a port twice in a group":            func(n *fabric.Network) { n.Groups[0].Ports = append(n.Groups[0].Ports, n.Groups[0].Ports[0]) },
		"a member that is not IPv4":          func(n *fabric.Network) { n.Groups[1].Members[0] = netip.MustParseAddr("::1") },
		"a port with too many groups": func(n *fabric.Network) {
			for i := range fabric.MaxGroupsOfPort {
				n.Groups = append(n.Groups, fabric.Group{ID: fmt.Sprint(i), Ports: []string{n.Ports[0].ID}})
			}
		},
		"a group that names too many others": func(n *fabric.Network) {
			for i := range fabric.MaxGroupsNamed {
				n.Groups = append(n.Groups, fabric.Group{ID: fmt.Sprint(i)})
				rule := n.Groups[0].Rules[0]
				rule.Group = fmt.Sprint(i)
				n.Groups[0].Rules = append(n.Groups[0].Rules, rule)
			}
		},
	} {
		n := withGroup(2)
		change(&n)
		if err := f.Apply(context.Background(), []fabric.Network{n}); err == nil {
			t.Errorf("%s: want an error", what)
		}
	}
	mustBeAsApplied(t, f)
	must(t, port(t, h, good, 0).attach(f))
}

func groupsChange(t *testing.T, h Harness) {
	f := h.New(t, 0)
	more, changed, none := withGroup(3), withGroup(3), Network(1, 3)
	more.Groups[1].Members = append(more.Groups[1].Members, more.Ports[2].Address)
	more.Groups[0].Ports = append(more.Groups[0].Ports, "a port of another node")
	changed.Groups[1].Ports, changed.Groups[0].Rules = []string{changed.Ports[1].ID}, nil
	for _, n := range []fabric.Network{withGroup(3), more, more, changed, none, more} {
		must(t, f.Apply(context.Background(), []fabric.Network{n}))
		mustBeAsApplied(t, f)
		for i := range n.Ports {
			p := port(t, h, n, i)
			must(t, p.attach(f))
			mustBeAsApplied(t, f)
			must(t, f.Detach(context.Background(), p.ID))
		}
	}
}

func attachNeedsApply(t *testing.T, h Harness) {
	f := h.New(t, 0)
	n := Network(1, 3)
	p := port(t, h, n, 2)
	if err := p.attach(f); !errors.Is(err, fabric.ErrNotApplied) {
		t.Errorf("before any Apply: got %v, want ErrNotApplied", err)
	}
	fewer := n
	fewer.Ports = n.Ports[:2]
	must(t, f.Apply(context.Background(), []fabric.Network{fewer}))
	if err := p.attach(f); !errors.Is(err, fabric.ErrNotApplied) {
		t.Errorf("applied without this port: got %v, want ErrNotApplied", err)
	}
	must(t, f.Apply(context.Background(), []fabric.Network{n}))
	other := p
	other.Address = n.Ports[1].Address
	if err := other.attach(f); !errors.Is(err, fabric.ErrNotApplied) {
		t.Errorf("applied with another address: got %v, want ErrNotApplied", err)
	}
	must(t, p.attach(f))
}

func attachIsRepeatable(t *testing.T, h Harness) {
	f := h.New(t, 0)
	n := Network(1, 1)
	must(t, f.Apply(context.Background(), []fabric.Network{n}))
	p := port(t, h, n, 0)
	must(t, f.Detach(context.Background(), p.ID))
	for range 2 {
		must(t, p.attach(f))
		must(t, p.attach(f))
		mustBeAsApplied(t, f)
		must(t, f.Detach(context.Background(), p.ID))
		must(t, f.Detach(context.Background(), p.ID))
		mustBeAsApplied(t, f)
	}
}

func severalPorts(t *testing.T, h Harness) {
	f := h.New(t, 0)
	a := api.Assignment{ID: "uid1.c-0.1", Ports: []api.PortClaim{
		{Kind: api.PortVeth, Address: Network(1, 1).Ports[0].Address, MAC: "02:6e:00:01:00:02"},
		{Kind: api.PortVeth, Address: Network(2, 1).Ports[0].Address, MAC: "02:6e:00:02:00:02"},
	}}
	first, second := Network(1, 0), Network(2, 2)
	first.Ports = []fabric.Port{fabric.PortOf(&a, 0)}
	second.Ports = []fabric.Port{fabric.PortOf(&a, 1), second.Ports[1]}
	must(t, f.Apply(context.Background(), []fabric.Network{first, second}))
	place, beside := fabric.Namespace(h.NetNS(t)), port(t, h, second, 1)
	for range 2 {
		must(t, f.Attach(context.Background(), fabric.PortOf(&a, 0), place))
		must(t, f.Attach(context.Background(), fabric.PortOf(&a, 1), place))
		must(t, beside.attach(f))
		mustBeAsApplied(t, f)
		if wrong, err := f.Probe(context.Background()); err != nil || len(wrong) > 0 {
			t.Errorf("with both ports: %v, %v", wrong, err)
		}
		must(t, f.Detach(context.Background(), a.ID))
		wrong, err := f.Probe(context.Background())
		must(t, err)
		if len(wrong) != 2 || wrong[second.Ports[1].ID] != "" {
			t.Errorf("after its ports went: %v is wrong, want both of them and not that of another member", wrong)
		}
	}
}

func otherKinds(t *testing.T, h Harness) {
	f := h.New(t, 0)
	n := Network(1, 1)
	must(t, f.Apply(context.Background(), []fabric.Network{n}))
	p := n.Ports[0]
	for _, place := range []fabric.Place{
		fabric.TAP(p),
		{Kind: api.PortMACVTAP, At: "macvtap0"},
		{Kind: api.PortVF, At: "0000:3b:00.2"},
		{Kind: api.PortPF, At: "0000:3b:00.0"},
	} {
		err := f.Attach(context.Background(), p, place)
		switch {
		case slices.Contains(h.Kinds, place.Kind):
			must(t, err)
			must(t, f.Detach(context.Background(), p.ID))
		case !errors.Is(err, fabric.ErrPortKind):
			t.Errorf("%v: got %v, want ErrPortKind", place, err)
		}
	}
	for _, place := range []fabric.Place{{}, fabric.Namespace(""), fabric.Namespace("proc/1/ns/net"), {Kind: "wire", At: "/proc/1/ns/net"}, {Kind: api.PortVF, At: "eth0"}} {
		if err := f.Attach(context.Background(), p, place); err == nil || errors.Is(err, fabric.ErrNotApplied) || errors.Is(err, fabric.ErrPortKind) {
			t.Errorf("%v: got %v, want that the place is invalid", place, err)
		}
	}
	mustBeAsApplied(t, f)
	wrong, err := f.Probe(context.Background())
	must(t, err)
	if wrong[p.ID] == "" {
		t.Error("a port that was refused, or detached, counts as attached")
	}
}

func survivesRestart(t *testing.T, h Harness) {
	n := Network(1, 2)
	before := h.New(t, 0)
	must(t, before.Apply(context.Background(), []fabric.Network{n}))
	p := port(t, h, n, 0)
	must(t, p.attach(before))
	after := h.New(t, 0)
	if err := p.attach(after); !errors.Is(err, fabric.ErrNotApplied) {
		t.Errorf("a new process attaches before it applied: got %v, want ErrNotApplied", err)
	}
	must(t, after.Apply(context.Background(), []fabric.Network{n}))
	mustBeAsApplied(t, after)
	must(t, p.attach(after))
	must(t, after.Detach(context.Background(), p.ID))
	must(t, after.Apply(context.Background(), nil))
	mustBeAsApplied(t, after)
}

func parallelPorts(t *testing.T, h Harness) {
	f := h.New(t, 0)
	n := Network(1, 8)
	must(t, f.Apply(context.Background(), []fabric.Network{n}))
	var wg sync.WaitGroup
	for i := range n.Ports {
		p := port(t, h, n, i)
		wg.Go(func() {
			for range 2 {
				if err := errors.Join(p.attach(f), f.Detach(context.Background(), p.ID), p.attach(f)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for range 4 {
			if err := f.Apply(context.Background(), []fabric.Network{n, Network(2, 1)}); err != nil {
				t.Error(err)
			}
			if err := f.Apply(context.Background(), []fabric.Network{n}); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	mustBeAsApplied(t, f)
}

func probe(t *testing.T, h Harness) {
	f := h.New(t, 0)
	n := Network(1, 2)
	must(t, f.Apply(context.Background(), []fabric.Network{n}))
	must(t, port(t, h, n, 0).attach(f))
	wantWrong := func(after string, want ...string) {
		t.Helper()
		wrong, err := f.Probe(context.Background())
		must(t, err)
		if got := slices.Sorted(maps.Keys(wrong)); !slices.Equal(got, want) {
			t.Errorf("after %s: wrong are %v, want %v", after, got, want)
		}
	}
	wantWrong("one of two ports was attached", n.Ports[1].ID)
	must(t, port(t, h, n, 1).attach(f))
	wantWrong("both were attached")
	must(t, f.Detach(context.Background(), n.Ports[0].ID))
	wantWrong("one was detached", n.Ports[0].ID)
	must(t, f.Apply(context.Background(), nil))
	wantWrong("no network was left")
}

func counters(t *testing.T, h Harness) {
	f := h.New(t, 0)
	n := Network(1, 2)
	must(t, f.Apply(context.Background(), []fabric.Network{n}))
	p := port(t, h, n, 0)
	must(t, p.attach(f))
	wantCounted := func(after string, want ...string) {
		t.Helper()
		counted, err := f.Count(context.Background())
		must(t, err)
		if got := slices.Sorted(maps.Keys(counted)); !slices.Equal(got, want) {
			t.Errorf("after %s: counted are %v, want %v", after, got, want)
		}
	}
	wantCounted("one of two ports was attached", n.Ports[0].ID)
	must(t, f.Detach(context.Background(), p.ID))
	wantCounted("it was detached")
}

func meetsNobody(t *testing.T, h Harness) {
	f := h.New(t, 0)
	must(t, f.Apply(context.Background(), []fabric.Network{Network(1, 1)}))
	if heard, err := f.Meet(context.Background(), 1, 7); err != nil || len(heard) > 0 {
		t.Errorf("without peers: got %v, %v; want nothing", heard, err)
	}
	if _, err := f.Meet(context.Background(), 2, 7); !errors.Is(err, fabric.ErrNoNetwork) {
		t.Errorf("a network that was not applied: got %v, want ErrNoNetwork", err)
	}
}

func cancelled(t *testing.T, h Harness) {
	f := h.New(t, 0)
	n := Network(1, 1)
	must(t, f.Apply(context.Background(), []fabric.Network{n}))
	p := port(t, h, n, 0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, audit := f.Audit(ctx)
	_, probed := f.Probe(ctx)
	_, met := f.Meet(ctx, n.Index, 1)
	_, counted := f.Count(ctx)
	for what, err := range map[string]error{
		"Apply": f.Apply(ctx, nil), "Audit": audit, "Probe": probed, "Meet": met, "Count": counted, "Attach": f.Attach(ctx, p.Port, p.place), "Detach": f.Detach(ctx, p.ID),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want context.Canceled", what, err)
		}
	}
	must(t, f.Apply(context.Background(), []fabric.Network{n}))
	mustBeAsApplied(t, f)
}
