package api

import (
	"fmt"
	"strconv"
	"strings"
)

// PKeyPool is the partition keys that networks of a site can have, without the membership bit; the zero value is none.
type PKeyPool struct{ First, Last int }

// ParsePKeyPool reads FIRST-LAST, or one key, in hexadecimal with 0x in front or in decimal.
func ParsePKeyPool(text string) (PKeyPool, error) {
	from, to, several := strings.Cut(text, "-")
	if !several {
		to = from
	}
	first, err := ParsePKey(from)
	last, lastErr := ParsePKey(to)
	if err != nil || lastErr != nil {
		return PKeyPool{}, fmt.Errorf("%q is not a range of partition keys: write FIRST-LAST, such as 0x100-0x1ff, of %s to %s", text, PKeyText(MinPKey), PKeyText(MaxPKey))
	}
	if first > last {
		return PKeyPool{}, fmt.Errorf("%q is not a range of partition keys: write the smaller one first", text)
	}
	return PKeyPool{first, last}, nil
}

// ParsePKey reads a partition key without the membership bit, in hexadecimal with 0x in front or in decimal.
func ParsePKey(text string) (int, error) {
	n, err := strconv.ParseUint(text, 0, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not a partition key: write one such as 0x12", text)
	}
	if problem := PKeyProblem(int(n)); problem != "" {
		return 0, fmt.Errorf("%s", problem)
	}
	return int(n), nil
}

// PKeyProblem returns why no network can have a partition key; "" if one can.
func PKeyProblem(pkey int) string {
	if pkey >= MinPKey && pkey <= MaxPKey {
		return ""
	}
	return fmt.Sprintf("%s is no partition key that a network can have; those are %s to %s, without the membership bit", PKeyText(pkey), PKeyText(MinPKey), PKeyText(MaxPKey))
}

// PKeyText writes a partition key as tools for InfiniBand do: 0x0012.
func PKeyText(pkey int) string { return fmt.Sprintf("0x%04x", pkey) }

// Has reports whether a partition key is in the pool.
func (p PKeyPool) Has(pkey int) bool { return pkey != 0 && p.First <= pkey && pkey <= p.Last }

// String writes the pool as ParsePKeyPool reads it; "" for none.
func (p PKeyPool) String() string {
	if p == (PKeyPool{}) {
		return ""
	}
	return PKeyText(p.First) + "-" + PKeyText(p.Last)
}

// PartitionMTUs lists the MTUs of broadcast groups in bytes (InfiniBand Architecture Specification 1.2.1, 14.2.5.6).
func PartitionMTUs() []int { return []int{256, 512, 1024, 2048, 4096} }

// PartitionRates lists the rates of broadcast groups in Gbit/s, without fractions: those that a subnet manager takes (opensm's osm_prtn_config).
func PartitionRates() []int {
	return []int{5, 10, 14, 20, 25, 28, 30, 40, 50, 56, 60, 80, 100, 112, 120, 168, 200, 300, 400}
}
