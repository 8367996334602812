package placement

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// intern numbers equal values, so that a scan over nodes asks once for each kind of node what it would else ask of each node.
// Numbers are reused when nobody holds them; -1 is none.
type intern[T any] struct {
	ids    map[string]int32
	keys   []string
	values []T
	refs   []int32
	unused []int32
}

func newIntern[T any]() *intern[T] { return &intern[T]{ids: map[string]int32{}} }

// swap gives up old and returns the number of the value with this key.
func (in *intern[T]) swap(old int32, key string, make func() T) int32 {
	if old >= 0 && in.keys[old] == key {
		return old
	}
	id, ok := in.ids[key]
	if !ok {
		if last := len(in.unused) - 1; last >= 0 {
			id, in.unused = in.unused[last], in.unused[:last]
			in.keys[id], in.values[id] = key, make()
		} else {
			id = int32(len(in.keys))
			in.keys, in.values, in.refs = append(in.keys, key), append(in.values, make()), append(in.refs, 0)
		}
		in.ids[key] = id
	}
	in.refs[id]++
	in.drop(old)
	return id
}

func (in *intern[T]) drop(id int32) {
	if id < 0 {
		return
	}
	if in.refs[id]--; in.refs[id] == 0 {
		delete(in.ids, in.keys[id])
		in.unused = append(in.unused, id)
	}
}

// matching tells for each number whether its value is in use and passes the test.
func (in *intern[T]) matching(test func(T) bool) []bool {
	match := make([]bool, len(in.values))
	for id := range in.values {
		match[id] = in.refs[id] > 0 && test(in.values[id])
	}
	return match
}

// platform is what members can run on: the stacks that passed their checks, the CPU models of virtual machines and, by environment, the stacks
// it runs on.
type platform struct {
	stacks       []api.Stack
	models       []string
	environments map[string][]api.Stack
	// underlayMTU is the MTU of the underlay in bytes, 0 where nobody knows it; alone: there is no underlay, so no network leads to another node.
	underlayMTU int
	// trunkMTU is the MTU of the trunk in bytes, 0 on a node that carries no VLANs.
	trunkMTU int
	alone    bool
	// switchPorts is how many ports it has on switches that the site manages.
	switchPorts int
	// reachesVolumes: members there can have volumes that other nodes serve; reachesBlocks: block volumes.
	reachesVolumes, reachesBlocks bool
	// connected are the cells that the node is in, without the switches.
	connected []api.NodePlace
	// disks are those of the machine.
	disks []localDisk
	// gpuPrograms: members there can use remote GPUs.
	gpuPrograms bool
}

func newPlatform(rec api.NodeRecord) platform {
	p := platform{environments: map[string][]api.Stack{}, underlayMTU: rec.UnderlayMTU, alone: rec.Underlay == "", reachesVolumes: reachProblem(&rec, false) == "", reachesBlocks: reachProblem(&rec, true) == ""}
	if rec.Trunk.Usable() {
		p.trunkMTU = rec.Trunk.MTU
	}
	p.switchPorts, p.disks, p.gpuPrograms = switchPorts(rec), localDisks(rec), rec.GPUPrograms
	for _, place := range rec.Places {
		p.connected = append(p.connected, api.NodePlace{Technology: place.Technology, RateBitsPerSecond: place.RateBitsPerSecond, RDMA: place.RDMA})
	}
	for _, s := range rec.Stacks {
		if s.OK {
			p.stacks, p.models = append(p.stacks, s.Stack), append(p.models, s.CPUModels...)
		}
	}
	for _, e := range rec.Environments {
		if e.OK {
			p.environments[e.Name] = append(p.environments[e.Name], e.Stacks...)
		}
	}
	return p
}

func (p platform) hasStack(s api.Stack) bool { return slices.Contains(p.stacks, s) }

// hasModel reports whether machines can have a CPU model; each has "", which is the node's own.
func (p platform) hasModel(name string) bool { return name == "" || slices.Contains(p.models, name) }

func (p platform) hasEnvironment(name string, s api.Stack) bool {
	return slices.Contains(p.environments[name], s)
}

// connects reports whether the node is in a cell that has what is asked for.
func (p platform) connects(i api.Interconnect) bool {
	return i == (api.Interconnect{}) || slices.ContainsFunc(p.connected, func(c api.NodePlace) bool { return c.Meets(i) })
}

// carries reports whether the underlay has room for a network's MTU, and the trunk for that of a network on a VLAN.
func (p platform) carries(m api.PortMTU) bool {
	return (m.VLAN == "" || m.Switched > 0 || p.trunkMTU >= m.TrunkBytes) && p.switchPorts >= m.Switched && p.underlayCarries(m)
}

// switchPorts counts a node's ports on switches that the site manages.
func switchPorts(rec api.NodeRecord) int {
	n := 0
	for _, p := range rec.Capacity.Ports {
		if p.Technology == api.FabricEthernet {
			n++
		}
	}
	return n
}

func (p platform) underlayCarries(m api.PortMTU) bool {
	return m.Bytes == 0 || p.alone || p.underlayMTU >= m.UnderlayBytes
}

// platformKey is equal for nodes with equal platforms.
func platformKey(rec api.NodeRecord) string {
	trunkMTU := 0
	if rec.Trunk.Usable() {
		trunkMTU = rec.Trunk.MTU
	}
	parts := []string{fmt.Sprintf("u%t\x00%d\x00%d\x00%d\x00%t%t", rec.Underlay == "", rec.UnderlayMTU, trunkMTU, switchPorts(rec), reachProblem(&rec, false) == "", reachProblem(&rec, true) == "")}
	if rec.GPUPrograms {
		parts = append(parts, "g")
	}
	for _, s := range rec.Stacks {
		if s.OK {
			parts = append(parts, "s"+string(s.Stack)+"\x00"+strings.Join(s.CPUModels, "\x00"))
		}
	}
	for _, e := range rec.Environments {
		for _, s := range e.Stacks {
			if e.OK {
				parts = append(parts, "e"+e.Name+"\x00"+string(s))
			}
		}
	}
	for _, p := range rec.Places {
		parts = append(parts, fmt.Sprintf("f%s\x00%d\x00%t", p.Technology, p.RateBitsPerSecond, p.RDMA))
	}
	slices.Sort(parts)
	return strings.Join(append(parts, disksKey(rec)), "\x01")
}

func labelsKey(labels map[string]string) string {
	parts := make([]string, 0, len(labels))
	for k, v := range labels {
		parts = append(parts, k+"\x00"+v)
	}
	slices.Sort(parts)
	return strings.Join(parts, "\x01")
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// naturalKey orders names as people count: n2 before n10. Each run of digits is written with its length in front.
func naturalKey(name string) string {
	var key strings.Builder
	for i := 0; i < len(name); {
		if name[i] < '0' || name[i] > '9' {
			key.WriteByte(name[i])
			i++
			continue
		}
		j := i
		for j < len(name) && name[j] >= '0' && name[j] <= '9' {
			j++
		}
		digits := strings.TrimLeft(name[i:j], "0")
		key.WriteByte('0')
		key.WriteByte(byte(min(len(digits), 255)))
		key.WriteString(digits)
		i = j
	}
	// Equal numbers written differently (n1, n01) are told apart by the name itself.
	return key.String() + "\x00" + name
}
