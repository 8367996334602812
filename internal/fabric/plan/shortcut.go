package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Shortcut is the way of a port, or of a tunnel, past the bridge to the other ports of its network, by package shortcut; the zero value: it
// has none.
type Shortcut struct {
	Network int
	// Address and MAC are what the port's frames must bear.
	Address netip.Addr
	MAC     string
	// Prefix and Here are of tunnels only: the subnet of the network, and the addresses in it that are on this node, in order and with a
	// space between.
	Prefix netip.Prefix
	Here   string
	// Underlay is the link that a tunnel's frames may take without the tunnel's device, "" for none; Local is this node's address there, MTU
	// the network's, in bytes, and Peers are the nodes that are reached so, written like Here.
	Underlay string
	Local    netip.Addr
	MTU      int
	Peers    string
	// Broken: the shortcut is not whole, or is another process's; its pins are not known.
	Broken bool
}

// ShortcutOf returns the shortcut that a port of a network should have.
func ShortcutOf(n fabric.Network, p fabric.Port) Shortcut {
	return Shortcut{Network: n.Index, Address: p.Address, MAC: fabric.NormalMAC(p.MAC)}
}

// TunnelShortcutOf returns the shortcut that the tunnel of a network should have.
func TunnelShortcutOf(cfg Config, n fabric.Network, seen Observed) Shortcut {
	here := []netip.Addr{n.Gateway}
	for _, p := range n.Ports {
		here = append(here, p.Address)
	}
	s := Shortcut{Network: n.Index, Prefix: n.Prefix, Here: listed(here)}
	var near []netip.Addr
	for _, peer := range n.Peers {
		if seen.Underlay.Contains(peer) {
			near = append(near, peer)
		}
	}
	if seen.UnderlayLink == "" || seen.UnderlayRules || len(near) == 0 {
		return s
	}
	s.Underlay, s.Local, s.MTU, s.Peers = seen.UnderlayLink, cfg.Underlay, MTU(n, seen.UnderlayMTU), listed(near)
	return s
}

// listed writes addresses in order, each once, with a space between.
func listed(addresses []netip.Addr) string {
	slices.SortFunc(addresses, netip.Addr.Compare)
	return strings.Trim(fmt.Sprint(slices.Compact(addresses)), "[]")
}

// merged writes the addresses of two lists, which listed wrote.
func merged(one, other string) string {
	var all []netip.Addr
	for word := range strings.FieldsSeq(one + " " + other) {
		if address, err := netip.ParseAddr(word); err == nil {
			all = append(all, address)
		}
	}
	return listed(all)
}

// differsHere reports whether a tunnel's shortcut is as wanted but for the addresses on this node.
func (s Shortcut) differsHere(want Shortcut) bool {
	s.Here = want.Here
	return s == want
}

// Shortcuts reports whether ports should have shortcuts: the kernel can, and nobody else has rules for bridged frames, which would no
// longer see them all.
func (seen Observed) Shortcuts() bool { return seen.CanShortcut && !seen.BridgeRules }

