package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/fabric/shortcut"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// shortcuts are the shortcuts of the node's ports and tunnels. A node whose kernel can't make them does without, and so does one on which opening one
// failed: frames then take the way through the bridge. Its methods belong in the node's network namespace.
type shortcuts struct {
	log   *slog.Logger
	table *shortcut.Table
	// off: no more are to be opened.
	off atomic.Bool
}

// load reports whether shortcuts can be opened.
func (s *shortcuts) load(ctx context.Context) bool {
	if s.off.Load() {
		return false
	}
	if err := s.table.Load(); err != nil {
		s.switchOff(ctx, err)
	}
	return !s.off.Load()
}

// switchOff shuts all that are open, and logs once why there are none from now on.
func (s *shortcuts) switchOff(ctx context.Context, err error) {
	if !s.off.Swap(true) {
		err = errors.Join(err, s.table.ShutAll()) // what can't be shut is read back, and shut by the next plan
		s.log.WarnContext(ctx, "frames between members of this node pass the bridge, which is slower: the kernel refused shortcuts", "error", err)
	}
}

// shortcutLinks are the indexes of links at which programs of shortcuts may be, by name, and of ports that may be limited.
type shortcutLinks struct{ ports, tunnels, others, limited map[string]int }

// read returns what there is at links.
func (s *shortcuts) read(links shortcutLinks) (map[string]plan.Shortcut, error) {
	atPorts, err := s.table.Read(links.ports)
	if err != nil {
		return nil, err
	}
	atTunnels, err := s.table.ReadTunnels(links.tunnels)
	if err != nil {
		return nil, err
	}
	left, err := s.table.Left(links.others)
	if err != nil {
		return nil, err
	}
	open := map[string]plan.Shortcut{}
	for name, state := range atPorts {
		open[name] = plan.Shortcut{Network: state.Pins.Network, Address: state.Pins.Address, MAC: state.Pins.MAC, Broken: state.Broken}
	}
	for name, state := range atTunnels {
		t := state.Tunnel
		open[name] = plan.Shortcut{
			Network: t.Network, Tunnel: true, Remotes: writtenRemotes(t.Remotes), Broken: state.Broken,
			Underlay: t.Underlay.Link, Local: t.Underlay.Address, MTU: t.Underlay.MTU, Peers: written(t.Peers),
		}
	}
	for _, name := range left {
		open[name] = plan.Shortcut{Broken: true}
	}
	return open, nil
}

// open opens one. Its failure keeps no member from its network; a port that is gone by then is no failure.
func (s *shortcuts) open(ctx context.Context, name string, want plan.Shortcut) {
	if s.off.Load() {
		return
	}
	err := s.openLink(name, want)
	failpoint.Hit("node.after-shortcut")
	if err == nil {
		return
	}
	if _, gone := netlink.LinkByName(name); !isGone(gone) {
		s.switchOff(ctx, err)
	}
}

// openLink opens the shortcut of a port or of a tunnel.
func (s *shortcuts) openLink(name string, want plan.Shortcut) error {
	if !want.Tunnel {
		return s.table.Open(name, shortcut.Pins{Network: want.Network, Address: want.Address, MAC: want.MAC})
	}
	remotes, err := readRemotes(want.Remotes)
	if err != nil {
		return err
	}
	peers, err := readAddresses(want.Peers)
	if err != nil {
		return err
	}
	return s.table.OpenTunnel(name, shortcut.Tunnel{
		Network: want.Network, Remotes: remotes, Peers: peers,
		Underlay: shortcut.Underlay{Link: want.Underlay, Address: want.Local, MTU: want.MTU},
	})
}

// written writes addresses as plan.Shortcut has them, and readAddresses reads them.
func written(addresses []netip.Addr) string { return strings.Trim(fmt.Sprint(addresses), "[]") }

func readAddresses(text string) ([]netip.Addr, error) {
	var addresses []netip.Addr
	for word := range strings.FieldsSeq(text) {
		address, err := netip.ParseAddr(word)
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, address)
	}
	return addresses, nil
}

// writtenRemotes writes members on other nodes as plan.Shortcut has them, and readRemotes reads them.
func writtenRemotes(remotes []shortcut.Remote) string {
	texts := make([]string, 0, len(remotes))
	for _, r := range remotes {
		texts = append(texts, fmt.Sprintf("%v %s %v", r.Address, r.MAC, r.Peer))
	}
	return strings.Join(texts, ", ")
}

func readRemotes(text string) ([]shortcut.Remote, error) {
	var remotes []shortcut.Remote
	for one := range strings.SplitSeq(text, ", ") {
		words := strings.Fields(one)
		if len(words) == 0 {
			continue
		}
		if len(words) != 3 {
			return nil, fmt.Errorf("%q is not an address, a MAC and a peer", one)
		}
		address, err := netip.ParseAddr(words[0])
		if err != nil {
			return nil, err
		}
		peer, err := netip.ParseAddr(words[2])
		if err != nil {
			return nil, err
		}
		remotes = append(remotes, shortcut.Remote{Address: address, MAC: words[1], Peer: peer})
	}
	return remotes, nil
}

// openNew opens that of a port just attached, unless it is open or the other end is in the node's own network namespace.
func (s *shortcuts) openNew(ctx context.Context, name string, want plan.Shortcut) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if link.Attrs().NetNsID >= 0 {
		s.open(ctx, name, want)
	}
	return nil
}

// shut ends one.
func (s *shortcuts) shut(name string) error {
	err := s.table.Shut(name)
	failpoint.Hit("node.after-shut-shortcut")
	return err
}

// change changes the members on other nodes that the shortcut through a tunnel leads to and from. Shortcuts that an earlier operation shut stay so.
func (s *shortcuts) change(name string, want plan.Shortcut) error {
	if s.off.Load() {
		return nil
	}
	remotes, err := readRemotes(want.Remotes)
	if err != nil {
		return err
	}
	return s.table.ChangeTunnel(name, remotes)
}

// othersPolicies reports whether there are rules of iptables-legacy(8), which nft does not list, or policies of IPsec (ip-xfrm(8)) in the
// thread's network namespace.
func othersPolicies() (bool, error) {
	tables, err := os.ReadFile("/proc/thread-self/net/ip_tables_names")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("reading the tables of iptables: %w", err)
	}
	if len(tables) > 0 {
		return true, nil
	}
	policies, err := dump(func() ([]netlink.XfrmPolicy, error) { return netlink.XfrmPolicyList(netlink.FAMILY_ALL) })
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return false, nil // a kernel without IPsec
	}
	if err != nil {
		return false, fmt.Errorf("reading policies of IPsec: %w", err)
	}
	return len(policies) > 0, nil
}
