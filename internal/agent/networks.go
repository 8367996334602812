package agent

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// networks is the state of this node's networks: what was applied last and what is being applied.
type networks struct {
	apply   func(ctx context.Context, want []fabric.Network, tunnels []fabric.Tunnel)
	applied []fabric.Network // nil until the first success
	sealed  []fabric.Tunnel  // applied with them
	making  []fabric.Network // being applied
	ok      bool             // something was applied since the agent started
	busy    bool
	count   int  // how often it was begun to apply
	force   bool // apply again although nothing changed
	problem string
	tries   int
	next    time.Time
}

// has reports whether the networks of all ports of a member are in force, with the ports' identities pinned.
func (n *networks) has(m *driver.Member) bool { return n.ok && hold(n.applied, m) }

// hasPort reports whether the network of a port is in force that is no member's.
func (n *networks) hasPort(id string) bool {
	return n.ok && slices.ContainsFunc(n.applied, func(network fabric.Network) bool {
		return slices.ContainsFunc(network.Ports, func(p fabric.Port) bool { return p.ID == id })
	})
}

// makes reports whether they are being made.
func (n *networks) makes(m *driver.Member) bool { return n.busy && hold(n.making, m) }

// hold reports whether all ports of a member are among networks.
func hold(networks []fabric.Network, m *driver.Member) bool {
	for i := range m.Assignment.Ports {
		if _, err := fabric.FindPort(networks, fabric.PortOf(&m.Assignment, i)); err != nil {
			return false
		}
	}
	return true
}

// holds reports whether anything of a network may still be on this node.
func (n *networks) holds(index int) bool {
	if !n.ok || n.busy {
		return true
	}
	for _, network := range n.applied {
		if network.Index == index {
			return true
		}
	}
	return false
}

// wantedNetworks are the desired networks that a member on this node still needs: the network of a cluster that is being deleted
// goes with its last member here, once that has ended and while it is cleaned, and before it is reported clean. A network to which the packets of
// members here are routed is needed, too.
func (a *Agent) wantedNetworks() []fabric.Network {
	needed := map[int]map[string]bool{}
	for id, m := range a.members {
		if m.want == nil || m.silent() && !a.bringsBackBy(m) {
			continue
		}
		for _, network := range m.want.Networks {
			if needed[network.Index] == nil {
				needed[network.Index] = map[string]bool{}
			}
			needed[network.Index][id] = true
		}
	}
	served := map[string]bool{} // by the IDs of ports: volumes are served there as long as anything is left of that
	for cluster, s := range a.sharings.states {
		served[volume.PortID(cluster)] = s.found != nil || s.want != nil && s.want.Port != nil
	}
	for _, network := range a.desired.Networks {
		for _, port := range network.Ports {
			if served[port.ID] {
				if needed[network.Index] == nil {
					needed[network.Index] = map[string]bool{}
				}
				needed[network.Index][port.ID] = true
			}
		}
	}
	connected := func(n api.Network) bool {
		return slices.ContainsFunc(a.desired.Networks, func(other fabric.Network) bool {
			return len(needed[other.Index]) > 0 && fabric.Connected(n, other.Network)
		})
	}
	want := []fabric.Network{}
	for _, network := range a.desired.Networks {
		ids := needed[network.Index]
		if len(ids) == 0 && !connected(network.Network) {
			continue
		}
		ports := network.Ports
		network.Ports = nil
		for _, port := range ports {
			if ids[fabric.AssignmentOf(port.ID)] {
				network.Ports = append(network.Ports, port)
			}
		}
		want = append(want, network)
	}
	return want
}

// wantedTunnels are the tunnels of volumes that cross, where the underlay is encrypted. They are part of what is applied as networks are, since all
// tunnels go through one WireGuard device. A tunnel that is no longer named loses its peers first.
func (a *Agent) wantedTunnels() []fabric.Tunnel {
	var all []fabric.Tunnel
	for i := range a.desired.Sharings {
		s := &a.desired.Sharings[i]
		if !s.Encrypted || a.cfg.Node.WireGuardKey == "" {
			continue
		}
		t := fabric.Tunnel{VNI: s.VNI()}
		for _, p := range s.Sealed {
			t.Peers = append(t.Peers, fabric.TunnelPeer{Address: p.Peer, Key: p.Key})
		}
		all = append(all, t)
	}
	return all
}

// seals reports whether the tunnel of a cluster's volumes is let into WireGuard, as far as this node can.
func (a *Agent) seals(s *volume.Sharing) bool {
	return a.cfg.Node.WireGuardKey == "" || slices.ContainsFunc(a.networks.sealed, func(t fabric.Tunnel) bool { return t.VNI == s.VNI() })
}

// convergeNetworks applies the wanted networks and tunnels when they differ from the applied ones.
func (a *Agent) convergeNetworks(ctx context.Context, now time.Time) {
	n := &a.networks
	if a.desired == nil || n.busy {
		return
	}
	want, tunnels := a.wantedNetworks(), a.wantedTunnels()
	if n.ok && !n.force && reflect.DeepEqual(want, n.applied) && reflect.DeepEqual(tunnels, n.sealed) {
		return
	}
	if now.Before(n.next) {
		a.wakeAt(n.next)
		return
	}
	n.busy, n.force, n.making = true, false, want
	n.count++
	begun := make(chan struct{})
	go func() {
		close(begun)
		n.apply(ctx, want, tunnels)
	}()
	// Members are cleaned next, and have their ports detached. A port that goes before its network does makes the kernel wait twice.
	<-begun
}

// applyNetworks applies networks and tells loop how it went.
func (a *Agent) applyNetworks(ctx context.Context, want []fabric.Network, tunnels []fabric.Tunnel) {
	bounded, cancel := context.WithTimeout(ctx, applyDeadline)
	defer cancel()
	began := time.Now()
	a.cfg.Fabric.Seal(tunnels)
	err := a.cfg.Fabric.Apply(bounded, want)
	a.post(ctx, func() {
		n := &a.networks
		n.busy, n.making = false, nil
		if err != nil {
			n.tries++
			n.next, n.problem = a.cfg.Clock.Now().Add(backoff(n.tries)), err.Error()
			n.ok = false // what is in force is not known
			a.cfg.Log.ErrorContext(ctx, "the networks can't be made; trying again", "error", err)
			return
		}
		if n.applied != nil { // what a new agent finds was made before
			a.traceNetworks(ctx, n.applied, want, began)
		}
		n.applied, n.sealed, n.ok, n.tries, n.problem, n.next = want, tunnels, true, 0, "", time.Time{}
	})
}

// backoff is the pause after the nth failure in a row.
func backoff(n int) time.Duration {
	return min(200*time.Millisecond<<min(n, 10), 30*time.Second)
}
