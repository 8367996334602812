package situation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
)

// Room is what is free at the site, kept current from one view of the state to the next: a change costs what it touches, not what
// the site holds. One with nothing but its Offers knows nothing yet. It is owned by one goroutine.
type Room struct {
	// Offers is what the site carries for all its machines.
	Offers offer.Site
	// Fabrics know where nodes are.
	Fabrics Fabrics
	// Encrypted: the underlay is.
	Encrypted bool
	// Now is the time by which measurements are fresh; zero: none is.
	Now time.Time

	free *placement.View
	last *state.View
	// available is what every node was to placement when it was last told.
	available map[string]placement.Availability
	// held are the assignments of each cluster that are not clean, by its UID, and whether they are releasing.
	held map[string]map[string]bool
	// places are where nodes are, as of charts.
	places map[string][]api.NodePlace
	charts int64
	// hosts are the cells of the InfiniBand ports that hosts have, by GUID, as of charts.
	hosts map[string]string
}

// Update brings the room up to a view of the state and what nodes are now, and returns it. What it returns is current until the next
// Update, and only to be read. The error joins every double allocation that is stored: nothing may be placed then.
func (r *Room) Update(view *state.View, available func(node string) placement.Availability) (*placement.View, error) {
	if r.free == nil || r.environmentsChanged(view) || r.follow(view, available) != nil {
		if err := r.build(view, available); err != nil {
			return nil, err
		}
	}
	r.last = view
	r.free.SetTime(r.Now)
	return r.free, nil
}

// environmentsChanged reports whether built environments, or what machines are made of, changed: rare enough to make all of it anew.
func (r *Room) environmentsChanged(view *state.View) bool {
	changed, gone := state.Diff(r.last.Environments, view.Environments, func(e *api.EnvironmentRecord) string { return e.Name })
	if len(changed)+len(gone) > 0 {
		return true
	}
	if len(view.Environments) == 0 {
		return false
	}
	if view.Offers == r.last.Offers {
		return false
	}
	nodes, removed := state.Diff(r.last.Nodes, view.Nodes, nodeName)
	return slices.ContainsFunc(removed, func(n *state.Node) bool { return n.Machine != nil }) ||
		slices.ContainsFunc(nodes, func(n *state.Node) bool { return r.last.Node(n.Name).Hardware() != n.Hardware() })
}

// offered reports whether anything can ever be placed on a node: by its agent, or without one.
func (r *Room) offered(n *state.Node) bool {
	return n.Agent != nil || len(offer.Carried(n.Hardware(), r.Offers)) > 0
}

// record is a node as placement takes it. Nothing is known of the memory of a node whose agent has never called.
func (r *Room) record(view *state.View, n *state.Node) api.NodeRecord {
	rec := api.NodeRecord{Name: n.Name}
	if n.Agent != nil {
		rec = *n.Agent
		rec.VolumeSharing = Sharing(n.Agent, r.Encrypted)
	}
	o := Offer(view, n, r.Offers)
	o.Capacity.Ports = slices.Concat(o.Capacity.Ports, inspectedPorts(view, n, r.hosts))
	rec.Places, rec.VerifiedAt = r.places[n.Name], verifiedAt(n)
	if hardware := n.Hardware(); hardware != nil {
		rec.Disks = hardware.Disks
	}
	rec.Labels, rec.Capacity, rec.Stacks, rec.Environments, rec.Oversubscribed = n.Labels(), o.Capacity, o.Stacks, o.Environments, o.Oversubscribed
	if len(view.VolumesOnNode(n.Name)) > 0 { // its disks are erased after a member that had all of it
		rec.Stacks = slices.DeleteFunc(slices.Clone(rec.Stacks), func(s api.StackCheck) bool { return placement.Whole(s.Stack) })
	}
	return rec
}

// sameOffer reports whether a node offers what it did, as long as the environments of the site are the same.
func sameOffer(before, now *state.Node) bool {
	return before != nil && before.Agent == now.Agent && before.Hardware() == now.Hardware() && maps.Equal(before.Labels(), now.Labels()) &&
		slices.Equal(switchPortsOf(before), switchPortsOf(now)) && verifiedAt(before).Equal(verifiedAt(now))
}

