package manifest

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nearmetal/nearmetal/api"
)

// Limits on what an agent says that its node is. They are far above what machines are, and keep a hostile agent from filling memory, store and
// screens of others.
const (
	MaxNodeLabels       = 64
	MaxNodeCores        = 8192
	MaxNodeNUMANodes    = 1024
	MaxNodeMemory       = 1 << 50
	MaxNodeDisk         = 1 << 60
	MaxNodeMTU          = 1 << 20
	MaxNodeUplink       = 1 << 50
	MaxNodeDevices      = 1024
	MaxNodeCounters     = 256
	MaxNodePorts        = 64
	MaxNodeEnvironments = 1024
	MaxNodeStacks       = 8
	maxNodeWord         = 128
	maxDeviceEntries    = 64
)

// CheckNode returns what is wrong with what an agent says that its node is, or nil. Names must be short and free of control characters, and texts
// are made so: they are shown on terminals.
func CheckNode(n *api.NodeRecord) error {
	c := &nodeCheck{}
	if problem := LabelProblem(n.Name, MaxLabel); problem != "" {
		c.add("the name %s %s", printable(n.Name), problem)
	}
	c.labels(n.Labels)
	if n.Underlay != "" {
		if _, err := netip.ParseAddr(n.Underlay); err != nil {
			c.add("the underlay %s is no IP address", printable(n.Underlay))
		}
	}
	c.within("the MTU of the underlay", int64(n.UnderlayMTU), MaxNodeMTU)
	if n.Trunk != nil {
		c.words(map[string]string{"trunk": n.Trunk.Interface})
		c.within("the MTU of the trunk", int64(n.Trunk.MTU), MaxNodeMTU)
		n.Trunk.Problem = Text(n.Trunk.Problem)
	}
	c.within("the rate of the uplink", n.Capacity.UplinkBitsPerSecond, MaxNodeUplink)
	c.words(map[string]string{"agent version": n.AgentVersion})
	c.capacity(&n.Capacity)
	c.count("stacks", len(n.Stacks), MaxNodeStacks)
	for i := range n.Stacks {
		c.words(map[string]string{"stack": string(n.Stacks[i].Stack)})
		c.texts(n.Stacks[i].Problems)
		c.texts(n.Stacks[i].Warnings)
	}
	c.count("environments", len(n.Environments), MaxNodeEnvironments)
	for i := range n.Environments {
		e := &n.Environments[i]
		c.words(map[string]string{"environment": e.Name, "digest": e.Digest})
		e.Description = Text(e.Description)
		c.texts(e.Problems)
		c.count("stacks of environment "+printable(e.Name), len(e.Stacks), MaxNodeStacks)
	}
	if n.Builder != nil {
		c.texts(n.Builder.Problems)
	}
	c.adapters(n.Adapters)
	c.gpus(n)
	if len(c.problems) == 0 {
		return nil
	}
	return fmt.Errorf("this node can't be accepted as its agent describes it: %w", errors.Join(c.problems...))
}

// nodeCheck gathers what is wrong, up to a bound.
type nodeCheck struct{ problems []error }

func (c *nodeCheck) add(format string, args ...any) {
	if len(c.problems) < 5 {
		c.problems = append(c.problems, fmt.Errorf(format, args...))
	}
}

func (c *nodeCheck) count(what string, n, most int) {
	if n > most {
		c.add("it has %d %s; at most %d are possible", n, what, most)
	}
}

// words checks short texts that name something, by what they are.
func (c *nodeCheck) words(words map[string]string) {
	for what, word := range words {
		if len(word) > maxNodeWord || !visible(word) {
			c.add("the %s %s is longer than %d bytes or holds unprintable characters", what, printable(word), maxNodeWord)
		}
	}
}

// texts makes texts for people such as can be shown.
func (c *nodeCheck) texts(texts []string) {
	c.count("problems of one kind", len(texts), maxDeviceEntries)
	for i := range texts {
		texts[i] = Text(texts[i])
	}
}

// Text returns somebody else's text with at most api.MaxMessageBytes, without what a terminal would obey.
func Text(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) {
			return r
		}
		return '?'
	}, api.ShortMessage(text))
}

