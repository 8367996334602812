package sim

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/floating"
	"github.com/nearmetal/nearmetal/internal/state"
)

// floatingPool is so small that an address which was released is soon another project's.
var floatingPool = netip.MustParsePrefix("198.51.100.0/29")

// forwarded are the ports that users forward, in turn; none: all packets lead to the member.
var forwarded = [][]string{nil, {"tcp/2222=22"}, {"tcp/80=8080", "udp/53=53"}}

// drawEgress gives some clusters a way out of their own. Members may have another one by a network of their project.
func (w *world) drawEgress(in *api.ClusterIntent) {
	in.Spec.Egress = w.drawnFor(in.Name+" egress", 2) == 0
}

// scheduleAddresses lets the user of a cluster have addresses that lead to members of it.
func (w *world) scheduleAddresses(name, uid string, lasts time.Duration) {
	for i := range w.drawnFor(uid+" addresses", 4) {
		key := fmt.Sprintf("%s address %d", uid, i)
		w.after(w.drawnSpan(key+" at", min(lasts, 5*time.Minute)), func() {
			if s := w.up(); s != nil && !w.isCalm() {
				w.lead(s, name, uid, key)
			}
		})
	}
}

// drawnSpan draws a duration that depends on the run and a name only.
func (w *world) drawnSpan(name string, longest time.Duration) time.Duration {
	return time.Duration(w.drawnFor(name, int(longest/time.Millisecond)+1)) * time.Millisecond
}

// lead lets an address lead to a member of a cluster, and changes that later.
func (w *world) lead(s *server, name, uid, key string) {
	c := s.cluster(name, uid)
	if c == nil || len(s.reachable(c)) == 0 {
		return
	}
	address := w.addressFor(s, c.Intent.Project, key)
	if !address.IsValid() || !w.assign(s, c, address, key, w.drawnFor(key+" ports", len(forwarded))) {
		return
	}
	later := func(what string, longest time.Duration, do func(s *server)) {
		w.after(w.drawnSpan(key+" "+what, longest), func() {
			if s := w.up(); s != nil && !w.isCalm() {
				do(s)
			}
		})
	}
	switch w.drawnFor(key+" then", 6) {
	case 0: // its cluster ends first
	case 1:
		later("other ports", 2*time.Minute, func(s *server) {
			if c := s.cluster(name, uid); c != nil {
				w.assign(s, c, address, key, w.drawnFor(key+" other ports", len(forwarded)))
			}
		})
	case 2:
		later("unassign", 2*time.Minute, func(s *server) { w.unassign(s, address) })
	default:
		later("release", 3*time.Minute, func(s *server) {
			w.unassign(s, address)
			w.release(s, address)
		})
	}
}

// addressFor is an address of a project that leads nowhere, or a new one, as the API allocates it; none if all are taken.
func (w *world) addressFor(s *server, project, key string) netip.Addr {
	view := s.cache.View()
	for _, a := range view.Addresses {
		if a.Project == project && targetOf(view, a) == nil && w.drawnFor(key+" again", 2) == 0 {
			return a.Address
		}
	}
	pool, err := floating.NewPool([]string{floatingPool.String()})
	w.must(err)
	for address := range pool.All() {
		if view.Address(address) != nil {
			continue
		}
		w.ids++
		a := api.FloatingAddress{Address: address, Project: project, User: fmt.Sprintf("holder%d", w.ids), AllocatedAt: s.now()}
		_, err := s.repo.AllocateAddress(s.ctx, a, func([]api.FloatingAddress) error { return nil })
		w.trace("address %s is allocated to project %s: %v", address, project, err)
		if errors.Is(err, state.ErrExists) {
			continue // taken meanwhile
		}
		if err != nil {
			return netip.Addr{}
		}
		return address
	}
	return netip.Addr{}
}

// targetOf is the cluster that an address leads to, nil for none.
func targetOf(view *state.View, a *api.FloatingAddress) *state.Cluster {
	if a.Target == nil {
		return nil
	}
	return view.ClusterByUID(a.Target.ClusterUID)
}

// errNotNow: the API refuses it.
var errNotNow = errors.New("refused")

// reachable are the members of a cluster that the API lets an address lead to.
func (s *server) reachable(c *state.Cluster) []string {
	var names []string
	for a := range c.Held() {
		if a.IsMember() && floating.WayOut(a, s.cache.View().Network) >= 0 {
			names = append(names, a.Member)
		}
	}
	slices.Sort(names)
	return names
}

