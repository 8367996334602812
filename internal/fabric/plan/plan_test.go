package plan

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares text with testdata/NAME.golden.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); if that is meant, run go test -update\n%s", path, diff)
	}
}

// machine is a model of a kernel that operations are carried out on.
type machine struct {
	Observed
	// connections are the floating addresses with connections that were translated for them.
	connections map[netip.Addr]bool
}

func newMachine() *machine {
	return &machine{Observed: Observed{
		Links: map[string]Link{"up0": {Name: "up0", Kind: "device", MTU: 1500, Up: true}}, Uplinks: []string{"up0"},
		Underlay: netip.MustParsePrefix("198.18.0.0/24"), UnderlayMTU: 9000, UnderlayLink: "under0", Rules: Ruleset{},
		CanGuard: true, CanShortcut: true, CanShape: true, OpenShortcuts: map[string]Shortcut{},
	}, connections: map[netip.Addr]bool{}}
}

func (m *machine) execute(op Operation) {
	switch o := op.(type) {
	case LoadRules:
		m.load(o.Script)
	case AddLink:
		m.Links[o.Link.Name] = o.Link
	case SetParentRate, SetLimit, ClearLimit, DeleteClass:
		m.limit(op)
	case DeleteLink:
		delete(m.Links, o.Name)
		if o.Name == ShaperName {
			m.Limits = Limits{}
		}
		for name, l := range m.Links {
			if l.Master == o.Name {
				l.Master = ""
				m.Links[name] = l
			}
		}
	case SetLink:
		m.change(o.Link.Name, func(l *Link) {
			switch o.Attribute {
			case "address":
				l.MAC, l.Neighbours = o.Link.MAC, nil
			case "mcast_snooping":
				l.Snooping = o.Link.Snooping
			case "mcast_router":
				l.MulticastRouter = o.Link.MulticastRouter
			case "master":
				l.Master = o.Link.Master
			case "mtu":
				l.MTU = o.Link.MTU
			case "state":
				l.Up = o.Link.Up
			}
		})
	case AddAddress:
		m.change(o.Link, func(l *Link) { l.Addresses = append(slices.Clone(l.Addresses), o.Address) })
	case DeleteAddress:
		m.change(o.Link, func(l *Link) { l.Addresses = remove(l.Addresses, o.Address) })
	case AddPeer:
		m.change(o.Link, func(l *Link) { l.Peers = append(slices.Clone(l.Peers), o.Peer) })
	case DeletePeer:
		m.change(o.Link, func(l *Link) { l.Peers = remove(l.Peers, o.Peer) })
	case SetCipher:
		m.change(o.Link, func(l *Link) { l.Cipher = o.Cipher })
	case AddFloating:
		m.change(o.Link, func(l *Link) { l.Addresses = append(slices.Clone(l.Addresses), netip.PrefixFrom(o.Address, 32)) })
	case DeleteFloating:
		m.change(o.Link, func(l *Link) { l.Addresses = remove(l.Addresses, netip.PrefixFrom(o.Address, 32)) })
	case ForgetConnections:
		delete(m.connections, o.Address)
	case ForgetMember:
		m.change(o.Link, func(l *Link) { l.Learned = remove(l.Learned, o.Heard) })
	case DeleteFilter:
		m.change(o.Link, func(l *Link) { l.Filters = remove(l.Filters, o.MAC) })
	case AddNeighbour:
		m.change(o.Link, func(l *Link) {
			l.Neighbours = slices.DeleteFunc(slices.Clone(l.Neighbours), func(n Neighbour) bool { return n.Address == o.Neighbour.Address })
			l.Neighbours = append(l.Neighbours, o.Neighbour)
		})
	case DeleteNeighbour:
		m.change(o.Link, func(l *Link) { l.Neighbours = remove(l.Neighbours, o.Neighbour) })
	case PlaceMember:
		m.change(o.Link, func(l *Link) { l.Placed = append(slices.Clone(l.Placed), Placed{Heard: o.Heard}) })
	case UnplaceMember:
		m.change(o.Link, func(l *Link) { l.Placed = remove(l.Placed, o.Placed) })
	case SetForwarding:
		m.change(o.Link, func(l *Link) { l.Forwarding = o.On })
	case OpenShortcut:
		m.OpenShortcuts[o.Name] = o.Shortcut
	case ShutShortcut:
		delete(m.OpenShortcuts, o.Name)
	case ChangeShortcut:
		if m.OpenShortcuts[o.Name] == o.From {
			m.OpenShortcuts[o.Name] = o.To
		}
	}
}

