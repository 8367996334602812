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

// A change of parts must not make the node forget how its nft prints the rest: each further plan would make the table anew.
func TestHowATableIsPrintedIsKnownAfterAChangeOfItsParts(t *testing.T) {
	const name, rendered, printed = "bridge nm", "table bridge nm {\n\tours\n}\n", "table bridge nm {\n\tits own way\n}\n"
	r := rulesReader{}
	r.learn(plan.Ruleset{name: {Text: rendered}}, plan.Ruleset{name: {Text: printed}})
	r.learn(plan.Ruleset{name: {Text: plan.Parts(name)}}, plan.Ruleset{name: {Text: rendered}}) // a listing is translated as it is read
	if r.ours[printed] != rendered {
		t.Errorf("after a change of parts, known is %q", r.ours)
	}
	r.learn(plan.Ruleset{name: {Text: "another"}}, plan.Ruleset{name: {Text: "another"}})
	if len(r.ours) > 0 {
		t.Errorf("the table is gone, and known is still %q", r.ours)
	}
}
