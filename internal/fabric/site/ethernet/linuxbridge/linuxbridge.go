// Package linuxbridge stands in for a switch by Linux bridges of this machine, for tests and small labs: a VLAN is a bridge of its own, and a port is a
// link that is moved between bridges. So it needs no 802.1Q in the kernel.
//
// A port without a network is on no bridge, and down: else this machine itself would hear it. A protected port is an isolated one of its bridge. The
// newest epoch is in a file beside the bridges. The package must never touch a link that it was not given, nor a bridge whose name is not its prefix and a
// VLAN. Start with Switch.
package linuxbridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Config is what a Switch needs.
type Config struct {
	ethernet.SwitchSettings
	// Dir is the folder of the file with the epoch, which it makes. Executors on the same bridges share it.
	Dir string
	// Pool is whose bridges are made and removed. Other VLANs' bridges are made, too, and stay.
	Pool api.VLANPool
	// Namespace is the network namespace of the links; nil: this process's own.
	Namespace *netns.Handle
}

// Switch is the bridges of one prefix. It implements ethernet.Switch.
type Switch struct{ cfg Config }

var _ ethernet.Switch = (*Switch)(nil)

// New makes the control of a switch.
func New(cfg Config) (*Switch, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("the folder of the switch's files can't be made: %w", err)
	}
	return &Switch{cfg}, nil
}

// within does something in the namespace of the links.
func (s *Switch) within(do func() error) error {
	if s.cfg.Namespace == nil {
		return do()
	}
	return s.cfg.Namespace.Do(do)
}

// Apply implements ethernet.Switch. All is carried out when it returns.
func (s *Switch) Apply(ctx context.Context, epoch lifecycle.Epoch, ports map[string]ethernet.State) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	unlock, err := lock(s.cfg.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	had, err := loadEpoch(s.cfg.Dir)
	if err != nil {
		return err
	}
	if err := had.Accept(epoch); err != nil {
		return fmt.Errorf("%w: %w", site.ErrStale, err)
	}
	if had != epoch {
		if err := storeEpoch(s.cfg.Dir, epoch); err != nil {
			return err
		}
	}
	return s.within(func() error {
		var problems []error
		for _, name := range slices.Sorted(maps.Keys(ports)) {
			if err := s.setPort(name, ports[name]); err != nil {
				problems = append(problems, fmt.Errorf("port %s: %w", name, err))
			}
		}
		return errors.Join(append(problems, s.removeUnused())...)
	})
}

// setPort moves a link. While it moves it is down, so that it is never in a bridge without being isolated as it is to be.
func (s *Switch) setPort(name string, want ethernet.State) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return err
	}
	is, problem, err := s.stateOf(link)
	if err != nil || problem == "" && is == want {
		return err
	}
	if err := errors.Join(netlink.LinkSetDown(link), netlink.LinkSetNoMaster(link)); err != nil {
		return err
	}
	if want.VLAN == 0 {
		return nil
	}
	bridge, err := s.bridge(want.VLAN)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetMaster(link, bridge); err != nil {
		return err
	}
	if err := netlink.LinkSetIsolated(link, want.Protected); err != nil {
		return errors.Join(fmt.Errorf("isolate it: %w", err), netlink.LinkSetNoMaster(link))
	}
	return netlink.LinkSetUp(link)
}

// bridgeName is that of a VLAN's bridge.
func (s *Switch) bridgeName(vlan int) string { return s.cfg.Bridge + strconv.Itoa(vlan) }

// vlanOf is the VLAN of a bridge by its name; false: it is none of ours.
func (s *Switch) vlanOf(bridge string) (int, bool) {
	number, ours := strings.CutPrefix(bridge, s.cfg.Bridge)
	vlan, err := strconv.Atoi(number)
	return vlan, ours && err == nil && vlan >= api.MinVLAN && vlan <= api.MaxVLAN && s.bridgeName(vlan) == bridge
}

