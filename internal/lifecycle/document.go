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
rest: a user chose it, or only a user can end it.
`)
	document(&b, Clusters(), "A refusal and a failure are final: the user deletes the cluster and creates it again. A cluster that failed keeps its resources until then,\n"+
		"or until its time limit, so that its user can inspect it. Deadlines count from the change of phase or the start of the leader, whichever is later.")
	document(&b, Members(), "Phases come from the agent of the member's node, as levels: a phase that ends before the next report, or before the leader\n"+
		"looks again, is skipped. So any reported phase can follow any other while the leader or its store stands still. While its node is\n"+
		"not reporting, a member is unknown, which is never treated as off. One name can have two phases for a while: lost, and its old\n"+
		"assignment releasing.")
	document(&b, Nodes(), "A new leader restarts all death timers: time without a leader does not count as silence. Draining is not a phase: a drained node is\n"+
		"ready and gets no new members.")
	document(&b, Machines(), "A machine is a node whose power and boot the site controls. Its node is a separate record: an agent that reports or not. Until the\n"+
		"machine is ready, its node is shown in the machine's phase. A boot and a stop are generations: the power switch's gate refuses an order\n"+
		"of an older generation, and the boot API refuses a boot token of an older generation.")
	document(&b, Jobs(), "Phases between submission and end come from the job's member, as levels: a job that ends before the next report goes from pending to\n"+
		"its end. Cancellation is no phase: a user requests it, and the job ends when its member reports its end.")
	document(&b, Builds(), "As with jobs, a user requests cancellation, and the build ends when its node has ended it. An attempt is the stay at one node: what a node\n"+
		"reports of an earlier attempt does not count.")
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