func (m *machine) change(name string, f func(*Link)) {
	l := m.Links[name]
	f(&l)
	m.Links[name] = l
}

func remove[T comparable](list []T, x T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(e T) bool { return e == x })
}

var partCommand = regexp.MustCompile(`^(flush|delete) (chain|set) (\w+ \w+) (\w+)$`)

var elementCommand = regexp.MustCompile(`^(add|delete) element (\w+ \w+) (\w+) \{ (.*) \}$`)

// load understands the scripts that Plan writes.
func (m *machine) load(script string) {
	lines := strings.Split(strings.TrimSuffix(script, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		if name, ok := strings.CutPrefix(lines[i], "delete table "); ok {
			delete(m.Rules, name)
			continue
		}
		if e := elementCommand.FindStringSubmatch(lines[i]); e != nil {
			sets := m.Rules[e[2]].Sets
			list := splitElements(e[4])
			if e[1] == "add" {
				list = append(list, sets[e[3]]...)
			} else {
				list = without(sets[e[3]], list)
			}
			slices.Sort(list)
			sets[e[3]] = list
			continue
		}
		if e := partCommand.FindStringSubmatch(lines[i]); e != nil {
			table := m.Rules[e[3]]
			if e[1] == "flush" && e[2] == "set" {
				continue // packets filled it
			}
			delete(table.Parts, e[2]+" "+e[4])
			delete(table.Sets, e[4])
			continue
		}
		start := i
		for i < len(lines) && lines[i] != "}" {
			i++
		}
		for name, table := range ParseListing(strings.Join(lines[start:i+1], "\n")) {
			m.Rules[name] = table.and(m.Rules[name])
		}
	}
}

func (m *machine) attach(n fabric.Network, i int) {
	name := PortName(n.Ports[i].ID)
	m.Links[name] = Link{Name: name, Kind: KindVeth, MTU: MTU(n, m.UnderlayMTU), Master: BridgeName(n.Index), Up: true, Away: true}
	if limit, shaped := LimitsOf([]fabric.Network{n}, ParentRate(m.Observed))[name]; shaped && m.CanShape {
		m.limit(SetLimit{Port: name, Limit: limit})
	}
	if m.Shortcuts() && !n.Bridged(n.Ports[i]) {
		m.OpenShortcuts[name] = ShortcutOf(n, n.Ports[i])
	}
}

var planConfig = Config{Underlay: netip.MustParseAddr("198.18.0.1")}

func TestPlansAreAsWritten(t *testing.T) {
	one, two, three := testNetwork(1, 2, 3), testNetwork(2, 2), testNetwork(3, 2)
	two.Egress = true
	three.Remotes = slices.Concat(behind(three, "198.18.0.3", 4, 5), behind(three, "198.18.0.2", 3))
	spanning := three
	spanning.Egress = true
	fewer := three
	fewer.Remotes = three.Remotes[:2]
	lost := fewer
	lost.Remotes = three.Remotes[:1]
	moved := fewer
	moved.Remotes = slices.Concat(three.Remotes[:1], behind(three, "198.18.0.2", 5))
	moving := fewer
	moving.Remotes = slices.Concat(three.Remotes[:2], behind(three, "198.18.0.2", 5, 2))
	m := newMachine()
	var b strings.Builder
	step := func(why string, before func(), networks ...fabric.Network) {
		if before != nil {
			before()
		}
		ops, err := Compute(planConfig, networks, m.Observed)
		fmt.Fprintf(&b, "=== %s\n", why)
		if err != nil {
			fmt.Fprintf(&b, "error: %v\n", err)
		}
		for _, op := range ops {
			fmt.Fprintln(&b, op)
			m.execute(op)
		}
	}
	step("a node without networks is left alone", nil)
	step("a first network, on this node only, gets one table and a bridge without an address", nil, one)
	step("nothing to do", nil, one)
	step("a member more only adds elements; its port is made by Attach", func() { m.attach(one, 0) }, withPorts(one, 2, 3, 4))
	step("a second network with egress: the node's own stack gets rules, then forwarding", nil, one, two)
	step("a third that spans nodes", nil, one, two, three)
	step("it lost a node", nil, one, two, fewer)
	step("it lost a member on a node that has another", nil, one, two, lost)
	step("a member comes", nil, one, two, fewer)
	step("a member, and one from here, move to another node: they are at both for a while", nil, one, two, moving)
	step("the member has moved, and the one from here did not", nil, one, two, moved)
	step("it gets egress: its gateway is every node's own", nil, one, two, spanning)
	step("somebody meddled with a bridge, a tunnel and a port", func() {
		m.change("nmbr1", func(l *Link) { l.MTU, l.Up, l.Snooping, l.MAC = 1500, false, false, "02:00:00:00:00:01" })
		m.change("nmbr2", func(l *Link) { l.Addresses, l.Forwarding = nil, false })
		m.change("nmvx3", func(l *Link) { l.VNI = 99 })
		m.change(PortName(one.Ports[0].ID), func(l *Link) { l.Master, l.MTU = "nmbr2", 1500 })
		m.change("up0", func(l *Link) { l.Forwarding = false })
	}, one, two, spanning)
	step("somebody emptied a set and removed a rule", func() {
		m.Rules[bridgeTable].Sets["pins"] = nil
		table := m.Rules[InetTable]
		table.Text = strings.Replace(table.Text, "iifname \"nmbr*\" drop\n", "", 1)
		m.Rules[InetTable] = table
	}, one, two, spanning)
	step("a port's shortcut is another process's, and a member has ended", func() {
		m.OpenShortcuts[PortName(one.Ports[0].ID)] = Shortcut{Broken: true}
		m.OpenShortcuts[PortName(two.Ports[0].ID)] = ShortcutOf(two, two.Ports[0])
	}, one, two, spanning)
	one = withPorts(one, 2, 3)
	one.Ports[0].Address = testPort(one, 9).Address
	step("a port gets another address: its shortcut does not outlast the rules", nil, one, two, spanning)
	step("somebody else has rules for bridged frames", func() { m.BridgeRules = true }, one, two, spanning)
	step("somebody else's rules are gone", func() { m.BridgeRules = false }, one, two, spanning)
	step("somebody else has rules for the node's own packets", func() { m.UnderlayRules = true }, one, two, spanning)
	step("those are gone", func() { m.UnderlayRules = false }, one, two, spanning)
	remote := spanning
	remote.Remotes = append(behind(three, "192.0.2.7", 7), spanning.Remotes...)
	step("one more peer, behind a router", nil, one, two, remote)
	step("a new process finds the program of the one before at the underlay", func() {
		m.OpenShortcuts = map[string]Shortcut{"under0": {Broken: true}}
	}, one, two, spanning)
	step("debris of something else under our names", func() {
		m.Links["nmbr9"] = Link{Name: "nmbr9", Kind: KindBridge}
		m.Links["nmp0123456789"] = Link{Name: "nmp0123456789", Kind: KindVeth}
		m.Links["nmbrother"] = Link{Name: "nmbrother", Kind: KindBridge}
		m.change("nmbr1", func(l *Link) { l.Kind = "dummy" })
		m.Rules["ip nm7"] = Table{Text: "table ip nm7 {\n}\n"}
	}, one, two, spanning)
	step("without egress forwarding is switched off where it was off before", nil, one, three)
	step("nothing is left", nil)
	step("an invalid set of networks changes nothing", nil, one, one)
	golden(t, "plan", b.String())
}

// testNetwork is network index with ports for members of these host numbers.
func testNetwork(index int, hosts ...int) fabric.Network {
	base := netip.AddrFrom4([4]byte{10, byte(64 + index>>4), byte(index << 4), 0})
	n := fabric.Network{Network: api.Network{Index: index, Prefix: netip.PrefixFrom(base, 20), Gateway: base.Next()}}
	return withPorts(n, hosts...)
}

func testPort(n fabric.Network, host int) fabric.Port {
	a := n.Prefix.Addr().As4()
	a[3] += byte(host)
	return fabric.Port{
		ID:      fmt.Sprintf("uid%d.c-%d.1", n.Index, host),
		Address: netip.AddrFrom4(a),
		MAC:     fmt.Sprintf("02:00:%02x:%02x:00:%02x", n.Index>>8, n.Index&0xff, host),
	}
}

// behind are members of these host numbers behind a peer.
func behind(n fabric.Network, peer string, hosts ...int) []fabric.Remote {
	var remotes []fabric.Remote
	for _, host := range hosts {
		p := testPort(n, host)
		remotes = append(remotes, fabric.Remote{Peer: netip.MustParseAddr(peer), Address: p.Address, MAC: p.MAC})
	}
	return remotes
}

func withPorts(n fabric.Network, hosts ...int) fabric.Network {
	n.Ports = nil
	for _, host := range hosts {
		n.Ports = append(n.Ports, testPort(n, host))
	}
	return n
}

func TestTunnelsNeedAnUnderlay(t *testing.T) {
	n := testNetwork(3, 2)
	n.Remotes = behind(n, "198.18.0.2", 3)
	m := newMachine()
	if _, err := Compute(Config{}, []fabric.Network{n}, m.Observed); err == nil || !strings.Contains(err.Error(), "no underlay address") {
		t.Errorf("without an underlay address: got %v", err)
	}
	m.UnderlayMTU = 0
	if _, err := Compute(planConfig, []fabric.Network{n}, m.Observed); err == nil || !strings.Contains(err.Error(), "was not found") {
		t.Errorf("without the link of the underlay: got %v", err)
	}
}

// drawNetworks draws a valid set of networks.
func drawNetworks(t *rapid.T) []fabric.Network {
	var networks []fabric.Network
	for _, index := range rapid.SliceOfNDistinct(rapid.IntRange(1, 6), 0, 4, rapid.ID[int]).Draw(t, "indexes") {
		n := testNetwork(index, rapid.SliceOfNDistinct(rapid.IntRange(2, 6), 0, 4, rapid.ID[int]).Draw(t, "hosts")...)
		n.Egress, n.Routed = rapid.Bool().Draw(t, "egress"), rapid.Bool().Draw(t, "routed")
		n.Project = rapid.SampledFrom([]string{"default", "lab"}).Draw(t, "project")
		for _, peer := range rapid.SliceOfNDistinct(rapid.IntRange(2, 5), 0, 3, rapid.ID[int]).Draw(t, "peers") {
			hosts := rapid.SliceOfNDistinct(rapid.IntRange(2, 12), 1, 4, rapid.ID[int]).Draw(t, "members there")
			n.Remotes = append(n.Remotes, behind(n, fmt.Sprintf("198.18.0.%d", peer), hosts...)...)
		}
		for i := range n.Ports {
			n.Ports[i].Quality = rapid.SampledFrom([]api.Quality{{}, {}, {MaxRate: 1e8}, {MinRate: 1e7, MaxRate: 1e9, DSCP: "10"}, {DSCP: "0"}}).Draw(t, "quality")
		}
		networks = append(networks, drawGroups(t, n))
	}
	return networks
}

// drawGroups adds security groups of some of a network's ports.
func drawGroups(t *rapid.T, n fabric.Network) fabric.Network {
	texts := []string{"in tcp 22 from 10.64.0.0/10", "in udp 53 from group a", "in any from group b", "out tcp 80-90 to 0.0.0.0/0", "in any from 10.65.0.0/16"}
	for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b"}), 0, 2, rapid.ID[string]).Draw(t, "groups") {
		g := fabric.Group{ID: id}
		for _, p := range n.Ports {
			if rapid.Bool().Draw(t, "member") {
				g.Ports, g.Members = append(g.Ports, p.ID), append(g.Members, p.Address)
			}
		}
		for _, text := range texts {
			if r, err := securitygroup.Parse(text); err == nil && (r.Group == "" || r.Group == id) && rapid.Bool().Draw(t, text) {
				g.Rules = append(g.Rules, r)
			}
		}
		n.Groups = append(n.Groups, g)
	}
	return n
}

