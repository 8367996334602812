package server

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/nearmetal/nearmetal/api"
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

// networkPool6 reads --network-pool6; the zero value: the site's own.
func networkPool6(text string) (placement.Pool6, error) {
	if text == "" {
		return placement.Pool6{}, nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return placement.Pool6{}, fmt.Errorf("--network-pool6 %s is not a prefix: write ADDRESS/BITS, such as fd12:3456:789a::/48", text)
	}
	pool, err := placement.NewPool6(prefix)
	if err != nil {
		return placement.Pool6{}, fmt.Errorf("--network-pool6: %w", err)
	}
	return pool, nil
}

// sitePool6 is the IPv6 pool that was chosen, or the site's unique local prefix.
func (s *Server) sitePool6() placement.Pool6 {
	if s.pool6.IsValid() {
		return s.pool6
	}
	return placement.SitePool6(s.authority.Site())
}

// vlanPool reads the VLAN IDs that networks can have.
func vlanPool(text string) (api.VLANPool, error) {
	if text == "" {
		return api.VLANPool{}, nil
	}
	pool, err := api.ParseVLANPool(text)
	if err != nil {
		return pool, fmt.Errorf("--vlan-pool: %w", err)
	}
	return pool, nil
}

// pkeyPool reads the partition keys that networks can have.
func pkeyPool(text string) (api.PKeyPool, error) {
	if text == "" {
		return api.PKeyPool{}, nil
	}
	pool, err := api.ParsePKeyPool(text)
	if err != nil {
		return pool, fmt.Errorf("--pkey-pool: %w", err)
	}
	return pool, nil
}
