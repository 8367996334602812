package server

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
)

// maxStrangers bounds the addresses that are set apart for strangers unless a range is given.
const maxStrangers = 256

// provisioningNetwork reads where machines boot from: the interface's own address, and the ranges that were given or follow from it.
func provisioningNetwork(cfg config.Provision) (netboot.Network, error) {
	n := netboot.Network{Interface: cfg.Interface, Proxy: cfg.Proxy, HTTPPort: config.ImagePort}
	link, err := net.InterfaceByName(cfg.Interface)
	if err != nil {
		return n, fmt.Errorf("--provision %s: this machine has no such interface (see: ip link)", cfg.Interface)
	}
	addresses, err := link.Addrs()
	if err != nil {
		return n, fmt.Errorf("--provision %s: %w", cfg.Interface, err)
	}
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Is4() && !n.Address.IsValid() {
			n.Address = prefix
		}
	}
	if !n.Address.IsValid() {
		return n, fmt.Errorf("--provision %s: the interface has no IPv4 address; add one, for example: ip addr add 10.9.0.1/24 dev %[1]s", cfg.Interface)
	}
	if err := ranges(&n, cfg); err != nil {
		return n, err
	}
	if err := n.Check(); err != nil {
		return n, fmt.Errorf("--provision %s: %w", cfg.Interface, err)
	}
	return n, nil
}

// agentAddress is HOST:PORT of the API for machines, at the server's address on the provisioning network; extra when the API has to listen
// there besides.
func agentAddress(listen string, n netboot.Network) (address string, extra bool, err error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", false, fmt.Errorf("listen address %q: %w; write HOST:PORT", listen, err)
	}
	ip, _ := netip.ParseAddr(host)
	own := n.Address.Addr()
	return net.JoinHostPort(own.String(), port), host != "" && ip != own && !ip.IsUnspecified(), nil
}

// neighborLimit is where the kernel tells how many addresses it keeps of neighbours, for all namespaces together (arp(7), gc_thresh3). What
// goes to more machines than that at once is dropped without a word.
const neighborLimit = "/proc/sys/net/ipv4/neigh/default/gc_thresh3"

// crowded tells in words that the network has more addresses than the kernel keeps neighbours; "" when it has not.
func crowded(n netboot.Network, limit string) string {
	text, err := os.ReadFile(limit)
	if err != nil {
		return "" // another system's
	}
	bound, err := strconv.Atoi(strings.TrimSpace(string(text)))
	want := n.Machines.Size() + n.Strangers.Size()
	if err != nil || want <= bound {
		return ""
	}
	return fmt.Sprintf("this machine keeps at most %d ARP neighbors, but the provisioning network has %d addresses: with that many machines "+
		"some would get no reply; run: sysctl -w net.ipv4.neigh.default.gc_thresh3=%d net.ipv4.neigh.default.gc_thresh2=%d", bound, want, 2*want, want)
}

// ranges fills in the ranges of addresses. What is not given follows from the network: the larger side of it beside the server's address, its
// last quarter for strangers.
func ranges(n *netboot.Network, cfg config.Provision) error {
	prefix := n.Address.Masked()
	whole := netboot.Range{From: prefix.Addr().Next(), To: n.Broadcast().Prev()}
	below := netboot.Range{From: whole.From, To: n.Address.Addr().Prev()}
	above := netboot.Range{From: n.Address.Addr().Next(), To: whole.To}
	usable := above
	if below.Size() > above.Size() {
		usable = below
	}
	strangers := min(usable.Size()/4, maxStrangers)
	n.Machines = netboot.Range{From: usable.From, To: usable.At(usable.Size() - strangers - 1)}
	n.Strangers = netboot.Range{From: usable.At(usable.Size() - strangers), To: usable.To}
	for flag, r := range map[string]struct {
		text string
		to   *netboot.Range
	}{"machine-range": {cfg.Machines, &n.Machines}, "stranger-range": {cfg.Strangers, &n.Strangers}} {
		if r.text == "" {
			continue
		}
		parsed, err := parseRange(r.text)
		if err != nil {
			return fmt.Errorf("--%s %s: %w", flag, r.text, err)
		}
		*r.to = parsed
	}
	return nil
}

func parseRange(text string) (netboot.Range, error) {
	from, to, ok := strings.Cut(text, "-")
	a, errA := netip.ParseAddr(strings.TrimSpace(from))
	b, errB := netip.ParseAddr(strings.TrimSpace(to))
	if !ok || errA != nil || errB != nil || !a.Is4() || !b.Is4() {
		return netboot.Range{}, fmt.Errorf("write FROM-TO with two IPv4 addresses, for example 10.9.0.10-10.9.0.99")
	}
	return netboot.Range{From: a, To: b}, nil
}
