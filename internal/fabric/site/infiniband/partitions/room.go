package partitions

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
)

// DefaultRoom is how many partition keys a port's table has where nothing else is known of it: what ConnectX adapters have.
const DefaultRoom = 128

// Clash reports a network that has a partition key of the operator's.
func Clash(networks []site.Network, operator []Definition) error {
	for _, n := range networks {
		if i := slices.IndexFunc(operator, func(d Definition) bool { return d.PKey == n.Number }); i >= 0 {
			return &site.Refusal{Number: n.Number, Err: fmt.Errorf("partition key 0x%04x is the operator's (line %d, %q); a network needs another one", n.Number, operator[i].Line, operator[i].Name)}
		}
	}
	for _, d := range operator {
		if IsMarker(d.PKey) {
			return fmt.Errorf("partition key 0x%04x (line %d, %q) is reserved: Nearmetal marks its files with 0x%04x to 0x%04x; give the partition another key", d.PKey, d.Line, d.Name, FirstMarker, LastMarker)
		}
	}
	return nil
}

// Room reports the first port, by its GUID, whose table would need more entries than it has: one for each partition, and further ones, such as one for
// the marker. Rooms are the sizes of the tables by GUID, as far as they are known.
func Room(networks []site.Network, operator []Definition, further int, rooms map[string]int) error {
	common := map[int]bool{DefaultPKey: true}
	own := map[string]map[int]bool{}
	add := func(at string, pkey int) {
		if own[at] == nil {
			own[at] = map[int]bool{}
		}
		own[at][pkey] = true
	}
	for _, n := range networks {
		for _, p := range n.Ports {
			add(p.At, n.Number)
		}
	}
	for _, d := range operator {
		if d.All {
			common[d.PKey] = true
		}
		for _, guid := range d.Ports {
			add(fmt.Sprintf("%016x", guid), d.PKey)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(own)) {
		room, known := rooms[at]
		if !known {
			room = DefaultRoom
		}
		needed := len(common) + further
		for pkey := range own[at] {
			if !common[pkey] {
				needed++
			}
		}
		if needed > room {
			return &site.Refusal{Err: fmt.Errorf("port %s would be in %d partitions, and its table has room for %d; take it out of %d", at, needed, room, needed-room)}
		}
	}
	return nil
}
