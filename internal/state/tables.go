package state

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// tables are the decoded contents of the state. Values are never modified, only replaced.
type tables struct {
	// byKind has the table of each kind, a *table[T] by its *kind[T]; shown are the same tables.
	byKind map[any]any
	shown  []interface{ show(v *View) }
	events map[string]eventLog // by name
	chunks map[string][]api.Assignment
	// volumeUIDs are the UIDs of volumes by their names: their rows are by UID, and the keys of their intents are names.
	volumeUIDs map[string]string
	// past is what usage records come to, by PROJECT/USER, usedUntil the newest end of a span in one.
	past      sorted[usage.Past]
	usedUntil time.Time
	leader    string
	// offers is View.Offers: another mark after each change of what nodes offer.
	offers *mark
}

// mark is told from all others by its address, which a type without size would not promise.
type mark struct{ _ byte }

func newTables() tables {
	t := tables{byKind: map[any]any{}, events: map[string]eventLog{}, chunks: map[string][]api.Assignment{}, volumeUIDs: map[string]string{}, offers: new(mark)}
	for _, r := range kinds {
		r.open(&t)
	}
	tableOf(&t, projects).put(api.DefaultProject, defaultProject())
	return t
}

// put takes up a key as written. One of no kind is ignored.
func (t *tables) put(e store.Entry) error {
	if e.Key == store.ElectionKey {
		t.leader = string(e.Value)
		return nil
	}
	prefix, rest := splitKey(e.Key)
	if r := registered(prefix); r != nil {
		return r.put(t, rest, e)
	}
	return nil
}

// remove takes up a deleted key.
func (t *tables) remove(key string) {
	if key == store.ElectionKey {
		t.leader = ""
		return
	}
	prefix, rest := splitKey(key)
	if r := registered(prefix); r != nil {
		r.remove(t, rest)
	}
}

// view is what the tables hold, shared with them.
func (t *tables) view(revision int64) *View {
	v := &View{Revision: revision, Leader: t.leader, Offers: t.offers, Past: t.past.share(), UsedUntil: t.usedUntil}
	for _, one := range t.shown {
		one.show(v)
	}
	return v
}

func takeIntent(t *tables, name string, in *api.ClusterIntent, revision int64) error {
	next := tableOf(t, clusters).edit(name)
	next.Intent, next.intentRevision, next.Revision = *in, revision, revision
	tableOf(t, clusters).put(name, next)
	return nil
}

func takeRecord(t *tables, name string, rec *api.ClusterRecord, revision int64) error {
	next := tableOf(t, clusters).edit(name)
	next.Record, next.recordRevision, next.Revision = rec, revision, revision
	next.chunks, next.clean = make([]decision.Chunk, len(rec.Chunks)), make(map[string]bool, len(rec.Clean))
	for i, ref := range rec.Chunks {
		as, ok := t.chunks[keyChunk(rec.UID, ref.ID)]
		if !ok || len(as) != ref.Count {
			return fmt.Errorf("stored state of cluster %q is damaged: generation %d names chunk %s with %d assignments, but it has %d; restore a backup",
				name, rec.Generation, ref.ID, ref.Count, len(as))
		}
		next.chunks[i] = decision.Chunk{Ref: ref, Assignments: as}
	}
	for _, id := range rec.Clean {
		next.clean[id] = true
	}
	next.held, next.nodes = heldTotal(next.chunks), nodesOf(next)
	tableOf(t, clusters).put(name, next)
	return nil
}

// dropCluster follows the end of an intent. Intent and record go in one commit (Leader.Commit), so the cluster is gone.
func dropCluster(t *tables, name string) { tableOf(t, clusters).remove(name) }

func takeChunk(t *tables, rest string, as *[]api.Assignment, _ int64) error {
	t.chunks[prefixChunk+rest] = *as
	return nil
}

func dropChunk(t *tables, rest string) { delete(t.chunks, prefixChunk+rest) }

func takeEventLog(t *tables, name string, log *eventLog, _ int64) error {
	t.events[name] = *log
	return nil
}

func dropEventLog(t *tables, name string) { delete(t.events, name) }

// takeUsage adds a record to what its owner used. Nothing follows its removal, see usage.Past.
func takeUsage(t *tables, _ string, r *api.UsageRecord, _ int64) error {
	project, user := usage.Owner(r)
	key := project + "/" + user
	past := t.past.get(key)
	if past == nil {
		past = &usage.Past{Project: project, User: user}
	}
	t.past.set(key, past.Plus(r))
	for i := range r.Spans {
		if to := r.Spans[i].To; to.After(t.usedUntil) {
			t.usedUntil = to
		}
	}
	return nil
}

func takeAgent(t *tables, name string, agent *api.NodeRecord, _ int64) error {
	t.offers = new(mark)
	changeNode(t, name, func(n *Node) { n.Agent = agent })
	return nil
}

