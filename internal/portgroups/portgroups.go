// Package portgroups turns the security groups of a project into those of one network's ports, as nodes receive them, and reports rules that
// nodes can't enforce. It is pure. It must never let a port without restrictions that names a group: a group that is not stored allows nothing.
// Start with Of.
package portgroups

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// Port is a port of a network that has security groups.
type Port struct {
	ID      string
	Address netip.Addr
	// Groups are the names of its groups within their project.
	Groups []string
}

// Of returns the groups of a network's ports, on all nodes, by their names, and those that their rules name. Beyond are the ports of networks that
// are routed to this one: their addresses are among the groups' members. rulesOf returns the rules of the group with a name, nil for one that is
// not stored.
func Of(ports, beyond []Port, rulesOf func(name string) []string) ([]fabric.Group, error) {
	groups := map[string]*fabric.Group{}
	group := func(name string) *fabric.Group {
		if groups[name] == nil {
			groups[name] = &fabric.Group{ID: name}
		}
		return groups[name]
	}
	for _, p := range ports {
		for _, name := range p.Groups {
			g := group(name)
			g.Ports, g.Members = append(g.Ports, p.ID), append(g.Members, p.Address)
		}
	}
	var problem error
	for _, name := range sorted(groups) { // a group without ports here needs no rules: it is only named
		g := groups[name]
		if g.Rules, problem = parseAll(rulesOf(name)); problem != nil {
			return nil, fmt.Errorf("security group %s: %w", name, problem)
		}
		for _, r := range g.Rules {
			if r.Group != "" {
				group(r.Group)
			}
		}
	}
	for _, p := range beyond {
		for _, name := range p.Groups {
			if g := groups[name]; g != nil {
				g.Members = append(g.Members, p.Address)
			}
		}
	}
	all := make([]fabric.Group, 0, len(groups))
	for _, name := range sorted(groups) {
		g := groups[name]
		slices.Sort(g.Ports)
		slices.SortFunc(g.Members, netip.Addr.Compare)
		g.Members = slices.Compact(g.Members) // a member on its way has two ports with one address
		all = append(all, *g)
	}
	return all, nil
}

func sorted(groups map[string]*fabric.Group) []string {
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func parseAll(texts []string) ([]securitygroup.Rule, error) {
	rules := make([]securitygroup.Rule, 0, len(texts))
	for _, text := range texts {
		r, err := securitygroup.Parse(text)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// Normal returns rules as they are stored: each as it is always written. It returns an error for rules that nodes can't enforce.
func Normal(name string, texts []string) ([]string, error) {
	rules, err := parseAll(texts)
	if err != nil {
		return nil, err
	}
	groups := []fabric.Group{{ID: name, Rules: rules}}
	for _, other := range named(rules) {
		if other != name {
			groups = append(groups, fabric.Group{ID: other})
		}
	}
	if err := fabric.Validate([]fabric.Network{{Network: anyNetwork(), Groups: groups}}); err != nil {
		return nil, fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "network 1: "))
	}
	normal := make([]string, len(rules))
	for i, r := range rules {
		normal[i] = r.String()
	}
	return normal, nil
}

// anyNetwork is a network to check groups on.
func anyNetwork() api.Network {
	prefix := netip.MustParsePrefix("10.0.0.0/8")
	return api.Network{Index: 1, Prefix: prefix, Gateway: prefix.Addr().Next()}
}

// Named returns the names of the groups that rules name, in order. Rules that can't be read name none.
func Named(texts []string) []string {
	var rules []securitygroup.Rule
	for _, text := range texts {
		if r, err := securitygroup.Parse(text); err == nil {
			rules = append(rules, r)
		}
	}
	return named(rules)
}

func named(rules []securitygroup.Rule) []string {
	var names []string
	for _, r := range rules {
		if r.Group != "" {
			names = append(names, r.Group)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
