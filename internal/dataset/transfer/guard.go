package transfer

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// Outside refuses addresses of this machine and of its links alone. A node fetches what a user names, and hands it to that user: services of the node
// that trust whoever is on the machine must not be reached this way.
func Outside(a netip.Addr) error {
	a = a.Unmap()
	switch {
	case a.IsLoopback() || a.IsUnspecified():
		return fmt.Errorf("%s is the node itself", a)
	case a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsInterfaceLocalMulticast():
		return fmt.Errorf("%s is an address of a link alone", a)
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, o := range own {
		if p, err := netip.ParsePrefix(o.String()); err == nil && p.Addr().Unmap() == a {
			return fmt.Errorf("%s is the node itself", a)
		}
	}
	return nil
}

// allowed looks a host up and returns its addresses that may be asked.
func (f *Fetcher) allowed(ctx context.Context, host string) ([]netip.Addr, error) {
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var good []netip.Addr
	for _, a := range all {
		if err = f.cfg.Allow(a); err == nil {
			good = append(good, a.Unmap())
		}
	}
	if len(good) == 0 {
		return nil, fmt.Errorf("%s must not be asked: %w", host, err)
	}
	return good, nil
}
