package manifest

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// The bounds of the records of a network. Each goes into the hosts file of each member.
const (
	MaxRecords         = 256
	MaxRecordName      = 253 // RFC 1035, section 2.3.4, as text
	MaxRecordAddresses = 16
	// RecordNamePattern matches names of records: labels as of host names (RFC 1123, section 2.1), in lower case.
	RecordNamePattern = `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`
)

// RecordName returns a name as records have it.
func RecordName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// CheckNetworkRecords refuses a change of a network's records that changes nothing, conflicts with itself, or names what no record can. The
// error is an *Invalid.
func CheckNetworkRecords(change api.NetworkRecords, src *Source) error {
	n := normalizer{src: src}
	if len(change.Set)+len(change.Remove) == 0 {
		n.add("set", "", "is missing; give records to set, or names to remove")
	}
	if count := max(len(change.Set), len(change.Remove)); count > MaxRecords {
		n.add("set", strconv.Itoa(count), "has %d records; a network has at most %d", count, MaxRecords)
		return n.err()
	}
	seen := map[string]string{}
	named := func(path, name string) {
		if problem := recordNameProblem(name); problem != "" {
			n.add(path, name, "%q %s", name, problem)
		} else if other, twice := seen[RecordName(name)]; twice {
			n.add(path, name, "%q is also %s; name every record once", name, other)
		}
		seen[RecordName(name)] = path
	}
	for i, r := range change.Set {
		path := fmt.Sprintf("set[%d]", i)
		named(path+".name", r.Name)
		if len(r.Addresses) == 0 || len(r.Addresses) > MaxRecordAddresses {
			n.add(path+".addresses", strconv.Itoa(len(r.Addresses)), "has %d addresses; give 1 to %d", len(r.Addresses), MaxRecordAddresses)
			continue
		}
		for j, text := range r.Addresses {
			at := fmt.Sprintf("%s.addresses[%d]", path, j)
			a, err := netip.ParseAddr(text)
			switch {
			case err != nil || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast():
				n.add(at, text, "%q is not the address of a host", text)
			case slices.Index(r.Addresses, text) < j:
				n.add(at, text, "%s appears twice; give every address once", text)
			}
		}
	}
	for i, name := range change.Remove {
		named(fmt.Sprintf("remove[%d]", i), name)
	}
	return n.err()
}

// recordNameProblem returns what is wrong with the name of a record, "" if nothing is.
func recordNameProblem(name string) string {
	plain := RecordName(name)
	switch {
	case len(plain) > MaxRecordName:
		return fmt.Sprintf("has %d bytes; a name has at most %d", len(plain), MaxRecordName)
	case !recordName.MatchString(plain):
		return "is not a DNS name; write labels of letters, digits and hyphens, such as licence or licence.lab"
	case plain == api.Domain || strings.HasSuffix(plain, "."+api.Domain):
		return "is in the domain of members and clusters, " + api.Domain + "; choose a name outside of it"
	case plain == "localhost" || strings.HasSuffix(plain, ".localhost"):
		return "always means the member itself; choose another name"
	}
	return ""
}
