package netboot

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/nearmetal/nearmetal/internal/pool"
)

// Contains reports whether an address is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.IsValid() && r.From.IsValid() && r.From.Compare(a) <= 0 && a.Compare(r.To) <= 0
}

// Size is how many addresses the range has.
func (r Range) Size() int {
	if !r.From.Is4() || !r.To.Is4() || r.From.Compare(r.To) > 0 {
		return 0
	}
	return int(pool.Host(r.From, r.To)) + 1
}

// At is the address at an index of the range, from 0; it is invalid past its end.
func (r Range) At(index int) netip.Addr {
	if index < 0 || index >= r.Size() {
		return netip.Addr{}
	}
	return pool.Offset(r.From, uint32(index))
}

// String is the range as people write it.
func (r Range) String() string { return r.From.String() + "-" + r.To.String() }

// Check returns what is wrong with the network's configuration, nil when nothing is. It looks at no interface.
func (n Network) Check() error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if n.Interface == "" {
		wrong("the provisioning network has no interface; name the interface that machines boot from")
	}
	if !n.Address.IsValid() || !n.Address.Addr().Is4() || n.Address.Bits() > 30 {
		wrong("the server's address %s on the provisioning network must be IPv4 with a prefix of at most 30 bits, like 10.77.0.1/16", n.Address)
		return errors.Join(problems...)
	}
	if n.HTTPPort < 1 || n.HTTPPort > 65535 {
		wrong("the HTTP port %d of network boot is not a valid port", n.HTTPPort)
	}
	if n.Proxy {
		return errors.Join(problems...)
	}
	for name, r := range map[string]Range{"machines": n.Machines, "strangers": n.Strangers} {
		if err := n.checkRange(name, r); err != nil {
			problems = append(problems, err)
		}
	}
	if a, b := n.Machines, n.Strangers; a.Size() > 0 && b.Size() > 0 && (a.Contains(b.From) || b.Contains(a.From)) {
		wrong("the ranges for machines (%s) and strangers (%s) overlap", a, b)
	}
	return errors.Join(problems...)
}

func (n Network) checkRange(name string, r Range) error {
	prefix := n.Address.Masked()
	last := lastOf(prefix)
	switch {
	case r.Size() == 0:
		return fmt.Errorf("the range for %s (%s) contains no address; give IPv4 addresses as FROM-TO", name, r)
	case !prefix.Contains(r.From) || !prefix.Contains(r.To):
		return fmt.Errorf("the range for %s (%s) is not within the provisioning network %s", name, r, prefix)
	case r.Contains(prefix.Addr()) || r.Contains(last):
		return fmt.Errorf("the range for %s (%s) contains the network's own address or its broadcast address (%s, %s)", name, r, prefix.Addr(), last)
	case r.Contains(n.Address.Addr()):
		return fmt.Errorf("the range for %s (%s) contains the server's own address %s", name, r, n.Address.Addr())
	case n.Router.IsValid() && r.Contains(n.Router):
		return fmt.Errorf("the range for %s (%s) contains the router's address %s", name, r, n.Router)
	}
	return nil
}

// Broadcast is the network's broadcast address.
func (n Network) Broadcast() netip.Addr { return lastOf(n.Address.Masked()) }

func lastOf(prefix netip.Prefix) netip.Addr {
	return pool.Offset(prefix.Addr(), 1<<(32-prefix.Bits())-1)
}
