package agentstream

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// The first words of the lines of a share of security groups. The lines after a group's are its own.
const (
	lineGroup  = "group"
	lineRule   = "rule"
	lineMember = "member"
	linePort   = "port"
)

// NewGroups returns the share of a network's security groups: their rules, members and ports on all nodes, which are the same on each.
func NewGroups(index int, groups []fabric.Group) (*Share, error) {
	var text strings.Builder
	for _, g := range groups {
		fmt.Fprintf(&text, "%s %s\n", lineGroup, g.ID)
		for _, r := range g.Rules {
			fmt.Fprintf(&text, "%s %s\n", lineRule, r)
		}
		for _, m := range g.Members {
			fmt.Fprintf(&text, "%s %s\n", lineMember, m)
		}
		for _, id := range g.Ports {
			fmt.Fprintf(&text, "%s %s\n", linePort, id)
		}
	}
	return newShare(owner{Groups: index}, []driver.File{{Content: []byte(text.String())}})
}

// groups returns the security groups of the share's network.
func (s *Share) groups() ([]fabric.Group, error) {
	var groups []fabric.Group
	for _, t := range s.texts {
		for line := range strings.Lines(t.Text) {
			var err error
			if groups, err = addLine(groups, strings.TrimSuffix(line, "\n")); err != nil {
				return nil, fmt.Errorf("the security groups of network %d: line %q: %w", s.of.Groups, line, err)
			}
		}
	}
	return groups, nil
}

// addLine adds what a line says to the groups before it.
func addLine(groups []fabric.Group, line string) ([]fabric.Group, error) {
	word, rest, _ := strings.Cut(line, " ")
	if word == lineGroup {
		return append(groups, fabric.Group{ID: rest}), nil
	}
	if len(groups) == 0 {
		return nil, errors.New("no group comes before it")
	}
	g := &groups[len(groups)-1]
	switch word {
	case lineRule:
		rule, err := securitygroup.Parse(rest)
		g.Rules = append(g.Rules, rule)
		return groups, err
	case lineMember:
		address, err := netip.ParseAddr(rest)
		g.Members = append(g.Members, address)
		return groups, err
	case linePort:
		g.Ports = append(g.Ports, rest)
		return groups, nil
	}
	return nil, errors.New("it begins with no known word")
}