// verifiedAt is when a node's machine last proved that it boots.
func verifiedAt(n *state.Node) time.Time {
	if n.Machine == nil || n.Machine.Record == nil || n.Machine.Record.LastVerifiedAt == nil {
		return time.Time{}
	}
	return *n.Machine.Record.LastVerifiedAt
}

func nodeName(n *state.Node) string { return n.Name }

// build makes the room from nothing.
func (r *Room) build(view *state.View, available func(node string) placement.Availability) error {
	r.free, r.last = nil, nil
	r.charts, r.places, r.hosts = r.Fabrics.revision(), r.Fabrics.Places(view), r.Fabrics.hosts()
	r.available, r.held = map[string]placement.Availability{}, map[string]map[string]bool{}
	nodes := make([]placement.NodeState, 0, len(view.Nodes))
	for _, n := range view.Nodes {
		if !r.offered(n) {
			continue
		}
		a := available(n.Name)
		r.available[n.Name] = a
		nodes = append(nodes, placement.NodeState{Record: r.record(view, n), Availability: a})
	}
	var held []placement.Held
	for _, c := range view.Clusters {
		r.held[c.UID()] = holdings(c)
		for a := range c.Held() {
			held = append(held, placement.Held{Assignment: *a})
		}
		for a := range c.Releasing() {
			held = append(held, placement.Held{Assignment: *a, Releasing: true})
		}
	}
	quarantined := make([]api.Quarantine, 0, len(view.Quarantines))
	for _, q := range view.Quarantines {
		quarantined = append(quarantined, *q)
	}
	free, err := placement.Build(nodes, held, quarantined)
	if err != nil {
		return fmt.Errorf("placement is suspended because stored assignments collide: %w", err)
	}
	for _, n := range view.Nodes {
		free.SetWindow(n.Name, lifecycle.WindowBegins(n.Control))
		free.SetMeasures(n.Name, n.Measures)
	}
	r.free = free
	return nil
}

// follow takes in what changed since the last view. After an error the room is of no use any more.
func (r *Room) follow(view *state.View, available func(node string) placement.Availability) error {
	r.followNodes(view, available)
	quarantined := make(map[string]bool, len(view.Quarantines))
	for _, q := range view.Quarantines {
		quarantined[q.Assignment.ID] = true
	}
	changed, gone := state.Diff(r.last.Clusters, view.Clusters, (*state.Cluster).Name)
	// A name may be another cluster's now.
	for _, c := range changed {
		if before := r.last.Cluster(c.Name()); before != nil && before.UID() != c.UID() {
			gone = append(gone, before)
		}
	}
	// What is given back comes first: another cluster may have it already.
	for _, c := range gone {
		if err := r.giveBack(c.UID(), nil, quarantined); err != nil {
			return err
		}
		delete(r.held, c.UID())
	}
	now := make([]map[string]bool, len(changed))
	for i, c := range changed {
		now[i] = holdings(c)
		if err := r.giveBack(c.UID(), now[i], quarantined); err != nil {
			return err
		}
		if err := r.refit(c); err != nil {
			return err
		}
	}
	fresh, over := state.Diff(r.last.Quarantines, view.Quarantines, func(q *api.Quarantine) string { return q.Assignment.ID })
	for _, q := range over {
		if err := r.free.Free(q.Assignment.ID); err != nil {
			return err
		}
	}
	for _, q := range fresh {
		switch held := r.free.Holds(q.Assignment.ID); {
		case held && !r.free.HoldsAs(&q.Assignment): // it was cut down or resized before
			if err := r.free.Free(q.Assignment.ID); err != nil {
				return err
			}
		case held:
			continue // it passed from its cluster just now
		}
		if err := r.free.Take(q.Assignment); err != nil {
			return err
		}
		if err := r.free.Quarantine(q.Assignment.ID); err != nil {
			return err
		}
	}
	for i, c := range changed {
		if err := r.take(c, now[i]); err != nil {
			return err
		}
	}
	return nil
}

