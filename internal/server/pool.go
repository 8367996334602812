package server

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/nearmetal/nearmetal/internal/placement"
)

// networkPool reads --network-pool. A pool that was chosen must leave this machine its own networks; the default is what it is, and its
// clusters keep running on machines that have an address in it.
func networkPool(text string) (placement.Pool, error) {
	if text == "" {
		return placement.DefaultPool, nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return placement.Pool{}, fmt.Errorf("--network-pool %s is not a prefix: write ADDRESS/BITS, such as %s", text, placement.DefaultPool)
	}
	pool, err := placement.NewPool(prefix)
	if err != nil {
		return placement.Pool{}, fmt.Errorf("--network-pool: %w", err)
	}
	links, err := net.Interfaces()
	if err != nil {
		return placement.Pool{}, fmt.Errorf("read this machine's networks: %w", err)
	}
	for _, link := range links {
		addresses, err := link.Addrs()
		if err != nil || strings.HasPrefix(link.Name, "nm") {
			continue // gone meanwhile, or a cluster's
		}
		for _, a := range addresses {
			own, err := netip.ParsePrefix(a.String())
			if err == nil && own.Masked().Overlaps(pool.Prefix()) {
				return placement.Pool{}, fmt.Errorf("--network-pool %s overlaps this machine's network %s on %s: members could not reach it; choose another prefix", pool, own.Masked(), link.Name)
			}
		}
	}
	return pool, nil
}