// planShortcuts shuts what is not as wanted, and opens what is missing. Shutting comes before anything else, so that no shortcut lasts longer
// than the rules that it repeats, and opening comes last. Change are the operations on links that come between.
//
// A tunnel's shortcut stays open when only the addresses on this node change, as they do with each member that comes or goes: the others' frames
// go on as before. Ports with security groups have no shortcut: their packets have to pass the rules. New addresses are entered where shortcuts are shut, and former ones removed where they are opened, so that it never takes
// a frame that it took neither before nor will afterwards.
func planShortcuts(cfg Config, networks []fabric.Network, seen Observed, change []Operation) (shut, open []Operation) {
	moved := map[string]bool{} // a bridge forgets what it knew of a port that leaves it
	made := map[string]bool{}
	for _, op := range change {
		switch o := op.(type) {
		case SetLink:
			moved[o.Link.Name] = moved[o.Link.Name] || o.Attribute == "master"
		case AddLink:
			made[o.Link.Name] = true
		}
	}
	kept := map[string]bool{}
	for _, n := range networks {
		if len(n.Peers) > 0 && seen.Shortcuts() {
			name, want := TunnelName(n.Index), TunnelShortcutOf(cfg, n, seen)
			got := seen.OpenShortcuts[name]
			kept[name] = got.differsHere(want) && !made[name]
			if !kept[name] {
				open = append(open, OpenShortcut{Name: name, Shortcut: want})
			} else if got != want {
				both := want
				both.Here = merged(got.Here, want.Here)
				shut = append(shut, ChangeShortcut{Name: name, From: got, To: both})
				open = append(open, ChangeShortcut{Name: name, From: both, To: want})
			}
		}
		for _, p := range n.Ports {
			name := PortName(p.ID)
			link, exists := seen.Links[name]
			if !exists {
				kept[name] = true // of a member that has just ended: Detach shuts it, and the kernel let nothing lead there
			}
			if !exists || !link.Away || !seen.Shortcuts() || n.Guarded(p.ID) {
				continue
			}
			want := ShortcutOf(n, p)
			kept[name] = seen.OpenShortcuts[name] == want
			if !kept[name] || moved[name] {
				open = append(open, OpenShortcut{Name: name, Shortcut: want})
			}
		}
	}
	unchanged := func(op Operation) bool { o, ok := op.(ChangeShortcut); return ok && o.From == o.To }
	shut, open = slices.DeleteFunc(shut, unchanged), slices.DeleteFunc(open, unchanged)
	for _, name := range sortedKeys(seen.OpenShortcuts) {
		if !kept[name] {
			shut = append(shut, ShutShortcut{Name: name, Shortcut: seen.OpenShortcuts[name]})
		}
	}
	return shut, open
}

// OpenShortcut opens the shortcut of a port or a tunnel.
type OpenShortcut struct {
	Name     string
	Shortcut Shortcut
}

// ShutShortcut ends the shortcut of a link, which may be gone.
type ShutShortcut struct {
	Name     string
	Shortcut Shortcut
}

// ChangeShortcut changes which addresses the shortcut through a tunnel takes for those of this node. Nothing else differs.
type ChangeShortcut struct {
	Name     string
	From, To Shortcut
}

func (o OpenShortcut) String() string {
	return fmt.Sprintf("tc filter replace dev %s ingress bpf # shortcut of %s", o.Name, o.Shortcut)
}

func (o ShutShortcut) String() string {
	return fmt.Sprintf("tc filter delete dev %s ingress # shortcut of %s", o.Name, o.Shortcut)
}

func (o ChangeShortcut) String() string {
	return fmt.Sprintf("bpftool map update name nm_remotes # shortcut of %s, here %s", o.Name, o.To.Here)
}

// String writes a shortcut for logs.
func (s Shortcut) String() string {
	if s.Broken {
		return "another process, or broken"
	}
	if s.Prefix.IsValid() {
		text := fmt.Sprintf("%v in network %d, here %s", s.Prefix, s.Network, s.Here)
		if s.Underlay != "" {
			text += fmt.Sprintf("; from %v over %s, MTU %d, to %s", s.Local, s.Underlay, s.MTU, s.Peers)
		}
		return text
	}
	return fmt.Sprintf("%v, %s in network %d", s.Address, s.MAC, s.Network)
}

// Drift implements Operation.
func (o OpenShortcut) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Shortcut.Network, Object: "shortcut of " + o.Name, Want: o.Shortcut.String(), Got: "absent"}
}

// Drift implements Operation.
func (o ShutShortcut) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Shortcut.Network, Object: "shortcut of " + o.Name, Want: "absent", Got: o.Shortcut.String()}
}

// Drift implements Operation.
func (o ChangeShortcut) Drift() fabric.Drift {
	return fabric.Drift{Network: o.To.Network, Object: "shortcut of " + o.Name, Want: o.To.String(), Got: o.From.String()}
}
