package plan

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// maxDifferences bounds the differences in rules that are named for each network.
const maxDifferences = 16

// Drifts returns what is not as it should be until a plan is carried out. Differences in rules are named one by one, with the network that
// they concern; 0 means that they concern all. No operation mends an underlay that is too small for a network.
func Drifts(cfg Config, networks []fabric.Network, seen Observed, ops []Operation) []fabric.Drift {
	networks = fabric.OnBridges(networks)
	cfg, networks, seen = inside(cfg, networks, seen)
	var drifts []fabric.Drift
	for _, op := range ops {
		if _, rules := op.(LoadRules); rules {
			if found := differences(ownersOf(networks), desiredRules(cfg, networks, seen), seen.Rules); len(found) > 0 {
				drifts = append(drifts, found...)
				continue
			}
		}
		drifts = append(drifts, op.Drift())
	}
	return append(drifts, narrow(networks, seen)...)
}

// owners are the networks' indexes by the names that rules have for links and groups.
type owners map[string]int

func ownersOf(networks []fabric.Network) owners {
	all := owners{}
	for _, n := range networks {
		all[BridgeName(n.Index)], all[TunnelName(n.Index)], all[VLANName(n.Index)] = n.Index, n.Index, n.Index
		for _, p := range n.Ports {
			all[PortName(p.ID)] = n.Index
		}
		for _, g := range n.Groups {
			all[groupName(n, g.ID)] = n.Index
		}
	}
	return all
}

// ownName matches the names of links and groups within rules.
var ownName = regexp.MustCompile(`nm(?:br|vx|vl)\d+|nm[pg][0-9a-f]{10}`)

// of returns the network that a part of a table concerns.
func (o owners) of(text string) int { return o[ownName.FindString(text)] }

// ofElement returns the network that an element of a set concerns. The pins of tunnels name it by its number.
func (o owners) ofElement(set, element string) int {
	fields := strings.Split(element, " . ")
	vni := ""
	switch {
	case set == "vnis":
		vni = element
	case set == "remotes" && len(fields) == 4, set == "remotes6":
		vni = fields[1]
	default:
		return o.of(element)
	}
	index, _ := strconv.ParseInt(vni, 0, 32)
	return int(index)
}

// differences names what is missing from tables, and what they have besides.
func differences(o owners, want, seen Ruleset) []fabric.Drift {
	var all []fabric.Drift
	of := map[int]int{}
	add := func(network int, object, want, got string) {
		if of[network]++; of[network] <= maxDifferences {
			all = append(all, fabric.Drift{Network: network, Object: object, Want: want, Got: got})
		}
	}
	for _, name := range tables() {
		w, wanted := want[name]
		s, exists := seen[name]
		switch {
		case wanted != exists:
			add(0, "nftables table "+name, presence(wanted), presence(exists))
		case wanted:
			if w.Text != s.Text {
				line, got := firstDifference(w.Text, s.Text)
				add(0, "nftables table "+name, line, got)
			}
			partDifferences(o, name, w.Parts, s.Parts, add)
			elementDifferences(o, name, w.Sets, s.Sets, add)
		}
	}
	for _, name := range sortedKeys(seen) {
		if !isTable(name) {
			add(0, "nftables table "+name, "absent", "present")
		}
	}
	for network, count := range of {
		if more := count - maxDifferences; more > 0 {
			all = append(all, fabric.Drift{Network: network, Object: "nftables", Want: "no other difference", Got: fmt.Sprintf("%d more", more)})
		}
	}
	return all
}

func presence(there bool) string {
	if there {
		return "present"
	}
	return "absent"
}

// firstDifference returns the first lines of two texts that differ.
func firstDifference(want, got string) (wantLine, gotLine string) {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	line := func(lines []string, i int) string {
		if i < len(lines) {
			return strings.TrimSpace(lines[i])
		}
		return "nothing more"
	}
	i := 0
	for i < len(w) && i < len(g) && w[i] == g[i] {
		i++
	}
	return line(w, i), line(g, i)
}

// adder takes one difference.
type adder func(network int, object, want, got string)

// partDifferences names the sets and chains of single ports and groups that differ.
func partDifferences(o owners, table string, want, seen map[string]string, add adder) {
	names := append(sortedKeys(want), sortedKeys(seen)...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		w, wanted := want[name]
		s, exists := seen[name]
		object := fmt.Sprintf("nftables %s of table %s", name, table)
		switch {
		case wanted != exists:
			add(o.of(name), object, presence(wanted), presence(exists))
		case w != s:
			line, got := firstDifference(w, s)
			add(o.of(name), object, line, got)
		}
	}
}

// elementDifferences names the elements of sets that are missing or too many.
func elementDifferences(o owners, table string, want, seen map[string][]string, add adder) {
	names := append(sortedKeys(want), sortedKeys(seen)...)
	slices.Sort(names)
	for _, set := range slices.Compact(names) {
		network := func(element string) int {
			if owner := o.of(set); owner != 0 {
				return owner
			}
			return o.ofElement(set, element)
		}
		for _, e := range without(want[set], seen[set]) {
			add(network(e), fmt.Sprintf("nftables element { %s } of set %s of table %s", e, set, table), "present", "absent")
		}
		for _, e := range without(seen[set], want[set]) {
			add(network(e), fmt.Sprintf("nftables element { %s } of set %s of table %s", e, set, table), "absent", "present")
		}
	}
}