func TestAnyPlanBrokenOffAnywhereIsFinishedByTheNext(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine()
		m.CanGuard = rapid.Bool().Draw(t, "the kernel can enforce security groups")
		m.CanShape = rapid.Bool().Draw(t, "the kernel can limit ports")
		on := rapid.Bool().Draw(t, "forwarding before")
		m.change("up0", func(l *Link) { l.Forwarding = on })
		fresh := cmp.Diff(nil, m.Observed)
		for range rapid.IntRange(1, 5).Draw(t, "rounds") {
			networks := drawNetworks(t)
			m.BridgeRules = rapid.Bool().Draw(t, "others have rules for bridged frames")
			m.UnderlayRules = rapid.Bool().Draw(t, "others have rules for the node's packets")
			ops, err := Compute(planConfig, networks, m.Observed)
			if err != nil {
				t.Fatal(err)
			}
			for _, op := range ops[:rapid.IntRange(0, len(ops)).Draw(t, "operations before the crash")] {
				m.execute(op)
			}
			finish(t, m, networks)
			for _, n := range networks {
				for i := range n.Ports {
					m.attach(n, i)
				}
			}
			if ops, _ := Compute(planConfig, networks, m.Observed); len(ops) > 0 {
				t.Fatalf("with all members attached, there is still to do: %v", ops)
			}
		}
		m.BridgeRules, m.UnderlayRules = false, false
		finish(t, m, nil)
		if diff := cmp.Diff(fresh, cmp.Diff(nil, m.Observed)); diff != "" {
			t.Fatalf("something is left or forwarding (on before: %t) is not as before:\n%s", on, diff)
		}
	})
}