func (c *nodeCheck) labels(labels map[string]string) {
	c.count("labels", len(labels), MaxNodeLabels)
	for key, value := range labels {
		if problem := KeyProblem(key); problem != "" {
			c.add("the label key %s %s", printable(key), problem)
		}
		if problem := ValueProblem(value); problem != "" {
			c.add("the value %s of label %s %s", printable(value), printable(key), problem)
		}
	}
}

func (c *nodeCheck) within(what string, n, most int64) {
	if n < 0 || n > most {
		c.add("%s is %d, not between 0 and %d", what, n, most)
	}
}

func (c *nodeCheck) capacity(capacity *api.NodeCapacity) {
	c.count("core slots", len(capacity.Cores), MaxNodeCores)
	c.count("NUMA nodes", len(capacity.NUMANodes), MaxNodeNUMANodes)
	c.count("devices", len(capacity.Devices), MaxNodeDevices)
	c.count("ports", len(capacity.Ports), MaxNodePorts)
	if capacity.DiskBytes < 0 || capacity.DiskBytes > MaxNodeDisk {
		c.add("its room for disks of %d bytes is not between 0 and %s", capacity.DiskBytes, api.Bytes(MaxNodeDisk))
	}
	if capacity.MemoryBytes < 0 || capacity.MemoryBytes > MaxNodeMemory {
		c.add("its memory of %d bytes is not between 0 and %s", capacity.MemoryBytes, api.Bytes(MaxNodeMemory))
	}
	slots := map[int]bool{}
	for _, core := range capacity.Cores {
		if core.Slot < 0 || core.CPU < 0 || core.NUMANode < 0 || slots[core.Slot] {
			c.add("core slot %d (CPU %d, NUMA node %d) is offered twice or has a negative number", core.Slot, core.CPU, core.NUMANode)
		}
		slots[core.Slot] = true
	}
	for _, n := range capacity.NUMANodes {
		if n.ID < 0 || n.MemoryBytes < 0 || n.MemoryBytes > MaxNodeMemory {
			c.add("NUMA node %d has %d bytes of memory", n.ID, n.MemoryBytes)
		}
		for _, pool := range n.HugePages {
			size := api.Bytes(pool.PageBytes)
			if size != HugePages2MiB && size != HugePages1GiB || pool.Bytes < 0 || pool.Bytes > MaxNodeMemory || pool.Bytes%pool.PageBytes != 0 {
				c.add("NUMA node %d has %d bytes of huge pages of %d bytes", n.ID, pool.Bytes, pool.PageBytes)
			}
		}
	}
	c.devices(capacity.Devices)
	places := map[api.NodePort]bool{}
	for _, p := range capacity.Ports {
		c.words(map[string]string{"port": p.Name, "fabric": p.Fabric, "place on a fabric": p.At})
		if at := (api.NodePort{Fabric: p.Fabric, At: p.At}); p.Name == "" || p.Fabric == "" || p.At == "" || places[at] {
			c.add("port %s has no name, no fabric or no place there, or a place that another port has", printable(p.Name))
		} else {
			places[at] = true
		}
	}
}

// guidText is a GUID of InfiniBand as fabrics write it.
var guidText = regexp.MustCompile(`^[0-9a-f]{16}$`)