func (r *Room) followNodes(view *state.View, available func(node string) placement.Availability) {
	changed, gone := state.Diff(r.last.Nodes, view.Nodes, nodeName)
	moved, keeps := r.followPlaces(view, changed, gone), r.followVolumes(view)
	for _, n := range gone {
		r.remove(n.Name)
	}
	for _, n := range view.Nodes {
		if (moved[n.Name] || keeps[n.Name]) && !slices.Contains(changed, n) {
			changed = append(changed, n)
		}
	}
	for _, n := range changed {
		switch {
		case !r.offered(n):
			r.remove(n.Name)
		case moved[n.Name] || keeps[n.Name] || !sameOffer(r.last.Node(n.Name), n): // its machine's record changes with every stage of a boot
			r.available[n.Name] = available(n.Name)
			r.free.SetNode(r.record(view, n), r.available[n.Name])
		}
		r.free.SetWindow(n.Name, lifecycle.WindowBegins(n.Control))
		r.free.SetMeasures(n.Name, n.Measures)
	}
	for _, n := range view.Nodes {
		was, offered := r.available[n.Name]
		if !offered {
			continue
		}
		if a := available(n.Name); a != was {
			r.available[n.Name] = a
			r.free.SetAvailability(n.Name, a)
		}
	}
}

// followVolumes returns the nodes that keep volumes now and did not before, or no longer.
func (r *Room) followVolumes(view *state.View) map[string]bool {
	changed, gone := state.Diff(r.last.Volumes, view.Volumes, (*state.Volume).UID)
	nodes := map[string]bool{}
	for _, v := range slices.Concat(changed, gone) {
		for _, list := range []*state.View{r.last, view} {
			if at := list.Volume(v.UID()); at != nil && at.Node() != "" {
				nodes[at.Node()] = len(r.last.VolumesOnNode(at.Node())) > 0 != (len(view.VolumesOnNode(at.Node())) > 0)
			}
		}
	}
	maps.DeleteFunc(nodes, func(_ string, other bool) bool { return !other })
	return nodes
}

// remove takes a node out of what is offered.
func (r *Room) remove(name string) {
	r.free.RemoveNode(name)
	r.free.SetMeasures(name, nil)
	delete(r.available, name)
}

// giveBack frees what a cluster no longer has; what passed into quarantine stays taken.
func (r *Room) giveBack(uid string, now map[string]bool, quarantined map[string]bool) error {
	for id, releasing := range r.held[uid] {
		if _, has := now[id]; has {
			continue
		}
		if quarantined[id] {
			if err := r.free.Quarantine(id); err != nil {
				return err
			}
			continue
		}
		if !releasing {
			if err := r.free.Release(id); err != nil {
				return err
			}
		}
		if err := r.free.Free(id); err != nil {
			return err
		}
	}
	return nil
}

// refit frees all of what members hold that hold something else since: they were saved or resized, and keep their IDs. take takes that.
func (r *Room) refit(c *state.Cluster) error {
	for a := range c.All() { // it may have been released since
		if !r.free.Holds(a.ID) || r.free.HoldsAs(a) {
			continue
		}
		if err := errors.Join(r.free.Release(a.ID), r.free.Free(a.ID)); err != nil {
			return err
		}
	}
	return nil
}

// take takes what a cluster has and did not have, and notes what it is giving back.
func (r *Room) take(c *state.Cluster, now map[string]bool) error {
	before := r.held[c.UID()]
	for a := range c.All() {
		releasing := before[a.ID]
		if !r.free.Holds(a.ID) {
			if err := r.free.Take(*a); err != nil {
				return err
			}
		}
		if now[a.ID] && !releasing {
			if err := r.free.Release(a.ID); err != nil {
				return err
			}
		}
	}
	r.held[c.UID()] = now
	return nil
}

// holdings are the assignments of a cluster that are not clean, and whether they are releasing.
func holdings(c *state.Cluster) map[string]bool {
	all := map[string]bool{}
	for a := range c.Held() {
		all[a.ID] = false
	}
	for a := range c.Releasing() {
		all[a.ID] = true
	}
	return all
}