func finish(t rapid.TB, m *machine, networks []fabric.Network) {
	ops, err := Compute(planConfig, networks, m.Observed)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range ops {
		m.execute(op)
	}
	if ops, err := Compute(planConfig, networks, m.Observed); err != nil || len(ops) > 0 {
		t.Fatalf("a second plan is not empty: %v, %v", ops, err)
	}
}

func TestATunnelThatIsNotWantedGoesBeforeItsGuard(t *testing.T) {
	alone := testNetwork(3, 2)
	wide := alone
	wide.Remotes = behind(wide, "198.18.0.2", 3)
	m := newMachine()
	finish(t, m, []fabric.Network{wide})
	ops, err := Compute(planConfig, []fabric.Network{alone}, m.Observed)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range ops {
		switch o := op.(type) {
		case LoadRules:
			t.Fatalf("the rules that guard %s are loaded away while it is there:\n%v", TunnelName(3), ops)
		case DeleteLink:
			if o.Name == TunnelName(3) {
				return
			}
		}
	}
	t.Fatalf("%s is not removed: %v", TunnelName(3), ops)
}

func TestFramesToMembersHeardFromElsewhereGoToNobody(t *testing.T) {
	n := testNetwork(3, 2)
	n.Remotes = slices.Concat(behind(n, "198.18.0.3", 3), behind(n, "198.18.0.4", 4))
	m := newMachine()
	finish(t, m, []fabric.Network{n})
	heard := func(host int, peer string) Heard {
		return heardOf(fabric.Network{Remotes: behind(n, peer, host)}, nil)[0]
	}
	for what, former := range map[string]Heard{
		"a former peer":                heard(3, "198.18.0.2"),
		"a peer that has other member": heard(3, "198.18.0.4"),
		"a lost member":                heard(5, "198.18.0.3"),
	} {
		m.change(TunnelName(3), func(l *Link) { l.Learned = []Heard{former, heard(3, "198.18.0.3")} })
		ops, err := Compute(planConfig, []fabric.Network{n}, m.Observed)
		if err != nil || len(ops) != 1 || ops[0] != Operation(ForgetMember{Network: 3, Link: TunnelName(3), Heard: former}) {
			t.Errorf("%s: got %v, %v; want that it is forgotten", what, ops, err)
		}
	}
}

