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
	// Tunnel: it is that of a tunnel. Remotes are the members on other nodes that it leads to and from, as remotesText writes them.
	Tunnel  bool
	Remotes string
	// Underlay is the link that a tunnel's frames may take without the tunnel's device, "" for none; Local is this node's address there, MTU
	// the network's, in bytes, and Peers are the nodes that are reached so, in order and with a space between.
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
	s := Shortcut{Network: n.Index, Tunnel: true, Remotes: remotesText(settled(n))}
	var near []netip.Addr
	for _, peer := range n.Peers() {
		if seen.Underlay.Contains(peer) {
			near = append(near, peer)
		}
	}
	if seen.UnderlayLink == "" || seen.UnderlayRules || len(near) == 0 {
		return s
	}
	s.Underlay, s.Local, s.MTU, s.Peers = seen.UnderlayLink, cfg.Underlay, shortcutMTU(n, seen.UnderlayMTU), listed(near)
	return s
}

// listed writes addresses in order, each once, with a space between.
func listed(addresses []netip.Addr) string {
	slices.SortFunc(addresses, netip.Addr.Compare)
	return strings.Trim(fmt.Sprint(slices.Compact(addresses)), "[]")
}

// settled returns the members on other nodes whose place is certain. One that moves, and is behind two peers or also here, takes the bridge and
// the tunnel's device, which hear where it is.
func settled(n fabric.Network) []fabric.Remote {
	places := map[netip.Addr]int{}
	for _, p := range n.Ports {
		places[p.Address]++
	}
	for _, r := range n.Remotes {
		places[r.Address]++
	}
	return slices.DeleteFunc(slices.Clone(n.Remotes), func(r fabric.Remote) bool { return places[r.Address] > 1 })
}

// remotesText writes members on other nodes in order, each as "ADDRESS MAC PEER", with a comma between.
func remotesText(remotes []fabric.Remote) string {
	texts := make([]string, 0, len(remotes))
	for _, r := range slices.SortedFunc(slices.Values(remotes), fabric.Remote.Compare) {
		texts = append(texts, fmt.Sprintf("%v %s %v", r.Address, fabric.NormalMAC(r.MAC), r.Peer))
	}
	return strings.Join(texts, ", ")
}

// commonRemotes writes what is in both of two texts of remotesText, in the order of the first.
func commonRemotes(one, other string) string {
	in := map[string]bool{}
	for text := range strings.SplitSeq(other, ", ") {
		in[text] = true
	}
	return strings.Join(slices.DeleteFunc(strings.Split(one, ", "), func(text string) bool { return !in[text] }), ", ")
}

// differsInRemotes reports whether a tunnel's shortcut is as wanted but for the members on other nodes.
func (s Shortcut) differsInRemotes(want Shortcut) bool {
	s.Remotes = want.Remotes
	return s == want
}

// Shortcuts reports whether ports should have shortcuts: the kernel can, and nobody else has rules for bridged frames, which would no
// longer see them all.
func (seen Observed) Shortcuts() bool { return seen.CanShortcut && !seen.BridgeRules }

// planShortcuts shuts what is not as wanted, and opens what is missing. Shutting comes before anything else, so that no shortcut lasts longer
// than the rules that it repeats, and opening comes last. Change are the operations on links that come between.
//
// A tunnel's shortcut stays open when only the members on other nodes change: the others' frames go on as before. Former ones are removed
// where shortcuts are shut, and new ones entered where they are opened, so that it never takes a frame that the rules don't. Ports with security
// groups or a quality of service have no shortcut: their packets have to pass the rules, and the queues.
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
		if len(n.Remotes) > 0 && !n.OnVLAN() && !isTransit(n) && seen.Shortcuts() {
			name, want := TunnelName(n.Index), TunnelShortcutOf(cfg, n, seen)
			got := seen.OpenShortcuts[name]
			kept[name] = got.differsInRemotes(want) && !made[name]
			if !kept[name] {
				open = append(open, OpenShortcut{Name: name, Shortcut: want})
			} else if got != want {
				stay := want
				stay.Remotes = commonRemotes(got.Remotes, want.Remotes)
				shut = append(shut, ChangeShortcut{Name: name, From: got, To: stay})
				open = append(open, ChangeShortcut{Name: name, From: stay, To: want})
			}
		}
		for _, p := range n.Ports {
			name := PortName(p.ID)
			link, exists := seen.Links[name]
			if !exists {
				kept[name] = true // of a member that has just ended: Detach shuts it, and the kernel let nothing lead there
			}
			if !exists || !link.Away || !seen.Shortcuts() || n.Bridged(p) {
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

// ChangeShortcut changes which members on other nodes the shortcut through a tunnel leads to and from. Nothing else differs.
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
	return fmt.Sprintf("bpftool map update name nm_remotes # shortcut of %s, to %s", o.Name, o.To.Remotes)
}

// String writes a shortcut for logs.
func (s Shortcut) String() string {
	if s.Broken {
		return "another process, or broken"
	}
	if s.Tunnel {
		text := fmt.Sprintf("network %d, to %s", s.Network, s.Remotes)
		if s.Underlay != "" {
			text += fmt.Sprintf("; from %v over %s, MTU %d, by %s", s.Local, s.Underlay, s.MTU, s.Peers)
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
