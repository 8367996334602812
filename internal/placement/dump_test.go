package placement

import (
	"fmt"
	"slices"
)

// dump writes all that a view holds, in one way for equal views.
func dump(v *View) []string {
	var lines []string
	for _, id := range v.order {
		n := v.nodes[id]
		u, _ := v.Usage(n.record.Name)
		lines = append(lines, fmt.Sprintf("%s %s %+v taken %x labels %v", n.record.Name, n.availability, u, n.taken, n.record.Labels))
	}
	for id, h := range v.holdings {
		lines = append(lines, fmt.Sprintf("%s releasing %t quarantined %t", id, h.releasing, h.quarantined))
	}
	slices.Sort(lines)
	return lines
}