func TestTheRulesAreAsWrittenAndReadBack(t *testing.T) {
	networks := []fabric.Network{testNetwork(1, 2, 3, 4), testNetwork(4095, 2)}
	networks[0].Egress = true
	networks[1].Remotes = behind(networks[1], "198.18.0.2", 3)
	want := desiredRules(planConfig, networks, newMachine().Observed)
	golden(t, "rules", rulesScript(want, nil))
	for name, table := range ParseListing(rulesScript(want, nil)) {
		if table.Text != want[name].Text {
			t.Errorf("table %s is read as\n%s\nwant\n%s", name, table.Text, want[name].Text)
		}
	}
}

// parseRules parses rules of a security group.
func parseRules(t testing.TB, texts ...string) []securitygroup.Rule {
	t.Helper()
	var rules []securitygroup.Rule
	for _, text := range texts {
		r, err := securitygroup.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	return rules
}

// withGroup adds a security group of these ports, by number.
func withGroup(t testing.TB, n fabric.Network, id string, ports []int, rules ...string) fabric.Network {
	t.Helper()
	g := fabric.Group{ID: id, Rules: parseRules(t, rules...)}
	for _, i := range ports {
		g.Ports = append(g.Ports, n.Ports[i].ID)
		g.Members = append(g.Members, n.Ports[i].Address)
	}
	n.Groups = append(slices.Clone(n.Groups), g)
	return n
}

func TestAShortcutNeverOutlastsTheRulesThatItRepeats(t *testing.T) {
	n := testNetwork(1, 2, 3)
	m := newMachine()
	finish(t, m, []fabric.Network{n})
	m.attach(n, 0)
	m.attach(n, 1)
	n.Ports[0].Address, n.Ports[1].Address = n.Ports[1].Address, n.Ports[0].Address
	ops, err := Compute(planConfig, []fabric.Network{n}, m.Observed)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, op := range ops {
		order = append(order, fmt.Sprintf("%T", op))
	}
	want := []string{"plan.ShutShortcut", "plan.ShutShortcut", "plan.LoadRules", "plan.OpenShortcut", "plan.OpenShortcut"}
	if !slices.Equal(order, want) {
		t.Errorf("got %v, want %v", order, want)
	}
}

func TestATunnelsShortcutStaysOpenWhileMembersChange(t *testing.T) {
	n := testNetwork(3, 2, 3)
	n.Remotes = behind(n, "198.18.0.2", 4, 5)
	m := newMachine()
	finish(t, m, []fabric.Network{n})
	before := m.OpenShortcuts[TunnelName(3)]
	next := func(here []int, there ...int) fabric.Network {
		next := testNetwork(3, here...)
		next.Remotes = behind(n, "198.18.0.2", there...)
		return next
	}
	to := func(hosts ...int) string { return "to " + remotesText(behind(n, "198.18.0.2", hosts...)) }
	for _, tt := range []struct {
		name string
		next fabric.Network
		want []string
	}{
		{"a member here goes", next([]int{2}, 4, 5), []string{"rules"}},
		{"a member on another node goes before the rules for it do", next([]int{2}, 4), []string{to(4), "rules"}},
		{"a member on another node comes after the rules for it", next([]int{2}, 4, 6), []string{"rules", to(4, 6)}},
		{"one goes and one comes", next([]int{2}, 6, 7), []string{to(6), "rules", to(6, 7)}},
		{"one comes that is also here, and so may be at either place", next([]int{2, 6}, 6, 7), []string{to(7), "rules"}},
	} {
		ops, err := Compute(planConfig, []fabric.Network{tt.next}, m.Observed)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, op := range ops {
			switch o := op.(type) {
			case LoadRules:
				got = append(got, "rules")
			case ChangeShortcut:
				got = append(got, "to "+o.To.Remotes)
			case ForgetMember:
			default:
				t.Errorf("%s: unexpected operation %v", tt.name, op)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		finish(t, m, []fabric.Network{tt.next})
	}
	// What else changes opens it anew.
	n.Remotes = append(n.Remotes, behind(n, "198.18.0.3", 8)...)
	ops, err := Compute(planConfig, []fabric.Network{n}, m.Observed)
	if err != nil {
		t.Fatal(err)
	}
	shut := slices.ContainsFunc(ops, func(op Operation) bool { o, ok := op.(ShutShortcut); return ok && o.Name == TunnelName(3) })
	if !shut {
		t.Errorf("another peer: the shortcut %v stays open: %v", before, ops)
	}
}

func TestAPortInTheNodesOwnNamespaceGetsNoShortcut(t *testing.T) {
	n := testNetwork(1, 2)
	m := newMachine()
	finish(t, m, []fabric.Network{n})
	m.attach(n, 0)
	delete(m.OpenShortcuts, PortName(n.Ports[0].ID))
	m.change(PortName(n.Ports[0].ID), func(l *Link) { l.Away = false })
	if ops, err := Compute(planConfig, []fabric.Network{n}, m.Observed); err != nil || len(ops) > 0 {
		t.Errorf("got %v, %v; want nothing to do", ops, err)
	}
}

func TestRulesOfOthersForBridgedFramesAreFound(t *testing.T) {
	const hook = "\tchain c {\n\t\ttype filter hook forward priority 0; policy accept;\n\t}\n}\n"
	for _, tt := range []struct {
		listing string
		want    bool
	}{
		{"", false},
		{"table bridge nm {\n" + hook, false},
		{"table inet theirs {\n" + hook, false},
		{"table bridge theirs {\n\tchain c {\n\t}\n}\n", false},
		{"table bridge theirs {\n}\ntable bridge nm {\n" + hook, false},
		{"table bridge nm {\n" + hook + "table bridge theirs {\n" + hook, true},
	} {
		if got := OthersBridge(tt.listing); got != tt.want {
			t.Errorf("got %t, want %t for\n%s", got, tt.want, tt.listing)
		}
	}
}

func TestRulesOfOthersForTheUnderlayAreFound(t *testing.T) {
	chain := func(hook string) string {
		return "\tchain c {\n\t\ttype filter hook " + hook + " priority 0; policy accept;\n\t}\n}\n"
	}
	for _, tt := range []struct {
		listing string
		want    bool
	}{
		{"", false},
		{"table inet nm {\n" + chain("input"), false},
		{"table bridge theirs {\n" + chain("input"), false},
		{"table ip6 theirs {\n" + chain("input"), false},
		{"table ip theirs {\n" + chain("forward"), false},
		{"table ip theirs {\n\tchain c {\n\t}\n}\n", false},
		{"table ip theirs {\n" + chain("input"), true},
		{"table inet theirs {\n" + chain("output"), true},
		{"table inet theirs {\n" + chain("prerouting"), true},
		{"table ip theirs {\n" + chain("postrouting"), true},
		{"table inet nm {\n" + chain("input") + "table netdev theirs {\n" + chain("ingress device \"eth0\""), true},
	} {
		if got := OthersUnderlay(tt.listing); got != tt.want {
			t.Errorf("got %t, want %t for\n%s", got, tt.want, tt.listing)
		}
	}
}