func takeControl(t *tables, name string, control *api.NodeControl, _ int64) error {
	t.offers = new(mark)
	changeNode(t, name, func(n *Node) { n.Control = control })
	return nil
}

func takeFaults(t *tables, name string, faults *api.FaultRecord, revision int64) error {
	changeNode(t, name, func(n *Node) { n.Faults, n.faultsRevision = faults, revision })
	return nil
}

func takeMeasures(t *tables, name string, measures *api.NodeMeasures, _ int64) error {
	changeNode(t, name, func(n *Node) { n.Measures = measures })
	return nil
}

func takeIdentity(t *tables, name string, identity *api.NodeIdentity, _ int64) error {
	changeNode(t, name, func(n *Node) { n.Identity = identity })
	return nil
}

func takeMachine(t *tables, name string, in *api.MachineIntent, revision int64) error {
	t.offers = new(mark)
	changeMachine(t, name, revision, func(m *Machine) { m.Intent, m.intentRevision = *in, revision })
	return nil
}

func takeMachineRecord(t *tables, name string, rec *api.MachineRecord, revision int64) error {
	changeMachine(t, name, revision, func(m *Machine) { m.Record, m.recordRevision = rec, revision })
	return nil
}

func takeMachineLog(t *tables, name string, log *api.BMCLogRecord, revision int64) error {
	changeMachine(t, name, revision, func(m *Machine) { m.LogMark, m.logRevision = log.Mark, revision })
	return nil
}

func takeHardware(t *tables, name string, hardware *api.Hardware, revision int64) error {
	t.offers = new(mark)
	changeMachine(t, name, revision, func(m *Machine) { m.Hardware = hardware })
	return nil
}

// changeMachine replaces the machine of a node by a copy with one part of it changed.
func changeMachine(t *tables, name string, revision int64, change func(*Machine)) {
	changeNode(t, name, func(n *Node) {
		next := new(Machine)
		if n.Machine != nil {
			*next = *n.Machine
		}
		change(next)
		next.Revision = revision
		n.Machine = next
	})
}

// changeNode replaces a node by a copy with one part of it changed.
func changeNode(t *tables, name string, change func(*Node)) {
	next := tableOf(t, nodes).edit(name)
	next.Name = name
	change(next)
	tableOf(t, nodes).put(name, next)
}

func dropAgent(t *tables, name string) { dropPart(t, name, func(n *Node) { n.Agent = nil }) }

func dropControl(t *tables, name string) { dropPart(t, name, func(n *Node) { n.Control = nil }) }

func dropFaults(t *tables, name string) {
	dropPart(t, name, func(n *Node) { n.Faults, n.faultsRevision = nil, 0 })
}

func dropMeasures(t *tables, name string) { dropPart(t, name, func(n *Node) { n.Measures = nil }) }

func dropIdentity(t *tables, name string) { dropPart(t, name, func(n *Node) { n.Identity = nil }) }

// dropMachine follows the end of an intent. A machine's keys go in one commit (Leader.ForgetMachine).
func dropMachine(t *tables, name string) { dropPart(t, name, func(n *Node) { n.Machine = nil }) }

// dropPart takes a part from a node, which is gone with its last part.
func dropPart(t *tables, name string, drop func(*Node)) {
	if tableOf(t, nodes).get(name) == nil {
		return
	}
	t.offers = new(mark)
	next := tableOf(t, nodes).edit(name)
	drop(next)
	if next.Machine == nil && next.Agent == nil && next.Control == nil && next.Identity == nil && next.Faults == nil && next.Measures == nil {
		tableOf(t, nodes).remove(name)
		return
	}
	tableOf(t, nodes).put(name, next)
}

// heldTotal sums up the assignments that are held. A member that moves is counted where it is, and not where it is to go on.
func heldTotal(chunks []decision.Chunk) resource.Amounts {
	saved := map[string]bool{}
	for _, ch := range chunks {
		for i := range ch.Assignments {
			if a := &ch.Assignments[i]; a.Saved {
				saved[a.ID] = true
			}
		}
	}
	held := resource.OfAssignments(func(yield func(*api.Assignment) bool) {
		for _, ch := range chunks {
			for i := range ch.Assignments {
				a := &ch.Assignments[i]
				if !ch.Ref.Releasing && (!a.IsSuccessor() || saved[a.From]) && !yield(a) {
					return
				}
			}
		}
	})
	if held.Vector[resource.Members] > 0 {
		held.Vector[resource.Clusters] = 1
	}
	return held
}

// nodesOf returns the nodes that a cluster has something in use on, in order.
func nodesOf(c *Cluster) []string {
	var names []string
	for a := range c.All() {
		names = append(names, a.Node)
	}
	slices.Sort(names)
	return slices.Clip(slices.Compact(names))
}
