package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// guardedNetwork is a network whose port has a security group.
func guardedNetwork(t *testing.T, index int) fabric.Network {
	t.Helper()
	n := testNetwork(index, 2)
	rule, err := securitygroup.Parse("in tcp 80 from 0.0.0.0/0")
	if err != nil {
		t.Fatal(err)
	}
	n.Groups = []fabric.Group{{ID: "web", Rules: []securitygroup.Rule{rule}, Ports: []string{n.Ports[0].ID}}}
	return n
}

func TestEachDifferenceInRulesIsNamedWithItsNetwork(t *testing.T) {
	one, two := guardedNetwork(t, 1), guardedNetwork(t, 2)
	networks := []fabric.Network{one, two}
	want := func() Ruleset { return desiredRules(Config{}, networks, Observed{CanGuard: true}) }
	port := PortName(two.Ports[0].ID)
	for name, tt := range map[string]struct {
		change func(seen Ruleset)
		want   []string
	}{
		"a pin is missing": {
			func(seen Ruleset) {
				sets := seen[bridgeTable].Sets
				sets["gateways"] = without(sets["gateways"], []string{fmt.Sprintf("%q . %s", port, two.Gateway)})
			},
			[]string{fmt.Sprintf("2: nftables element { %q . %s } of set gateways of table bridge nm: want present, got absent", port, two.Gateway)},
		},
		"a pin is too many": {
			func(seen Ruleset) {
				sets := seen[bridgeTable].Sets
				sets["egress"] = append(sets["egress"], fmt.Sprintf("%q . 02:00:00:00:00:01", port))
			},
			[]string{fmt.Sprintf("2: nftables element { %q . 02:00:00:00:00:01 } of set egress of table bridge nm: want absent, got present", port)},
		},
		"a chain of a port is missing": {
			func(seen Ruleset) { delete(seen[bridgeTable].Parts, "chain in_"+port) },
			[]string{"2: nftables chain in_" + port + " of table bridge nm: want present, got absent"},
		},
		"a rule that all share is missing": {
			func(seen Ruleset) {
				table := seen[bridgeTable]
				table.Text = strings.Replace(table.Text, "\t\tether type 8021q drop\n", "", 1)
				seen[bridgeTable] = table
			},
			[]string{"0: nftables table bridge nm: want ether type 8021q drop, got ether type 8021ad drop"},
		},
		"a table is missing": {
			func(seen Ruleset) { delete(seen, bridgeTable) }, []string{"0: nftables table bridge nm: want present, got absent"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			seen := want()
			tt.change(seen)
			var got []string
			for _, d := range differences(ownersOf(networks), want(), seen) {
				got = append(got, fmt.Sprintf("%d: %s: want %s, got %s", d.Network, d.Object, d.Want, d.Got))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPinsOfTunnelsBelongToTheNetworkThatTheyNumber(t *testing.T) {
	o := owners{}
	for set, element := range map[string]string{"vnis": "0x11", "remotes": "198.18.0.2 . 0x11 . 0x26e00010002 . 0xa408002"} {
		if got := o.ofElement(set, element); got != 17 {
			t.Errorf("element %s of %s is of network %d, want 17", element, set, got)
		}
	}
}

func TestManyDifferencesOfANetworkAreCountedAndHideNoOthers(t *testing.T) {
	seen := Ruleset{bridgeTable: {Sets: map[string][]string{"pins": nil}}}
	want := Ruleset{bridgeTable: {Sets: map[string][]string{"pins": {}}}}
	for i := range 100 {
		want[bridgeTable].Sets["pins"] = append(want[bridgeTable].Sets["pins"], fmt.Sprintf(`"nmbr1" . %03d`, i))
	}
	want[bridgeTable].Sets["pins"] = append(want[bridgeTable].Sets["pins"], `"nmbr2" . 1`)
	of := map[int]int{}
	last := ""
	for _, d := range differences(owners{"nmbr1": 1, "nmbr2": 2}, want, seen) {
		of[d.Network]++
		last = d.Got
	}
	if of[1] != maxDifferences+1 || of[2] != 1 || last != "84 more" {
		t.Errorf("got %v and %q at last, want %d of network 1, 1 of network 2, and 84 more", of, last, maxDifferences+1)
	}
}