// assign is what the API does with a request to let an address lead to a member, and reports whether that was taken.
func (w *world) assign(s *server, c *state.Cluster, address netip.Addr, key string, ports int) bool {
	names := s.reachable(c)
	if len(names) == 0 {
		return false
	}
	normal, err := floating.NormalPorts(forwarded[ports])
	w.must(err)
	next := &api.AddressTarget{
		Cluster: c.Name(), ClusterUID: c.UID(), Member: names[w.drawnFor(key+" member", len(names))], Ports: normal, AssignedAt: s.now(),
	}
	_, _, err = s.repo.ChangeAddress(s.ctx, address, func(a *api.FloatingAddress, others []api.FloatingAddress) error {
		view := s.cache.View()
		if a.Project != c.Intent.Project || targetOf(view, a) != nil && (a.Target.ClusterUID != next.ClusterUID || a.Target.Member != next.Member) {
			return errNotNow
		}
		for i := range others {
			o := others[i].Target
			if len(normal) == 0 && targetOf(view, &others[i]) != nil && o.ClusterUID == next.ClusterUID && o.Member == next.Member && len(o.Ports) == 0 {
				return errNotNow
			}
		}
		a.Target = next
		return nil
	})
	w.trace("address %s leads to %s of %s with the ports %v: %v", address, next.Member, next.Cluster, normal, err)
	if err == nil {
		w.happened("address assigned")
	}
	return err == nil
}

func (w *world) unassign(s *server, address netip.Addr) {
	_, _, err := s.repo.ChangeAddress(s.ctx, address, func(a *api.FloatingAddress, _ []api.FloatingAddress) error {
		a.Target = nil
		return nil
	})
	w.trace("address %s is unassigned: %v", address, err)
}

// release is what the API does with a request to release an address.
func (w *world) release(s *server, address netip.Addr) {
	_, err := s.repo.ReleaseAddress(s.ctx, address, func(a *api.FloatingAddress) error {
		if targetOf(s.cache.View(), a) != nil {
			return errNotNow
		}
		w.read(func(m *mirror) { m.addresses.given[a.User] = true })
		return nil
	})
	w.trace("address %s is released: %v", address, err)
	if err == nil {
		w.happened("address released")
	}
}

// addressesAtRest lets users change addresses when all has come to rest, step by step with a look at where they are in force, and goes on then.
func (w *world) addressesAtRest(then func()) {
	steps := []func(s *server){
		func(s *server) {
			w.releaseSome(s, func(a *api.FloatingAddress) bool { return targetOf(s.cache.View(), a) == nil })
		},
		func(s *server) {
			for _, c := range s.cache.View().Clusters {
				if key := c.UID() + " at rest"; s.cluster(c.Name(), c.UID()) != nil && len(s.reachable(c)) > 0 {
					if address := w.addressFor(s, c.Intent.Project, key); address.IsValid() {
						w.assign(s, c, address, key, w.drawnFor(key+" ports", len(forwarded)))
					}
				}
			}
		},
		func(s *server) {
			w.releaseSome(s, func(a *api.FloatingAddress) bool { return w.drawnFor(a.Address.String()+" at rest", 2) == 0 })
		},
	}
	w.after(time.Duration(len(steps))*10*time.Second, func() {
		w.checkFloatingAtRest()
		then()
	})
	for i, step := range steps {
		w.after(time.Duration(i)*10*time.Second, func() {
			w.checkFloatingAtRest()
			if s := w.up(); s != nil {
				step(s)
			}
		})
	}
}

// releaseSome unassigns those addresses that which says, and releases every other one of them.
func (w *world) releaseSome(s *server, which func(*api.FloatingAddress) bool) {
	for i, a := range s.cache.View().Addresses {
		if !which(a) {
			continue
		}
		w.unassign(s, a.Address)
		if i%2 == 0 || a.Target == nil {
			w.release(s, a.Address)
		}
	}
}

// endAddresses releases all addresses; their clusters are gone.
func (w *world) endAddresses() {
	if s := w.up(); s != nil {
		for _, a := range s.cache.View().Addresses {
			w.release(s, a.Address)
		}
	}
}

// floatingIn are the addresses that are in force on a node in a network once it obeys.
func (n *node) floatingIn(next *fabric.Network) []fabric.Floating {
	if n.w.cfg.Without != GuardWithdrawn {
		return next.Floating
	}
	all := slices.Clone(next.Floating)
	for _, f := range n.networks[next.Index].floating {
		if !slices.ContainsFunc(all, func(other fabric.Floating) bool { return other.Address == f.Address }) {
			all = append(all, f)
		}
	}
	return all
}
