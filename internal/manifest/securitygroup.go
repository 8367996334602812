package manifest

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// CheckSecurityGroup refuses a request for a security group that no project can have, whatever its rules mean. The error is an *Invalid.
func CheckSecurityGroup(req api.SecurityGroupRequest, src *Source) error {
	n := normalizer{src: src}
	n.label("name", req.Name, MaxSecurityGroupName)
	if req.Project != "" || src.Has("project") {
		n.label("project", req.Project, MaxProjectName)
	}
	n.rules("rules", req.Rules)
	return n.err()
}

// CheckSecurityGroupRules refuses a change of rules that changes nothing, or conflicts with itself. The error is an *Invalid.
func CheckSecurityGroupRules(change api.SecurityGroupRules, src *Source) error {
	n := normalizer{src: src}
	switch some := len(change.Add)+len(change.Remove) > 0; {
	case change.Rules != nil && some:
		n.add("rules", "", "replaces all rules and conflicts with add and remove; give either")
	case change.Rules == nil && !some:
		n.add("rules", "", "is missing; give rules to replace all, or add or remove some")
	}
	if change.Rules != nil {
		n.rules("rules", *change.Rules)
	}
	n.rules("add", change.Add)
	n.rules("remove", change.Remove)
	return n.err()
}

// rules checks the number and the length of rules.
func (n *normalizer) rules(path string, rules []string) {
	if len(rules) > MaxGroupRules {
		n.add(path, strconv.Itoa(len(rules)), "has %d rules; at most %d are possible", len(rules), MaxGroupRules)
		return
	}
	for i, rule := range rules {
		at := fmt.Sprintf("%s[%d]", path, i)
		if len(rule) > MaxRule {
			n.add(at, rule[:MaxRule]+"...", "has %d bytes; a rule has at most %d", len(rule), MaxRule)
		} else if j := slices.Index(rules, rule); j < i {
			n.add(at, rule, "%q is also %s[%d]; give every rule once", rule, path, j)
		}
	}
}