// bridge returns a VLAN's bridge, which it makes if need be. This machine takes no part in the VLANs of tenants: it has no address on their bridges,
// answers no ARP there, and drops what comes from there, since no route leads back (rp_filter).
func (s *Switch) bridge(vlan int) (netlink.Link, error) {
	name := s.bridgeName(vlan)
	link, err := netlink.LinkByName(name)
	if err == nil {
		if link.Type() != "bridge" {
			return nil, fmt.Errorf("link %s is a %s, and is to be the bridge of VLAN %d", name, link.Type(), vlan)
		}
		return link, netlink.LinkSetUp(link)
	}
	if !errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, err
	}
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
		return nil, fmt.Errorf("make bridge %s: %w", name, err)
	}
	if s.cfg.Pool.Has(vlan) {
		for setting, value := range map[string]string{"ipv6/conf/" + name + "/disable_ipv6": "1", "ipv4/conf/" + name + "/arp_ignore": "8", "ipv4/conf/" + name + "/rp_filter": "1"} {
			if err := os.WriteFile(filepath.Join("/proc/sys/net", setting), []byte(value), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("keep this machine out of VLAN %d: %w", vlan, err)
			}
		}
	}
	if link, err = netlink.LinkByName(name); err != nil {
		return nil, err
	}
	return link, netlink.LinkSetUp(link)
}

// removeUnused removes the bridges of the pool that have no links left.
func (s *Switch) removeUnused() error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	used := map[int]bool{}
	for _, l := range links {
		used[l.Attrs().MasterIndex] = true
	}
	for _, l := range links {
		vlan, ours := s.vlanOf(l.Attrs().Name)
		if !ours || !s.cfg.Pool.Has(vlan) || used[l.Attrs().Index] || l.Type() != "bridge" {
			continue
		}
		if err := netlink.LinkDel(l); err != nil {
			return fmt.Errorf("remove bridge %s: %w", l.Attrs().Name, err)
		}
	}
	return nil
}

// Read implements ethernet.Switch.
func (s *Switch) Read(ctx context.Context, ports []string) (ethernet.Reading, error) {
	if err := ctx.Err(); err != nil {
		return ethernet.Reading{}, err
	}
	r := ethernet.Reading{Ports: map[string]ethernet.State{}, Unknown: map[string]string{}}
	var err error
	if r.Epoch, err = loadEpoch(s.cfg.Dir); err != nil {
		return ethernet.Reading{}, err
	}
	return r, s.within(func() error {
		for _, name := range ports {
			link, err := netlink.LinkByName(name)
			if err != nil {
				r.Unknown[name] = err.Error()
				continue
			}
			state, problem, err := s.stateOf(link)
			switch {
			case err != nil:
				r.Unknown[name] = err.Error()
			case problem != "":
				r.Unknown[name] = problem
			default:
				r.Ports[name] = state
			}
		}
		return nil
	})
}

// stateOf is what a link is, or why it is nothing that this package makes.
func (s *Switch) stateOf(link netlink.Link) (state ethernet.State, problem string, err error) {
	at := link.Attrs()
	up := at.RawFlags&upFlag != 0
	if at.MasterIndex == 0 {
		if up {
			return state, "it is on no bridge, and up: this machine hears it", nil
		}
		return state, "", nil
	}
	master, err := netlink.LinkByIndex(at.MasterIndex)
	if err != nil {
		return state, "", err
	}
	vlan, ours := s.vlanOf(master.Attrs().Name)
	port, err := netlink.LinkGetProtinfo(link)
	switch {
	case err != nil:
		return state, "", err
	case !ours:
		return state, fmt.Sprintf("it is on %s, which is no bridge of this switch", master.Attrs().Name), nil
	case !up:
		return state, "it is down", nil
	default:
		return ethernet.State{VLAN: vlan, Protected: port.Isolated}, "", nil
	}
}
