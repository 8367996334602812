package hostsnapshot

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// links lists links, addresses, routes of all tables and policy rules of the network namespace this process is in.
func (c *collector) links(context.Context) error {
	links, err := retryDump(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("the links of this host can't be listed: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		c.add(Link, a.Name, Item{Detail: fmt.Sprintf("%s, index %d, MAC %s, MTU %d, master %d, flags %s", l.Type(), a.Index,
			a.HardwareAddr, a.MTU, a.MasterIndex, a.Flags)})
	}
	addresses, err := retryDump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("the addresses of this host can't be listed: %w", err)
	}
	for _, a := range addresses {
		c.add(Address, fmt.Sprintf("%s on %s", a.IPNet, names[a.LinkIndex]), Item{})
	}
	return c.routes(names)
}

func (c *collector) routes(names map[int]string) error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := retryDump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return fmt.Errorf("the routes of this host can't be listed: %w", err)
		}
		for _, r := range routes {
			if r.Flags&unix.RTM_F_CLONED != 0 {
				continue // a cached route
			}
			c.add(Route, fmt.Sprintf("%v via %v dev %s table %d type %d metric %d", r.Dst, r.Gw, names[r.LinkIndex], r.Table, r.Type, r.Priority), Item{})
		}
		rules, err := retryDump(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
		if err != nil {
			c.note("rules: the policy rules of family %d can't be listed: %v", family, err)
			continue
		}
		for _, r := range rules {
			c.add(Rule, r.String(), Item{})
		}
	}
	return nil
}

// retryDump repeats a netlink dump that the kernel says was inconsistent because something changed meanwhile (NLM_F_DUMP_INTR).
func retryDump[T any](dump func() ([]T, error)) ([]T, error) {
	for attempt := 0; ; attempt++ {
		out, err := dump()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || attempt == 20 {
			return out, err
		}
	}
}

// Socket states of include/net/tcp_states.h as /proc/net shows them: a TCP socket that listens, a UDP socket without a peer.
const (
	tcpListen = "0A"
	udpOpen   = "07"
)

// sockets lists those that listen, with the processes that hold them.
func (c *collector) sockets(context.Context) error {
	for _, table := range []struct{ name, state string }{
		{"tcp", tcpListen}, {"tcp6", tcpListen}, {"udp", udpOpen}, {"udp6", udpOpen},
	} {
		for i, line := range strings.Split(strings.TrimSpace(c.read("/proc/net/"+table.name)), "\n") {
			f := strings.Fields(line)
			if i == 0 || len(f) < 10 || f[3] != table.state {
				continue
			}
			key := table.name + " " + decodeAddress(f[1])
			item := c.snapshot.items[Socket][key] // several sockets may share a port
			item.holders = append(slices.Clone(item.holders), c.holding["socket:"+f[9]]...)
			c.add(Socket, key, item)
		}
	}
	// /proc/net/unix: Num RefCount Protocol Flags Type St Inode Path; __SO_ACCEPTCON (1<<16) marks one that listens.
	for i, line := range strings.Split(strings.TrimSpace(c.read("/proc/net/unix")), "\n") {
		f := strings.Fields(line)
		if i == 0 || len(f) < 7 {
			continue
		}
		if flags, err := strconv.ParseUint(f[3], 16, 64); err != nil || flags&(1<<16) == 0 {
			continue
		}
		name := "unnamed, inode " + f[6]
		if len(f) > 7 {
			name = f[7]
		}
		item := Item{holders: c.holding["socket:"+f[6]]}
		if strings.HasPrefix(name, "/") {
			item.place = name
		}
		c.add(Socket, "unix "+name, item)
	}
	return nil
}

// decodeAddress turns "0100007F:1F90" into "127.0.0.1:8080": 32-bit words in host byte order (little-endian on all machines
// this runs on), the port in hexadecimal.
func decodeAddress(s string) string {
	host, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(raw)%4 != 0 {
		return s
	}
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word)
	}
	address, ok := netip.AddrFromSlice(raw)
	if !ok {
		return s
	}
	return netip.AddrPortFrom(address, uint16(n)).String()
}
