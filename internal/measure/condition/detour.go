package condition

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// A detour's devices, and the tables and priorities of its rules (ip-rule(8)). The kernel's own rule for local addresses has priority 0; it has another
// one while there is a detour, since what comes in has to take the detour first.
const (
	outDevice, inDevice = "condition0", "condition1"
	outTable, inTable   = 0x6e6301, 0x6e6302

	probeOut, probeBack, fromInside, fromOutside, localAfter, leaving = 10, 11, 12, 13, 20, 30
)

// probed is where Verify sends its echoes: the IPv4 dummy address (RFC 7600, section 4.4), which nobody else has.
var probed = netip.MustParseAddr("192.0.0.8")

// Detour leads packets of a namespace's interface through a link of this process: all that its processes send, and what comes in from outside of some
// networks. Each packet between two namespaces with detours meets one condition, that of its sender.
type Detour struct {
	link  *Link
	space netns.Handle
	cfg   DetourConfig
}

// DetourConfig says what takes a detour.
type DetourConfig struct {
	// Device is an interface with an address of IPv4.
	Device string
	// Inside are networks whose packets met a condition when they were sent.
	Inside []netip.Prefix
	// Condition is that of each direction.
	Condition Condition
}

// OpenDetour makes a detour in a namespace, in place of one that an ended process left. It lasts until Close. Without it, as when this process ends,
// packets go straight again.
func OpenDetour(space netns.Handle, cfg DetourConfig) (*Detour, error) {
	if err := cfg.Condition.Validate(); err != nil {
		return nil, err
	}
	if err := ClearDetour(space); err != nil {
		return nil, err
	}
	var mtu int
	if err := space.Do(func() error {
		link, err := netlink.LinkByName(cfg.Device)
		if err == nil {
			mtu = link.Attrs().MTU
		}
		return err
	}); err != nil {
		return nil, fmt.Errorf("interface %s: %w", cfg.Device, err)
	}
	link, err := Open(Config{
		Near: End{Space: space, Name: outDevice}, Far: End{Space: space, Name: inDevice, Address: netip.PrefixFrom(probed, 32)},
		There: cfg.Condition, Back: cfg.Condition, MTUBytes: mtu,
	})
	if err != nil {
		return nil, err
	}
	d := &Detour{link: link, space: space, cfg: cfg}
	if err := space.Do(d.lead); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Change sets another condition; see Link.Change.
func (d *Detour) Change(c Condition) error { return d.link.Change(c, c) }

// Verify measures round trips of the detour alone; see Link.Verify.
func (d *Detour) Verify(ctx context.Context, tries int) error { return d.link.Verify(ctx, tries) }

// Counters are those of what left and of what came in.
func (d *Detour) Counters() (out, in Counters) { return d.link.Counters() }

// Close takes the detour away, with what waits on it.
func (d *Detour) Close() error { return errors.Join(ClearDetour(d.space), d.link.Close()) }

// ClearDetour makes packets of a namespace go straight, whoever led them elsewhere. Without a detour it does nothing.
func ClearDetour(space netns.Handle) error {
	return space.Do(func() error {
		rules, err := netlink.RuleListFiltered(netlink.FAMILY_V4, nil, 0)
		if err != nil {
			return err
		}
		first, device, ours := false, "", []netlink.Rule(nil)
		for _, r := range rules {
			local := r.Table == unix.RT_TABLE_LOCAL && (r.Priority == fromInside || r.Priority == localAfter)
			switch {
			case r.Priority == 0:
				first = true
			case local || r.Table == outTable || r.Table == inTable:
				ours = append(ours, r)
			}
			if r.Priority == fromOutside && r.Table == inTable {
				device = r.IifName
			}
		}
		if len(ours) == 0 {
			return nil
		}
		if !first {
			if err := netlink.RuleAdd(localRule(0)); err != nil {
				return fmt.Errorf("giving the rule for local addresses its priority back: %w", err)
			}
		}
		errs := []error{usual(device)}
		for i := range ours {
			errs = append(errs, netlink.RuleDel(&ours[i]))
		}
		return errors.Join(errs...)
	})
}

// lead makes the routes and rules. It is called in the namespace.
func (d *Detour) lead() error {
	device, err := netlink.LinkByName(d.cfg.Device)
	if err != nil {
		return err
	}
	out, err := netlink.LinkByName(outDevice)
	if err != nil {
		return err
	}
	in, err := netlink.LinkByName(inDevice)
	if err != nil {
		return err
	}
	source, err := addressOf(device)
	if err != nil {
		return err
	}
	if err := allow(d.cfg.Device); err != nil {
		return err
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: device.Attrs().Index, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	ways := []netlink.Route{
		{Dst: host(probed), LinkIndex: out.Attrs().Index, Table: outTable, Src: source, Scope: unix.RT_SCOPE_LINK},
		{Dst: everything(), LinkIndex: in.Attrs().Index, Table: inTable, Scope: unix.RT_SCOPE_LINK},
	}
	for _, r := range routes {
		way := netlink.Route{Dst: r.Dst, LinkIndex: out.Attrs().Index, Table: outTable, Src: r.Src, Scope: unix.RT_SCOPE_LINK, MTU: r.MTU}
		if way.Dst == nil {
			way.Dst = everything()
		}
		if way.Src == nil {
			way.Src = source
		}
		ways = append(ways, way)
	}
	for i := range ways {
		if err := netlink.RouteReplace(&ways[i]); err != nil {
			return fmt.Errorf("leading %s on a detour: %w", ways[i].Dst, err)
		}
	}
	return d.rule()
}

// rule makes packets take the routes. The kernel's first rule goes once there is another one that does the same later.
func (d *Detour) rule() error {
	rules := []*netlink.Rule{
		ruleOf(probeOut, outTable, "lo", nil, host(probed)),
		ruleOf(probeBack, inTable, "lo", host(probed), nil),
		ruleOf(fromOutside, inTable, d.cfg.Device, nil, nil),
		localRule(localAfter),
		ruleOf(leaving, outTable, "lo", nil, nil),
	}
	for _, inside := range d.cfg.Inside {
		rules = append(rules, ruleOf(fromInside, unix.RT_TABLE_LOCAL, d.cfg.Device, &net.IPNet{IP: inside.Addr().AsSlice(), Mask: net.CIDRMask(inside.Bits(), 32)}, nil))
	}
	for _, r := range rules {
		if err := netlink.RuleAdd(r); err != nil {
			return fmt.Errorf("adding rule %d: %w", r.Priority, err)
		}
	}
	return netlink.RuleDel(localRule(0))
}

// settings of IPv4 are files of this directory (Documentation/networking/ip-sysctl.rst of Linux).
const settings = "/proc/sys/net/ipv4/"

// allow lets packets with an address of this namespace come in by the devices, and go on from one to the other. Without early demultiplexing: it finds the
// socket of a packet that comes in, and packets with a socket are not forwarded.
func allow(device string) error {
	return set(map[string]string{
		"ip_early_demux": "0", "conf/all/rp_filter": "0", "conf/" + outDevice + "/rp_filter": "0", "conf/" + inDevice + "/rp_filter": "0", "conf/" + device + "/rp_filter": "0",
		"conf/" + outDevice + "/accept_local": "1", "conf/" + inDevice + "/accept_local": "1", "conf/" + inDevice + "/forwarding": "1", "conf/" + device + "/forwarding": "1",
	})
}

// usual gives the settings that outlive the devices the values that a new namespace has.
func usual(device string) error {
	filter, err := os.ReadFile(settings + "conf/default/rp_filter")
	if err != nil {
		return err
	}
	values := map[string]string{"ip_early_demux": "1", "conf/all/rp_filter": string(filter)}
	if device != "" {
		values["conf/"+device+"/rp_filter"], values["conf/"+device+"/forwarding"] = string(filter), "0"
	}
	return set(values)
}

func set(values map[string]string) error {
	for file, value := range values {
		if err := os.WriteFile(settings+file, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

func addressOf(link netlink.Link) (net.IP, error) {
	addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	if len(addresses) == 0 {
		return nil, errors.New("interface " + strconv.Quote(link.Attrs().Name) + " has no address of IPv4")
	}
	return addresses[0].IP, nil
}

func ruleOf(priority, table int, from string, source, destination *net.IPNet) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table, r.IifName, r.Src, r.Dst = netlink.FAMILY_V4, priority, table, from, source, destination
	return r
}

func localRule(priority int) *netlink.Rule {
	return ruleOf(priority, unix.RT_TABLE_LOCAL, "", nil, nil)
}

func host(a netip.Addr) *net.IPNet { return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)} }

func everything() *net.IPNet { return &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)} }
