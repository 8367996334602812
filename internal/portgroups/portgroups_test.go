package portgroups

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

func port(id string, last byte, groups ...string) Port {
	return Port{ID: id, Address: netip.AddrFrom4([4]byte{10, 1, 0, last}), Groups: groups}
}

// texts are the groups as lines: a group's name, its rules, its members and its ports.
func texts(groups []fabric.Group) []string {
	var lines []string
	for _, g := range groups {
		lines = append(lines, fmt.Sprintf("%s %v %v %v", g.ID, g.Rules, g.Members, g.Ports))
	}
	return lines
}

func TestANetworkHasTheGroupsOfItsPortsAndTheNamesOfOthers(t *testing.T) {
	rules := map[string][]string{
		"db": {"in tcp 5432 from group web", "in any from group db"}, "web": {"in tcp 80 from 0.0.0.0/0", "in tcp 22 from group admin"},
		"admin": {"in tcp 22 from group other"},
	}
	ports := []Port{port("b", 3, "web", "db"), port("a", 2, "web"), port("a-moving", 2, "web")}
	got, err := Of(ports, nil, func(name string) []string { return rules[name] })
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"admin [] [] []", // its rules concern no port here, so what they name is not needed
		"db [in tcp 5432 from group web in any from group db] [10.1.0.3] [b]",
		"web [in tcp 80 from 0.0.0.0/0 in tcp 22 from group admin] [10.1.0.2 10.1.0.3] [a a-moving b]",
	}
	if diff := cmp.Diff(want, texts(got)); diff != "" {
		t.Error(diff)
	}
	slices.Reverse(ports)
	if again, _ := Of(ports, nil, func(name string) []string { return rules[name] }); !cmp.Equal(texts(got), texts(again)) {
		t.Errorf("the order of ports changes the groups to %v", texts(again))
	}
}

func TestAPortOfAGroupThatIsNotStoredIsClosed(t *testing.T) {
	got, err := Of([]Port{port("a", 2, "gone")}, nil, func(string) []string { return nil })
	if err != nil || !slices.Equal(texts(got), []string{"gone [] [10.1.0.2] [a]"}) {
		t.Errorf("got %v, %v; want a group that allows nothing", texts(got), err)
	}
}

func TestRulesAreStoredAsTheyAreAlwaysWritten(t *testing.T) {
	got, err := Normal("web", []string{"in  tcp 22-22 from 10.0.0.0/8", "in any from group web"})
	if err != nil || !slices.Equal(got, []string{"in tcp 22 from 10.0.0.0/8", "in any from group web"}) {
		t.Errorf("got %q, %v", got, err)
	}
	if got := Named([]string{"in any from group b", "out any to group a", "in tcp 22 from 10.0.0.0/8", "in udp from group b"}); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the rules name %v, want a and b", got)
	}
}

func TestRulesThatNodesCannotEnforceAreRefusedWithTheReason(t *testing.T) {
	many := make([]string, fabric.MaxGroupsNamed+1)
	for i := range many {
		many[i] = fmt.Sprintf("in any from group g%d", i)
	}
	for want, rules := range map[string][]string{
		"direction \"into\" is neither in nor out":            {"into tcp 22 from 10.0.0.0/8"},
		"rule 2 (in tcp 80 from 10.1.0.0/16) changes nothing": {"in tcp from 10.0.0.0/8", "in tcp 80 from 10.1.0.0/16"},
		`rules for "in" name 17 groups; the limit is 16`:      many,
	} {
		if _, err := Normal("web", rules); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "network 1") {
			t.Errorf("%q: got %v, want %q", rules, err, want)
		}
	}
}
