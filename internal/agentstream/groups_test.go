package agentstream

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// webGroups are two security groups of which the first has members; each rule is in words.
func webGroups(t *testing.T, members []netip.Addr, rules ...string) []fabric.Group {
	t.Helper()
	web := fabric.Group{ID: "web", Members: members}
	for _, text := range rules {
		rule, err := securitygroup.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		web.Rules = append(web.Rules, rule)
	}
	for _, m := range members {
		web.Ports = append(web.Ports, "u1.c1-"+m.String()+".1+1")
	}
	return []fabric.Group{web, {ID: "ops"}}
}

func TestSecurityGroupsArriveInTheirNetworks(t *testing.T) {
	server, client, down := ends()
	groups := webGroups(t, []netip.Addr{underlayOf(1), underlayOf(2)}, "in tcp 80-90 from 10.0.0.0/8", "out any to group ops")
	share, err := NewGroups(3, groups)
	if err != nil {
		t.Fatal(err)
	}
	sent := spread(t, 7, nil)
	sent.Groups = []*Share{share}
	sent.Networks = append(sent.Networks, fabric.Network{Network: api.Network{Index: 4}})
	got, _ := exchange(t, server, client, down, sent)
	if diff := cmp.Diff(groups, got.Networks[0].Groups, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" || len(got.Networks[0].Remotes) != 999 {
		t.Errorf("the network's groups differ (-sent +got), or it has no members on other nodes:\n%s", diff)
	}
	if len(got.Networks[1].Groups) > 0 || got.Groups != nil {
		t.Errorf("a network without groups has %v, and shares are left: %v", got.Networks[1].Groups, got.Groups)
	}
	without := *sent
	without.Groups = nil
	if got, _ := exchange(t, server, client, down, &without); len(got.Networks[0].Groups) > 0 {
		t.Errorf("the network keeps groups that are gone: %v", got.Networks[0].Groups)
	}
}

func TestAMemberThatJoinsASecurityGroupIsALineMore(t *testing.T) {
	server, client, down := ends()
	var members []netip.Addr
	for i := range 1000 {
		members = append(members, underlayOf(i))
	}
	send := func(count int) int {
		share, err := NewGroups(3, webGroups(t, members[:count], "in any from group web"))
		if err != nil {
			t.Fatal(err)
		}
		sent := spread(t, 7, nil)
		sent.Groups = []*Share{share}
		got, wire := exchange(t, server, client, down, sent)
		if len(got.Networks[0].Groups[0].Members) != count || len(got.Networks[0].Groups[0].Ports) != count {
			t.Errorf("of %d members, %d arrive", count, len(got.Networks[0].Groups[0].Members))
		}
		return len(strings.Join(wire, ""))
	}
	if whole, more := send(999), send(1000); more > 1000 || whole < 20_000 {
		t.Errorf("one member more takes %d bytes, and all take %d", more, whole)
	}
}

func TestGroupsThatCannotBeReadAreAnError(t *testing.T) {
	for _, text := range []string{"port p\n", "group web\nrule in tcp\n", "group web\nmember x\n", "group web\nhost h\n"} {
		s := &Share{of: owner{Groups: 3}, texts: []*sharedText{{Text: text}}}
		if _, err := s.groups(); err == nil || !strings.Contains(err.Error(), "security groups of network 3") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}
