package topology

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

func recorded(tb testing.TB, name string) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

func parsed(tb testing.TB, name string) api.FabricTopology {
	tb.Helper()
	t, err := Parse(recorded(tb, name))
	if err != nil {
		tb.Fatal(err)
	}
	return t
}

// outline is a topology in words, one line for each switch and link.
func outline(t api.FabricTopology) string {
	var b strings.Builder
	for _, s := range t.Switches {
		b.WriteString("switch " + s.Name + " level " + string(rune('0'+s.Level)) + " rail " + string(rune('0'+s.Rail)) + "\n")
	}
	for _, l := range t.Links {
		b.WriteString(LinkText(l) + " " + l.Width + l.Speed + " " + api.Rate(l.RateBitsPerSecond).String() + "\n")
	}
	return b.String()
}

func TestATreeIsReadFromWhatIbnetdiscoverPrints(t *testing.T) {
	t.Parallel()
	want := `switch spine1 level 1 rail 0
switch spine2 level 1 rail 0
switch leaf1 level 0 rail 0
switch leaf2 level 0 rail 0
link between switch spine1 port 1 and switch leaf1 port 7 4xSDR 10Gbit
link between switch spine1 port 2 and switch leaf2 port 7 4xSDR 10Gbit
link between switch spine2 port 1 and switch leaf1 port 8 4xSDR 10Gbit
link between switch spine2 port 2 and switch leaf2 port 8 4xSDR 10Gbit
link between switch leaf1 port 1 and node n1 4xSDR 10Gbit
link between switch leaf1 port 2 and node n2 4xSDR 10Gbit
link between switch leaf1 port 3 and node n3 4xSDR 10Gbit
link between switch leaf2 port 1 and node n4 4xSDR 10Gbit
link between switch leaf2 port 2 and node n5 4xSDR 10Gbit
link between switch leaf2 port 3 and node n6 port 2 4xSDR 10Gbit
`
	if diff := cmp.Diff(want, outline(parsed(t, "tree.ibnetdiscover"))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestChassisRoutersAndQuotationMarksAreRead(t *testing.T) {
	t.Parallel()
	want := `switch MF0;sw-"a":MSX6036F/U1 level 0 rail 0
link between switch MF0;sw-"a":MSX6036F/U1 port 1 and node n1 mlx5_0 4xHDR 200Gbit
link between switch MF0;sw-"a":MSX6036F/U1 port 36 and node router 2xHDR 100Gbit
`
	if diff := cmp.Diff(want, outline(parsed(t, "chassis.ibnetdiscover"))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := parsed(t, "manual.ibnetdiscover"); len(got.Switches) != 2 || len(got.Hosts) != 4 || len(got.Links) != 7 {
		t.Errorf("the manual's example has %d switches, %d hosts and %d links, want 2, 4 and 7", len(got.Switches), len(got.Hosts), len(got.Links))
	}
}

func TestAnUnreadableTopologyIsAnErrorThatNamesItsLine(t *testing.T) {
	t.Parallel()
	const head = "Switch\t8 \"S-0000000000200001\"\t# \"s1\" base port 0 lid 0 lmc 0\n"
	for _, tt := range []struct{ name, text, want string }{
		{"a port before any device", `[1]	"S-0000000000200001"[1]`, "line 1 of the topology: port"},
		{"a line of another program", "ibwarn: no such device", "line 1 of the topology: \"ibwarn"},
		{"a broken port", head + "[1]\t\"S-00", "line 2 of the topology"},
		{"a switch of too many ports", strings.Replace(head, "8", "256", 1), "at most 255 ports"},
		{"a link to a device that is not listed", head + "[1]\t\"H-0000000000000001\"[1](2) \t# \"n1\" lid 0 4xSDR\n", "but not the device"},
	} {
		if _, err := Parse(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got error %v, want one with %q", tt.name, err, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"tree.ibnetdiscover", "chassis.ibnetdiscover", "manual.ibnetdiscover"} {
		f.Add(recorded(f, name))
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Parse(text)
		if err != nil {
			return
		}
		ids := map[string]bool{}
		for _, s := range got.Switches {
			ids[s.ID] = true
		}
		for _, h := range got.Hosts {
			ids[h.ID] = true
		}
		for _, l := range got.Links {
			if !ids[l.From.ID] || !ids[l.To.ID] || l.RateBitsPerSecond < 0 {
				t.Errorf("link %+v has an end that is no device, or a negative rate", l)
			}
		}
		_ = Draw(&got, nil)
	})
}

func FuzzParseCounters(f *testing.F) {
	f.Add(recorded(f, "tree.after"))
	f.Fuzz(func(t *testing.T, text string) {
		counters, err := ParseCounters(text)
		for at, counts := range counters {
			for name, n := range counts {
				if err == nil && n < 0 {
					t.Errorf("counter %s of %v is %d", name, at, n)
				}
			}
		}
	})
}

func reading(tb testing.TB, name string, at time.Time) *Reading {
	tb.Helper()
	counters, err := ParseCounters(recorded(tb, name))
	if err != nil {
		tb.Fatal(err)
	}
	r := &Reading{At: at, Topology: parsed(tb, "tree.ibnetdiscover"), Counters: counters}
	r.Topology.Fabric = "ib0"
	NameNodes(&r.Topology, []Known{{Node: "n1"}, {Node: "n2"}, {Node: "n3"}, {Node: "n4"}, {Node: "n5"}, {Node: "n6"}})
	return r
}

var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

var update = flag.Bool("update", false, "write the golden files anew")

func TestABadCableIsNamedAvoidedAndTrustedAgainOnceItIsQuiet(t *testing.T) {
	t.Parallel()
	before, after := reading(t, "tree.before", noon), reading(t, "tree.after", noon.Add(time.Minute))
	if faults := Faults(nil, nil, before); len(faults) != 0 {
		t.Errorf("errors of an unknown time are no fault: %v", faults)
	}
	Count(before, after)
	faults := Faults(nil, before, after)
	want := []api.FabricFault{{
		Message: "link between switch leaf1 port 2 and node n2: 120 symbol errors in 60 s", Nodes: []string{"n2"}, Since: after.At, LastSeenAt: after.At,
	}}
	if diff := cmp.Diff(want, faults); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
	if places := Places(&after.Topology); places["n2"].Fault == "" || places["n1"].Fault != "" {
		t.Errorf("n2 is to be avoided, n1 is not: %+v", places)
	}
	later := reading(t, "tree.after", after.At.Add(quiet-time.Second))
	if got := Faults(faults, after, later); len(got) != 1 {
		t.Errorf("the link has been quiet for less than %s, and is trusted: %v", quiet, got)
	}
	later = reading(t, "tree.after", after.At.Add(quiet))
	if got := Faults(faults, after, later); len(got) != 0 {
		t.Errorf("the link has been quiet for %s, and is not trusted: %v", quiet, got)
	}
}

func TestClearedCountersAreNoErrors(t *testing.T) {
	t.Parallel()
	before, after := reading(t, "tree.after", noon), reading(t, "tree.before", noon.Add(time.Minute))
	for at := range after.Counters {
		after.Counters[at] = map[string]int64{"SymbolErrorCounter": 1}
	}
	if faults := Faults(nil, before, after); len(faults) != 0 {
		t.Errorf("one symbol error since the counters were cleared is no fault: %v", faults)
	}
}

func TestLoadsAreWhatEndsSentBetweenTwoReadings(t *testing.T) {
	t.Parallel()
	before, after := reading(t, "tree.before", noon), reading(t, "tree.after", noon.Add(time.Second))
	at := Place{"0000000000200002", "2"}
	before.Counters[at], after.Counters[at] = map[string]int64{"PortXmitData": 1000}, map[string]int64{"PortXmitData": 1000 + 1_000_000_000/32}
	Count(before, after)
	for _, l := range after.Topology.Links {
		if l.From.ID == at.GUID && l.From.Port == at.Port && l.From.SentBitsPerSecond != 1_000_000_000 {
			t.Errorf("sent %d bits per second, want 10^9", l.From.SentBitsPerSecond)
		}
	}
}

func TestNodesAreFoundByGUIDAndElseByTheNameOfTheHost(t *testing.T) {
	t.Parallel()
	top := parsed(t, "tree.ibnetdiscover")
	NameNodes(&top, []Known{{Node: "a", At: []string{"0x100001"}}, {Node: "b", At: []string{"0000000000100002"}}, {Node: "n3"}, {Node: "c"}})
	got := map[string]string{}
	for _, n := range Nodes(&top) {
		got[n.Node] = n.Switch + ":" + n.SwitchPort + " " + n.At
	}
	want := map[string]string{"a": "leaf1:1 0000000000100001", "b": "leaf1:2 0000000000100003", "n3": "leaf1:3 0000000000100005"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestSwitchesOfLLDPAreLeaves(t *testing.T) {
	t.Parallel()
	nic := func(name, system, port string) api.NIC {
		return api.NIC{Name: name, SpeedMbps: 25_000, LLDP: &api.Neighbor{Chassis: "aa:" + system, Port: port, System: system}}
	}
	top := FromNeighbors(map[string][]api.NIC{"n1": {nic("eth0", "tor1", "swp1"), {Name: "eth1"}}, "n2": {nic("eth0", "tor1", "swp2")}, "n3": {nic("eth0", "tor2", "swp1")}})
	if got := outline(top); !strings.Contains(got, "link between switch tor1 port swp2 and node n2 port eth0  25Gbit\n") || len(top.Links) != 3 {
		t.Errorf("got\n%s", got)
	}
	if places := Places(&top); places["n1"].Switch != "tor1" || places["n3"].Switch != "tor2" || places["n1"].RDMA {
		t.Errorf("got %+v", places)
	}
}

func TestAPictureOfAFabricIsGolden(t *testing.T) {
	t.Parallel()
	before, after := reading(t, "tree.before", noon), reading(t, "tree.after", noon.Add(time.Minute))
	Count(before, after)
	Faults(nil, before, after)
	after.Topology.ReadAt = &after.At
	got := Draw(&after.Topology, []api.FabricPartition{
		{Number: 0x10, Network: "c1", Ports: []string{"0000000000100001", "0000000000100003"}, LoadBitsPerSecond: 1_500_000_000},
		{Number: 0x11, Network: "storage <&>", Ports: []string{"0000000000100001", "000000000010000c"}},
	})
	const golden = "testdata/tree.svg"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(recorded(t, "tree.svg"), got); diff != "" {
		t.Errorf("(-want +got; go test -update writes it)\n%s", diff)
	}
}
