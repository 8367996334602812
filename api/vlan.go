package api

import (
	"fmt"
	"strconv"
	"strings"
)

// VLANPool is the VLAN IDs that networks of a site can have; the zero value is none.
type VLANPool struct{ First, Last int }

// ParseVLANPool reads FIRST-LAST, or one ID.
func ParseVLANPool(text string) (VLANPool, error) {
	from, to, several := strings.Cut(text, "-")
	if !several {
		to = from
	}
	first, err := strconv.Atoi(from)
	last, lastErr := strconv.Atoi(to)
	if err != nil || lastErr != nil {
		return VLANPool{}, fmt.Errorf("%q is not a range of VLAN IDs: write FIRST-LAST, such as 100-199", text)
	}
	if first < MinVLAN || last > MaxVLAN || first > last {
		return VLANPool{}, fmt.Errorf("%q is not a range of VLAN IDs: they are %d to %d, the smaller one first", text, MinVLAN, MaxVLAN)
	}
	return VLANPool{first, last}, nil
}

// Has reports whether a VLAN ID is in the pool.
func (p VLANPool) Has(vid int) bool { return vid != 0 && p.First <= vid && vid <= p.Last }

// String writes the pool as ParseVLANPool reads it; "" for none.
func (p VLANPool) String() string {
	if p == (VLANPool{}) {
		return ""
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// Trunk is the link that carries a node's VLANs, as its agent reports it; the zero value: the node has none.
type Trunk struct {
	Interface string `json:"interface"`
	// MTU is that of the link, in bytes; 0: it can't be used.
	MTU int `json:"mtu,omitempty"`
	// Problem is why it can't be used, and what to change.
	Problem string `json:"problem,omitempty"`
}

// Usable reports whether the trunk can carry VLANs.
func (t *Trunk) Usable() bool { return t != nil && t.Problem == "" && t.MTU > 0 }
