// Package partitions writes the file of partitions that OpenSM reads, and reads the operator's own.
//
// OpenSM 3.3.23 reads one file and knows no include. The file is therefore composed: Nearmetal's partitions first, then the operator's file as it
// is, so that an error in the latter can't take partitions away from tenants. An operator's file in which OpenSM would skip something is refused
// with its line, because OpenSM only logs it. The package is pure. Start with Compose.
package partitions

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
)

// The partition keys that mark which file the subnet manager has carried out, without the membership bit. Its own port is their only member.
// No network has one of them.
const (
	FirstMarker = 0x7ff0
	LastMarker  = 0x7ffe
)

// DefaultPKey is the key of the default partition (InfiniBand Architecture Specification 1.2.1, 10.9.2).
const DefaultPKey = 0x7fff

// IsMarker reports whether a partition key marks a file.
func IsMarker(pkey int) bool { return pkey >= FirstMarker && pkey <= LastMarker }

// Content is what the file is made of.
type Content struct {
	Networks []site.Network
	// Marker is the partition key that marks this content.
	Marker int
	// Operator is the operator's own file, verbatim, and OperatorPath where it is; both may be empty.
	Operator, OperatorPath string
}

// portsALine keeps lines below the 4,094 characters that OpenSM reads at once (osm_prtn_config.c).
const portsALine = 64

// Compose returns the file. The operator's part is as it was given; Parse checks it.
func Compose(c Content) (string, error) {
	var text strings.Builder
	text.WriteString(header)
	if c.OperatorPath != "" {
		fmt.Fprintf(&text, "# Your own partitions belong in %s, which is copied to the end of this file.\n", c.OperatorPath)
	}
	if !strings.Contains(c.Operator, ":") {
		text.WriteString("Default=0x7fff: ALL=limited, SELF=full;\n")
	}
	fmt.Fprintf(&text, "nearmetal-marker=0x%04x: SELF=full;\n", c.Marker)
	for _, n := range c.Networks {
		flags, err := flagsOf(n)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&text, "nearmetal-%04x=0x%04x%s:", n.Number, n.Number, flags)
		ports := slices.SortedFunc(slices.Values(n.Ports), func(a, b site.Port) int { return cmp.Compare(a.At, b.At) })
		for i, p := range ports {
			separator := ", "
			switch {
			case i == 0:
				separator = " "
			case i%portsALine == 0:
				separator = ",\n\t"
			}
			fmt.Fprintf(&text, "%s0x%s=%s", separator, p.At, membership(p.Limited))
		}
		text.WriteString(";\n")
	}
	if c.Operator != "" {
		text.WriteString("# The operator's partitions.\n" + c.Operator)
		if !strings.HasSuffix(c.Operator, "\n") {
			text.WriteString("\n")
		}
	}
	return text.String(), nil
}

const header = "# Written by Nearmetal. Changes here are undone.\n"

// Ours reports whether a file was written by Compose.
func Ours(text string) bool { return strings.HasPrefix(text, header) }

func membership(limited bool) string {
	if limited {
		return "limited"
	}
	return "full"
}

// mtuCodes and rateCodes are the values of MCMemberRecord (InfiniBand Architecture Specification 1.2.1, 15.2.5.17, and 1.3, table 210).
func mtuCodes() map[int]int { return map[int]int{256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5} }

func rateCodes() map[int]int {
	return map[int]int{5: 5, 10: 3, 14: 11, 20: 6, 25: 15, 28: 19, 30: 4, 40: 7, 50: 20, 56: 12, 60: 8, 80: 9, 100: 16, 112: 13, 120: 10, 168: 14, 200: 17, 300: 18, 400: 21}
}

// flagsOf returns a network's flags for its definition.
func flagsOf(n site.Network) (string, error) {
	p := n.Partition
	var flags string
	if p.IPoIB {
		flags = ",ipoib"
	}
	if p.MTUBytes != 0 {
		code, ok := mtuCodes()[p.MTUBytes]
		if !ok {
			return "", fmt.Errorf("partition 0x%04x: no InfiniBand MTU has %d bytes; the MTUs are 256, 512, 1024, 2048 and 4096", n.Number, p.MTUBytes)
		}
		flags += fmt.Sprintf(",mtu=%d", code)
	}
	if p.RateGbps != 0 {
		code, ok := rateCodes()[p.RateGbps]
		if !ok {
			return "", fmt.Errorf("partition 0x%04x: InfiniBand has no rate of %d Gbit/s", n.Number, p.RateGbps)
		}
		flags += fmt.Sprintf(",rate=%d", code)
	}
	if p.ServiceLevel != 0 {
		if p.ServiceLevel < 0 || p.ServiceLevel > 15 {
			return "", fmt.Errorf("partition 0x%04x: service level %d is not 0 to 15", n.Number, p.ServiceLevel)
		}
		flags += fmt.Sprintf(",sl=%d", p.ServiceLevel)
	}
	return flags, nil
}

// Check reports what is wrong with networks for an InfiniBand fabric, beyond what site.Validate finds.
func Check(networks []site.Network) error {
	for _, n := range networks {
		if n.Number > api.MaxPKey || IsMarker(n.Number) {
			return &site.Refusal{Number: n.Number, Err: fmt.Errorf("partition key 0x%x is reserved; networks have 0x%04x to 0x%04x", n.Number, api.MinPKey, FirstMarker-1)}
		}
		if _, err := flagsOf(n); err != nil {
			return &site.Refusal{Err: err}
		}
		for _, p := range n.Ports {
			if _, err := GUID(p.At); err != nil {
				return fmt.Errorf("partition 0x%04x: port %q: %w", n.Number, p.At, err)
			}
		}
	}
	return nil
}

// GUID reads a port GUID: 16 hexadecimal digits in lower case, and not 0.
func GUID(text string) (uint64, error) {
	var guid uint64
	if len(text) == 16 && strings.Trim(text, "0123456789abcdef") == "" {
		_, _ = fmt.Sscanf(text, "%x", &guid)
	}
	if guid == 0 {
		return 0, fmt.Errorf("a port GUID is 16 hexadecimal digits, such as 0002c903000e0b73")
	}
	return guid, nil
}