func (c *nodeCheck) devices(devices []api.Device) {
	ids, guids, counters := map[string]bool{}, map[string]bool{}, map[[2]string]bool{}
	for i := range devices {
		d := &devices[i]
		c.words(map[string]string{"device": d.ID, "device class": d.Class, "cell of a device": d.Cell, "model of a device": d.Model, "parent of a device": d.Parent, "profile of a device": d.Profile})
		c.within("the memory of device "+printable(d.ID), d.MemoryBytes, MaxNodeMemory)
		if d.ID == "" || ids[d.ID] {
			c.add("device %s is listed twice or has no ID", printable(d.ID))
		}
		ids[d.ID] = true
		if d.GUID != "" && (d.Cell == "" || guids[d.GUID] || !guidText.MatchString(d.GUID) || strings.Trim(d.GUID, "0") == "") {
			c.add("the GUID %s of device %s is not 16 hexadecimal digits in lower case, is that of another device, or is on no fabric", printable(d.GUID), printable(d.ID))
		}
		guids[d.GUID] = true
		c.within("the rail of device "+printable(d.ID), int64(d.Rail), MaxRail)
		c.within("the NUMA node of device "+printable(d.ID), int64(max(d.NUMANode, 0)), MaxNUMANode)
		c.count("counters of device "+printable(d.ID), len(d.Counters), maxDeviceEntries)
		c.count("ways to hand out device "+printable(d.ID), len(d.Ways), maxDeviceEntries)
		c.amounts(d.ID, d.Counters)
		for counter := range d.Counters {
			counters[[2]string{d.Class, counter}] = true
		}
		for name, way := range d.Ways {
			c.words(map[string]string{"way to hand out a device": name, "mode": way.Mode})
			c.amounts(d.ID, way.Takes)
		}
	}
	c.count("counters of device classes", len(counters), MaxNodeCounters)
}

func (c *nodeCheck) adapters(adapters []api.Adapter) {
	c.count("adapters", len(adapters), MaxNodePorts)
	for i := range adapters {
		a := &adapters[i]
		c.words(map[string]string{
			"adapter": a.ID, "cell of an adapter": a.Cell, "interface of an adapter": a.Interface, "RDMA device": a.RDMA,
			"link layer": a.LinkLayer, "GUID of an adapter": a.GUID,
		})
		c.texts(a.Problems)
		c.within("the rate of adapter "+printable(a.ID), a.RateMbps, MaxNodeMemory)
	}
}

func (c *nodeCheck) gpus(n *api.NodeRecord) {
	c.count("GPUs", len(n.GPUs), MaxNodeDevices)
	c.texts(n.GPUProblems)
	for i := range n.GPUs {
		g := &n.GPUs[i]
		c.words(map[string]string{
			"GPU": g.ID, "model of a GPU": g.Model, "PCI address": g.PCI, "driver of a GPU": g.Driver, "version of CUDA": g.CUDA,
			"compute capability": g.ComputeCapability, "MIG mode": g.MIG,
		})
		c.within("the memory of GPU "+printable(g.ID), g.MemoryBytes, MaxNodeMemory)
		c.within("the NUMA node of GPU "+printable(g.ID), int64(max(g.NUMANode, 0)), MaxNUMANode)
		c.texts(g.MIGProfiles)
		c.count("slices of GPU "+printable(g.ID), len(g.Slices), MaxNodeDevices)
		for j := range g.Slices {
			s := &g.Slices[j]
			c.words(map[string]string{"slice of a GPU": s.ID, "profile of a slice": s.Profile})
			c.within("the memory of slice "+printable(s.ID), s.MemoryBytes, MaxNodeMemory)
			s.CDI = Text(s.CDI)
			c.texts(s.Problems)
		}
		c.count("NVLink peers of GPU "+printable(g.ID), len(g.NVLinkPeers), MaxNodeDevices)
		for _, peer := range g.NVLinkPeers {
			c.words(map[string]string{"NVLink peer": peer})
		}
		if p := g.Passthrough; p != nil {
			c.words(map[string]string{"IOMMU group": p.IOMMUGroup, "reset of a GPU": p.Reset})
			c.count("PCI functions of GPU "+printable(g.ID), len(p.Functions), MaxNodeDevices)
			for _, function := range p.Functions {
				c.words(map[string]string{"PCI function of a GPU": function})
			}
			p.Problem = Text(p.Problem)
		}
		g.CDI = Text(g.CDI)
		c.texts(g.Problems)
	}
}

func (c *nodeCheck) amounts(device string, amounts map[string]int64) {
	for name, n := range amounts {
		c.words(map[string]string{"counter": name})
		if n < 0 || n > MaxNodeMemory {
			c.add("counter %s of device %s is %d", printable(name), printable(device), n)
		}
	}
}

// visible reports whether a terminal shows a text as it is.
func visible(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsGraphic(r) })
}

// printable is a text of somebody else's for an error message.
func printable(text string) string { return fmt.Sprintf("%q", api.Shorten(text, 60)) }
