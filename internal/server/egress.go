package server

import (
	"fmt"
	"net/netip"
	"strings"
)

// ownNetwork is a network of the site itself, which members reach in no way.
type ownNetwork struct {
	what   string
	prefix netip.Prefix
}

// openRanges reads --egress-open. A range that overlaps a network of the site is refused: whoever writes it thinks that it opens all of it.
func openRanges(texts []string, own []ownNetwork) ([]netip.Prefix, error) {
	var open []netip.Prefix
	for _, text := range texts {
		prefix := text
		if !strings.Contains(text, "/") {
			prefix += "/32"
		}
		p, err := netip.ParsePrefix(prefix)
		if err != nil || !p.Addr().Is4() || p.Bits() == 0 {
			return nil, fmt.Errorf("--egress-open %s: this is not an IPv4 prefix; write one such as 10.20.0.0/16", text)
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("--egress-open %s: address bits behind the prefix length are set; write %v", text, p.Masked())
		}
		for _, n := range own {
			if n.prefix.IsValid() && n.prefix.Overlaps(p) {
				return nil, fmt.Errorf("--egress-open %s overlaps %s (%v), which stays closed to members; open smaller prefixes beside it", text, n.what, n.prefix.Masked())
			}
		}
		open = append(open, p)
	}
	return open, nil
}
