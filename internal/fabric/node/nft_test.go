package node

import (
	"net/netip"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

func TestAListingIsReadAsItWasLoaded(t *testing.T) {
	needRoot(t)
	networks := []fabric.Network{testNetwork(1, 2, 3, 4), testNetwork(4095, 2)}
	networks[0].Egress = true
	networks[1].Remotes = behind(networks[1], netip.MustParseAddr("198.18.0.2"), 3, 4)
	networks[0].Groups = testGroups(t, networks[0])
	cfg := plan.Config{Underlay: netip.MustParseAddr("198.18.0.1")}
	seen := plan.Observed{
		Links:    map[string]plan.Link{"up0": {Name: "up0", Kind: "device", MTU: 1500, Up: true}},
		CanGuard: true, Uplinks: []string{"up0"}, Underlay: netip.MustParsePrefix("198.18.0.0/24"), UnderlayMTU: 9000,
	}
	script := plannedRules(t, cfg, networks, seen)
	if script == "" {
		t.Fatal("no rules were planned for a node without any")
	}
	space := newSpace(t)
	r := rulesReader{}
	if err := r.load(t.Context(), space.Handle, script); err != nil {
		t.Fatal(err)
	}
	rules, err := r.read(t.Context(), space.Handle)
	if err != nil {
		t.Fatal(err)
	}
	seen.Rules = rules
	if more := plannedRules(t, cfg, networks, seen); more != "" {
		t.Errorf("the rules were loaded, and still to be done is:\n%s", more)
	}
	if len(r.ours) > 0 {
		t.Logf("this version of nft prints tables in its own way: %v", r.ours)
	}
}

// plannedRules returns the script of the one transaction that a plan has, "" for none.
func plannedRules(t testing.TB, cfg plan.Config, networks []fabric.Network, seen plan.Observed) string {
	t.Helper()
	ops, err := plan.Compute(cfg, networks, seen)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range ops {
		if rules, ok := op.(plan.LoadRules); ok {
			return rules.Script
		}
	}
	return ""
}
