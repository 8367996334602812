package opensm

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/netdiscover"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/partitions"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/smp"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// place is an adapter's port, as it was discovered and as it was read last.
type place struct {
	at   string
	port netdiscover.Port
	// room and switchRoom are how many partition keys the tables of the adapter's port and of the switch port have room for. A switchRoom of 0
	// is a switch that enforces no partitions.
	room, switchRoom int

	adapter, before map[int]bool // to whether limited, by partition key
	problem         string       // why it could not be read
	moved           bool         // another port answered in its place
}

// requests are those whose answers take needs.
func (p *place) requests() []smp.Request {
	all := []smp.Request{{LID: p.port.LID, Attribute: smp.AttributeNodeInfo}}
	all = append(all, smp.KeyTable(p.port.LID, 0, p.room)...)
	return append(all, smp.KeyTable(p.port.Switch.LID, p.port.Switch.Port, p.switchRoom)...)
}

// take takes the answers to requests, and the NodeInfo of the switch. LIDs may be given to other ports, so both must say who they are.
func (p *place) take(switchInfo smp.Answer, answers []smp.Answer) {
	p.problem, p.moved, p.adapter, p.before = "", false, map[int]bool{}, map[int]bool{}
	info, err := decode(answers[0], smp.DecodeNodeInfo)
	if err == nil && info.PortGUID != p.port.GUID {
		p.moved, err = true, fmt.Errorf("port %016x has its LID %d", info.PortGUID, p.port.LID)
	}
	if err != nil {
		p.problem = "its adapter: " + err.Error()
		return
	}
	where := fmt.Sprintf("port %d of switch %s, before it", p.port.Switch.Port, p.port.Switch.Name)
	before, err := decode(switchInfo, smp.DecodeNodeInfo)
	if err == nil && before.NodeGUID != p.port.Switch.GUID {
		p.moved, err = true, fmt.Errorf("node %016x has the switch's LID %d", before.NodeGUID, p.port.Switch.LID)
	}
	if err != nil {
		p.problem = where + ": " + err.Error()
		return
	}
	blocks := len(smp.KeyTable(0, 0, p.room))
	if err := addKeys(p.adapter, answers[1:1+blocks]); err != nil {
		p.problem = "its adapter's table: " + err.Error()
		return
	}
	if err := addKeys(p.before, answers[1+blocks:1+blocks+len(smp.KeyTable(0, 0, p.switchRoom))]); err != nil {
		p.problem = "the table of " + where + ": " + err.Error()
		return
	}
	p.problem = p.differ(where)
}

func addKeys(into map[int]bool, answers []smp.Answer) error {
	for _, answer := range answers {
		block, err := decode(answer, smp.DecodeKeys)
		if err != nil {
			return err
		}
		for _, key := range block {
			limited, twice := into[key.Number]
			into[key.Number] = key.Limited && (!twice || limited)
		}
	}
	return nil
}

// differ says how the tables of adapter and switch port differ: neither is then evidence of a port in a network, nor of one out of it.
func (p *place) differ(where string) string {
	if p.switchRoom == 0 {
		return ""
	}
	for _, key := range slices.Sorted(maps.Keys(p.adapter)) {
		if _, ok := p.before[key]; !ok && network(key) {
			return fmt.Sprintf("partition 0x%04x is in its adapter's table, and not in that of %s", key, where)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.before)) {
		if _, ok := p.adapter[key]; !ok && network(key) {
			return fmt.Sprintf("partition 0x%04x is in the table of %s, and not in its adapter's", key, where)
		}
	}
	return ""
}

// network reports whether a partition key can be a network's.
func network(key int) bool { return key != partitions.DefaultPKey && !partitions.IsMarker(key) }

// fabric is what was read of a fabric, and what is desired of it.
type fabric struct {
	places     map[string]*place
	full       time.Time // when all of it was read; zero: is to be discovered
	managers   map[string]smp.ManagerInfo
	managerLID int
	master     smp.ManagerInfo

	operator []int // the keys of the operator's partitions
	desired  map[string]map[int]bool
	// changed are the places that are desired to be otherwise than they were read.
	changed map[string]bool
}

// want takes the desired networks, and notes the places of which something else is desired than before.
func (f *fabric) want(networks []site.Network) {
	desired := map[string]map[int]bool{}
	for _, n := range networks {
		for _, p := range n.Ports {
			if desired[p.At] == nil {
				desired[p.At] = map[int]bool{}
			}
			desired[p.At][n.Number] = p.Limited
		}
	}
	for at, keys := range desired {
		if !maps.Equal(keys, f.desired[at]) {
			f.changed[at] = true
		}
	}
	for at := range f.desired {
		if desired[at] == nil {
			f.changed[at] = true
		}
	}
	f.desired = desired
}

// networks are the keys of a place that are of networks, to whether limited.
func (f *fabric) networks(p *place) map[int]bool {
	all := map[int]bool{}
	for key, limited := range p.adapter {
		if network(key) && !slices.Contains(f.operator, key) {
			all[key] = limited
		}
	}
	return all
}

func (f *fabric) asDesired(p *place) bool {
	return p.problem == "" && maps.Equal(f.networks(p), f.desired[p.at])
}

// free reports whether a place was read, and is in no network.
func (f *fabric) free(at string) bool {
	p := f.places[at]
	return p != nil && p.problem == "" && len(f.networks(p)) == 0 && !f.changed[at]
}

// rooms are the sizes of the tables, by place.
func (f *fabric) rooms() map[string]int {
	rooms := map[string]int{}
	for at, p := range f.places {
		rooms[at] = p.room
		if p.switchRoom > 0 {
			rooms[at] = min(p.room, p.switchRoom)
		}
	}
	return rooms
}

// observation is what was read. Earlier are places that were in networks at some time.
func (f *fabric) observation(inForce lifecycle.Epoch, earlier []string) site.Observation {
	seen := site.Observation{Epoch: inForce, Unknown: map[string]string{}}
	ports := map[int][]site.Port{}
	for at, p := range f.places {
		if p.problem != "" {
			seen.Unknown[at] = p.problem
			continue
		}
		for key, limited := range f.networks(p) {
			ports[key] = append(ports[key], site.Port{At: at, Limited: limited})
		}
	}
	const absent = "no adapter on the fabric has a port with this GUID"
	for _, at := range earlier {
		if f.places[at] == nil {
			seen.Unknown[at] = absent
		}
	}
	for at := range f.desired {
		if f.places[at] == nil {
			seen.Unknown[at] = absent
		}
	}
	for _, key := range slices.Sorted(maps.Keys(ports)) {
		list := ports[key]
		slices.SortFunc(list, func(a, b site.Port) int { return cmp.Compare(a.At, b.At) })
		seen.Networks = append(seen.Networks, site.Network{Number: key, Ports: list})
	}
	return seen
}
