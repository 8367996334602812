package lifecycle

import (
	"fmt"
	"strings"
)

// Document writes docs/lifecycle.md from the tables.
func Document() string {
	var b strings.Builder
	b.WriteString(`# Lifecycles

Generated from ` + "`internal/lifecycle/tables.go`" + ` by ` + "`go test ./internal/lifecycle -update`" + `; do not edit.

Every change of phase is checked against these tables before it is committed. Every phase has an owner; a phase without a timer is at
rest: a user chose it, or only a user ends it.
`)
	document(&b, Clusters(), "A refusal and a failure are final: the user deletes the cluster and asks again. A cluster that failed keeps what it holds until then, or\n"+
		"until its time limit, so that there is something to look at. Deadlines count from the change of phase or the start of the leader, whichever is later.")
	document(&b, Members(), "Phases come from the agent of the member's node, as levels: one that did not last until the next report is skipped. While its node is\n"+
		"not heard of, a member is unknown, which is never treated as off. A name can be two things for a while: lost, and its old assignment\n"+
		"releasing.")
	document(&b, Nodes(), "A new leader starts death timers anew: the time in which nobody listened is no silence. Draining is no phase: a drained node is ready and\n"+
		"gets no new members.")
	document(&b, Machines(), "A machine is a node whose power and boot are the site's. Its node is another thing: an agent that is heard of or not; until the machine is\n"+
		"ready, its node is shown in the machine's phase. A boot and a stop are generations: an order of an older one is refused by the power\n"+
		"switch's gate, a boot token of an older one by the boot API.")
	return b.String()
}

func document[P ~string](b *strings.Builder, m Machine[P], text string) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n```mermaid\nstateDiagram-v2\n", strings.ToUpper(m.Name[:1])+m.Name[1:], text)
	for _, t := range m.Transitions {
		for _, from := range t.From {
			fmt.Fprintf(b, "    %s --> %s: %s\n", state(from), state(t.To), t.On)
		}
	}
	b.WriteString("```\n\n| phase | moved on by | at the latest |\n|---|---|---|\n")
	for _, p := range m.Phases {
		timer := p.Timer
		if timer == "" {
			timer = "at rest"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", p.Phase, p.Owner, timer)
	}
	b.WriteString("\n| from | on | to | why |\n|---|---|---|---|\n")
	for _, t := range m.Transitions {
		from := make([]string, len(t.From))
		for i, f := range t.From {
			from[i] = cell(f, "new")
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", strings.Join(from, ", "), t.On, cell(t.To, "gone"), t.Why)
	}
}

// state is a phase as a Mermaid diagram names it: what is not yet or no more is its start and end.
func state[P ~string](p P) string {
	if p == "" {
		return "[*]"
	}
	return string(p)
}

func cell[P ~string](p P, none string) string {
	if p == "" {
		return none
	}
	return "`" + string(p) + "`"
}
