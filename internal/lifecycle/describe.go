package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// MemberPhase is the phase of a member as the leader knows it, with the reason.
func MemberPhase(a ClusterAssignment, observed map[string]Observation, nodes map[string]NodeState) (api.MemberPhase, string) {
	seen, heard := observed[a.ID]
	node := nodes[a.Node]
	switch {
	case a.Releasing:
		return api.MemberReleasing, seen.Message
	case a.Spare:
		return api.MemberSpare, ""
	case node.Phase == api.NodeDown:
		return api.MemberUnknown, fmt.Sprintf("node %s is down", a.Node)
	case node.Phase != api.NodeReady || !node.Reported:
		return api.MemberUnknown, fmt.Sprintf("node %s is not reporting", a.Node)
	case !heard || seen.Phase == "":
		return api.MemberAssigned, ""
	case seen.Phase == api.MemberReleasing:
		return api.MemberUnhealthy, "its node is removing the member, which nobody requested"
	default:
		return seen.Phase, seen.Message
	}
}

// unknown: its node is not heard of, which is no evidence of anything.
func (m member) unknown() bool { return m.phase == api.MemberUnknown }

// lost says why it is.
func (m member) lost() string { return lostText(m.Member, m.Node, m.loss) }

// describe says what a member is. The steps of its coming up are one: each of them would be a commit.
func (m member) describe() string {
	switch m.phase {
	case api.MemberAssigned, api.MemberPreparing, api.MemberStarting:
		if m.message == "" {
			return fmt.Sprintf("%s on %s is coming up", m.Member, m.Node)
		}
	}
	text := fmt.Sprintf("%s on %s is %s", m.Member, m.Node, m.phase)
	if m.message != "" {
		text += " (" + m.message + ")"
	}
	return text
}

func lostText(name, node, reason string) string {
	return fmt.Sprintf("%s on %s is lost (%s)", name, node, reason)
}

// listed is how many things a message names.
const listed = 4

func list(items []string) string {
	if more := len(items) - listed; more > 0 {
		return strings.Join(items[:listed], "; ") + fmt.Sprintf("; and %d more", more)
	}
	return strings.Join(slices.Clone(items), "; ")
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
