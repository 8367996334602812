package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/vishvananda/netlink"

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

// read returns what there is at ports and tunnels, given as link index by name.
func (s *shortcuts) read(ports, tunnels map[string]int) (map[string]plan.Shortcut, error) {
	atPorts, err := s.table.Read(ports)
	if err != nil {
		return nil, err
	}
	atTunnels, err := s.table.ReadTunnels(tunnels)
	if err != nil {
		return nil, err
	}
	open := map[string]plan.Shortcut{}
	for name, state := range atPorts {
		open[name] = plan.Shortcut{Network: state.Pins.Network, Address: state.Pins.Address, MAC: state.Pins.MAC, Broken: state.Broken}
	}
	for name, state := range atTunnels {
		open[name] = plan.Shortcut{Network: state.Tunnel.Network, Prefix: state.Tunnel.Prefix, Here: strings.Trim(fmt.Sprint(state.Tunnel.Here), "[]"), Broken: state.Broken}
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
	if !want.Prefix.IsValid() {
		return s.table.Open(name, shortcut.Pins{Network: want.Network, Address: want.Address, MAC: want.MAC})
	}
	var here []netip.Addr
	for word := range strings.FieldsSeq(want.Here) {
		address, err := netip.ParseAddr(word)
		if err != nil {
			return err
		}
		here = append(here, address)
	}
	return s.table.OpenTunnel(name, shortcut.Tunnel{Network: want.Network, Prefix: want.Prefix, Here: here})
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
