// Package floating reads what people write about floating addresses: the site's pool, and ports that are forwarded.
//
// It is pure. It must not know which addresses are held, nor by which project. Start with Pool.
package floating

import (
	"fmt"
	"iter"
	"net/netip"
	"regexp"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// MaxPorts is how many ports of one address may be forwarded.
const MaxPorts = 64

// Pool is the prefixes that the addresses of a site come from, in order. The zero value has none.
type Pool struct{ prefixes []netip.Prefix }

// minBits bounds a prefix of the pool: a million addresses.
const minBits = 12

// NewPool returns the pool of these prefixes. It refuses prefixes that overlap each other or a network which the pool must leave alone.
func NewPool(texts []string, leave ...netip.Prefix) (Pool, error) {
	var p Pool
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		switch {
		case err != nil || !prefix.Addr().Is4():
			return Pool{}, fmt.Errorf("%s is not an IPv4 prefix: write ADDRESS/BITS, such as 192.0.2.0/28", text)
		case prefix != prefix.Masked():
			return Pool{}, fmt.Errorf("%s has bits beyond its length; did you mean %s?", text, prefix.Masked())
		case prefix.Bits() < minBits:
			return Pool{}, fmt.Errorf("%s is too large: give prefixes of /%d or longer", text, minBits)
		case !usable(prefix.Addr()):
			return Pool{}, fmt.Errorf("%s is a range that no host may have", text)
		}
		for _, other := range slices.Concat(p.prefixes, leave) {
			if other.Overlaps(prefix) {
				return Pool{}, fmt.Errorf("%s overlaps %s; choose another prefix", text, other)
			}
		}
		p.prefixes = append(p.prefixes, prefix)
	}
	return p, nil
}

// usable reports whether hosts may have addresses like this one.
func usable(a netip.Addr) bool {
	return !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && a.As4()[0] != 0 && a.As4()[0] < 240
}

// Prefixes returns the prefixes of the pool.
func (p Pool) Prefixes() []netip.Prefix { return slices.Clone(p.prefixes) }

// IsEmpty reports whether the site has no floating addresses.
func (p Pool) IsEmpty() bool { return len(p.prefixes) == 0 }

// String writes the pool for error messages.
func (p Pool) String() string {
	text := ""
	for i, prefix := range p.prefixes {
		if i > 0 {
			text += ", "
		}
		text += prefix.String()
	}
	return text
}

// Has reports whether a project may have the address: it is in the pool, and not the first or last of a prefix, which may be the network's own.
func (p Pool) Has(a netip.Addr) bool {
	for _, prefix := range p.prefixes {
		if prefix.Contains(a) {
			return prefix.Bits() >= 31 || prefix.Contains(a.Prev()) && prefix.Contains(a.Next())
		}
	}
	return false
}

// All yields the addresses that projects may have, in order.
func (p Pool) All() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, prefix := range p.prefixes {
			for a := prefix.Addr(); prefix.Contains(a); a = a.Next() {
				if p.Has(a) && !yield(a) {
					return
				}
			}
		}
	}
}

// portForm is a forwarded port as people write it; without the second number the member's port is the same.
var portForm = regexp.MustCompile(`^(tcp|udp)/([0-9]{1,5})(?:=([0-9]{1,5}))?$`)

// ParsePort reads a forwarded port, such as tcp/2222=22.
func ParsePort(text string) (fabric.Forward, error) {
	m := portForm.FindStringSubmatch(text)
	if m == nil {
		return fabric.Forward{}, fmt.Errorf("%q is not a forwarded port: write tcp/PORT=MEMBERPORT or udp/PORT=MEMBERPORT, such as tcp/2222=22", text)
	}
	f := fabric.Forward{Protocol: m[1]}
	for i, into := range []*uint16{&f.Port, &f.MemberPort} {
		digits := m[2+i]
		if digits == "" {
			digits = m[2]
		}
		n, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || n == 0 {
			return fabric.Forward{}, fmt.Errorf("%q: %s is not a port; ports are 1 to 65535", text, digits)
		}
		*into = uint16(n)
	}
	return f, nil
}

// NormalPorts returns forwarded ports as they are stored: in order, each with both numbers. It refuses ports of the address that appear twice.
func NormalPorts(texts []string) ([]string, error) {
	if len(texts) > MaxPorts {
		return nil, fmt.Errorf("%d ports are forwarded; at most %d of an address can be", len(texts), MaxPorts)
	}
	type outer struct {
		protocol string
		port     uint16
	}
	seen := map[outer]bool{}
	var ports []fabric.Forward
	for _, text := range texts {
		f, err := ParsePort(text)
		if err != nil {
			return nil, err
		}
		if seen[outer{f.Protocol, f.Port}] {
			return nil, fmt.Errorf("port %s/%d is forwarded twice", f.Protocol, f.Port)
		}
		seen[outer{f.Protocol, f.Port}] = true
		ports = append(ports, f)
	}
	slices.SortFunc(ports, fabric.Forward.Compare)
	normal := make([]string, 0, len(ports))
	for _, f := range ports {
		normal = append(normal, f.String())
	}
	return normal, nil
}

// Forwards returns forwarded ports that are stored. One that can't be read forwards nothing.
func Forwards(texts []string) []fabric.Forward {
	var ports []fabric.Forward
	for _, text := range texts {
		if f, err := ParsePort(text); err == nil {
			ports = append(ports, f)
		}
	}
	return ports
}

// WayOut returns which of a member's ports has its default route, so that a floating address can lead to it; -1 for none. Answers from another
// port would leave by this one, with an address that is not its own.
func WayOut(a *api.Assignment, network func(uid string) *api.Network) int {
	networks := make([]api.Network, len(a.Ports)) // one that is not known has no way out
	for i := range a.Ports {
		if n := network(a.Ports[i].Network); n != nil {
			networks[i] = *n
		}
	}
	return api.WayOut(networks)
}
