package responder

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/nearmetal/nearmetal/api"
)

// Names are the names that the members of one cluster know, in the domain and without it. They never change.
type Names struct {
	cluster           string
	hosts, resolvConf []byte
	table             func() table
	// outside are the servers to ask for names of the outside; empty: nobody may be asked.
	outside []netip.Addr
}

// NewNames returns the names of a cluster's hosts file. Members of the cluster have a name of one label there, and members of other clusters
// MEMBER.CLUSTER. Names of the outside are asked of the servers in resolvConf, which may be empty. The files must not change afterwards.
func NewNames(cluster string, hosts, resolvConf []byte) *Names {
	n := &Names{cluster: cluster, hosts: hosts, resolvConf: resolvConf}
	n.table = sync.OnceValue(func() table { return readHosts(cluster, hosts) }) // most members never ask
	for line := range bytes.Lines(resolvConf) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if server, err := netip.ParseAddr(fields[1]); err == nil {
			n.outside = append(n.outside, server)
		}
	}
	return n
}

// Same reports whether NewNames would return the same names for these arguments.
func (n *Names) Same(cluster string, hosts, resolvConf []byte) bool {
	return n != nil && n.cluster == cluster && bytes.Equal(n.hosts, hosts) && bytes.Equal(n.resolvConf, resolvConf)
}

// Search returns the domains that complete short names.
func (n *Names) Search() []string { return api.SearchDomains(n.cluster) }

// table is a hosts file by name and by address. Names are relative to the domain.
type table struct {
	addresses map[string][]netip.Addr
	names     map[netip.Addr]string
	// records are names of the project's own with a dot, outside of the domain. pointers are full names by the addresses of all records.
	records  map[string][]netip.Addr
	pointers map[netip.Addr]string
}

// readHosts reads a hosts file. A cluster's name leads to all of its members.
func readHosts(cluster string, hosts []byte) table {
	t := table{addresses: map[string][]netip.Addr{}, names: map[netip.Addr]string{}, records: map[string][]netip.Addr{}, pointers: map[netip.Addr]string{}}
	for line := range bytes.Lines(hosts) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 {
			continue
		}
		a, err := netip.ParseAddr(fields[0])
		if err != nil || a.IsLoopback() {
			continue
		}
		name := strings.ToLower(fields[1])
		if strings.HasSuffix(string(bytes.TrimSpace(line)), api.RecordMark) {
			t.addRecord(cluster, name, a)
			continue
		}
		member, of, qualified := strings.Cut(name, ".")
		if !qualified {
			of = strings.ToLower(cluster)
		}
		name = member + "." + of
		t.addresses[name] = append(t.addresses[name], a)
		t.addresses[of] = append(t.addresses[of], a)
		if t.names[a] == "" {
			t.names[a] = name
		}
	}
	return t
}

// addRecord adds an address of a project's own name. One of a single label is known like a member.
func (t *table) addRecord(cluster, name string, a netip.Addr) {
	if !strings.Contains(name, ".") {
		name += "." + strings.ToLower(cluster)
		t.addresses[name] = append(t.addresses[name], a)
		name += "." + api.Domain
	} else {
		t.records[name] = append(t.records[name], a)
	}
	if t.pointers[a] == "" {
		t.pointers[a] = name + "."
	}
}

// found is what a look-up results in.
type found struct {
	// known: there is such a name. It may have no record of the type.
	known     bool
	addresses []netip.Addr
	pointer   string // a full name
	// foreign: the name is not among those that the cluster alone decides on.
	foreign bool
}

// address looks a name up, with or without a dot at its end.
func (n *Names) address(name string) found {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	switch name {
	case api.Domain:
		return found{known: true}
	case "": // the root
		return found{foreign: true}
	}
	relative, inDomain := strings.CutSuffix(name, "."+api.Domain)
	if !strings.Contains(name, ".") {
		relative = name + "." + strings.ToLower(n.cluster)
	}
	if records := n.table().records[name]; len(records) > 0 {
		return found{known: true, addresses: records}
	}
	addresses := n.table().addresses[relative]
	return found{
		known: len(addresses) > 0, addresses: addresses,
		foreign: len(addresses) == 0 && !inDomain && strings.Contains(name, "."),
	}
}

// pointer looks an address up by its name in in-addr.arpa (RFC 1035, section 3.5) or in ip6.arpa (RFC 3596, section 2.5). Addresses in one of the
// prefixes are the cluster's alone to name.
func (n *Names) pointer(name string, prefixes ...netip.Prefix) (f found, isPointer bool) {
	a, ok := reversedAddress(strings.ToLower(strings.TrimSuffix(name, ".")))
	if !ok {
		return found{}, false
	}
	relative, known := n.table().names[a]
	if full := n.table().pointers[a]; !known && full != "" {
		return found{known: true, pointer: full}, true
	}
	if !known {
		return found{foreign: !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })}, true
	}
	return found{known: true, pointer: relative + "." + api.Domain + "."}, true
}

// reversedAddress reads the address that a name for pointers is about.
func reversedAddress(name string) (netip.Addr, bool) {
	reversed, four := strings.CutSuffix(name, ".in-addr.arpa")
	nibbles, six := strings.CutSuffix(name, ".ip6.arpa")
	switch {
	case four:
		labels := strings.Split(reversed, ".")
		slices.Reverse(labels)
		a, err := netip.ParseAddr(strings.Join(labels, "."))
		return a, err == nil && a.Is4()
	case six:
		labels := strings.Split(nibbles, ".")
		slices.Reverse(labels)
		b, err := hex.DecodeString(strings.Join(labels, ""))
		if err != nil || len(b) != 16 || len(labels) != 32 {
			return netip.Addr{}, false
		}
		return netip.AddrFrom16([16]byte(b)), true
	default:
		return netip.Addr{}, false
	}
}
