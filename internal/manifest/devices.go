package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

const (
	// MaxDeviceRequests is how many requests for devices a group may have, MaxDevices how many parts each may ask for.
	MaxDeviceRequests = 8
	MaxDevices        = 64
	// MaxRail is the highest number of a rail, MaxNUMANode that of a NUMA node.
	MaxRail     = 255
	MaxNUMANode = MaxNodeNUMANodes - 1
)

var (
	// deviceID is the ID of a device on its node, or the GUID of its port.
	deviceID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9:._/=-]{0,63}$`)
	// shortPCI is a PCI address without its domain, as lspci writes it.
	shortPCI = regexp.MustCompile(`^[0-9A-Fa-f]{1,2}:[0-9A-Fa-f]{1,2}\.[0-7]$`)
)

// devices checks what a group asks for of devices.
func (n *normalizer) devices(path string, g api.Group) []api.DeviceRequest {
	requests := g.Devices
	if len(requests) > MaxDeviceRequests {
		n.add(path, strconv.Itoa(len(requests)), "has %d requests; at most %d are possible", len(requests), MaxDeviceRequests)
		return requests
	}
	requests = slices.Clone(requests)
	for i := range requests {
		r, at := &requests[i], fmt.Sprintf("%s[%d]", path, i)
		n.label(at+".class", r.Class, MaxLabel)
		n.label(at+".way", r.Way, MaxLabel)
		n.atLeast(at+".count", &r.Count, 1, MaxDevices, "part")
		n.deviceChoice(at, r.DeviceChoice)
		if r.Model != "" && !modelText.MatchString(r.Model) {
			n.add(at+".model", r.Model, "%q is no name of a model", r.Model)
		}
		if r.Memory < 0 || r.Memory > maxMemory {
			n.add(at+".memory", r.Memory.String(), "%s is no size of a device's memory", r.Memory)
		}
		if r.Class == api.ClassGPU {
			r.Way = wholeFor(g.Stack, r.Way)
		}
		n.profile(at+".profile", r)
		switch {
		case r.MayBeServed():
			n.remoteGPU(at, g, *r)
		case r.Class == api.ClassGPU && r.Remote:
			n.add(at+".remote", "true", "GPUs of other nodes are handed out by servers only, way %s or %s with memory", api.WayRemote, api.WayAny)
		case r.Remote:
		case r.Class != api.ClassGPU:
			n.add(at+".remote", "false", "must be true: of their own nodes, members get devices of class %s only; others can be requested from any node, nearest first", api.ClassGPU)
		case r.Way != wholeFor(g.Stack, api.WayWhole) && r.Way != api.WayMIG:
			n.add(at+".way", r.Way, "%q is not possible: members get whole GPUs of their own nodes, way %s, slices of those, way %s, or parts of the memory of any, way %s", r.Way, api.WayWhole, api.WayMIG, api.WayRemote)
		default:
			n.gpuHolder(at, g, *r)
		}
	}
	return requests
}

// profile checks which slices of GPUs would do, and writes their profile as nvidia-smi does.
func (n *normalizer) profile(at string, r *api.DeviceRequest) {
	r.Profile = strings.ToLower(r.Profile)
	switch {
	case r.Profile == "":
	case r.Class != api.ClassGPU || r.Way != api.WayMIG:
		n.add(at, r.Profile, "is for slices of GPUs, way %s, only; omit it", api.WayMIG)
	case !profileText.MatchString(r.Profile):
		n.add(at, r.Profile, "%q is no profile of a slice; write it as nvidia-smi does, such as 1g.10gb", api.Shorten(r.Profile, 64))
	}
}

// remoteGPU checks a request for remote GPUs, all of which a member has by one server.
func (n *normalizer) remoteGPU(at string, g api.Group, r api.DeviceRequest) {
	switch {
	case !r.Remote:
		n.add(at+".remote", "false", "must be true for way %s: the GPU may be of any node", r.Way)
	case r.Memory < minRemote:
		n.add(at+".memory", r.Memory.String(), "is how much memory of the GPU each member gets, at least %s", minRemote)
	case len(slices.DeleteFunc(slices.Clone(g.Devices), func(d api.DeviceRequest) bool { return d.Class != api.ClassGPU })) > 1:
		n.add(at+".way", r.Way, "conflicts with the group's other GPUs: programs have either those of their own node or those of one server")
	}
	n.gpuHolder(at, g, r)
}

// adapter checks which adapters the ports of a group's members may be on. Only ports on functions of adapters are on any.
func (n *normalizer) adapter(path string, kind api.Interface, c api.DeviceChoice) {
	if c == (api.DeviceChoice{}) && !n.src.Has(path) {
		return
	}
	if known := kind == "" || slices.Contains(api.Interfaces(), kind); known && !kind.OnFunction() {
		n.add(path, strings.Join(c.Pairs(), ","), "a choice of the adapter is for ports on adapters; write interface %s, %s or %s, or omit it", api.InterfaceVF, api.InterfacePF, api.InterfaceMACVTAP)
		return
	}
	n.deviceChoice(path, c)
}

// deviceChoice checks a choice of devices.
func (n *normalizer) deviceChoice(path string, c api.DeviceChoice) {
	at := join(path, "device")
	switch {
	case c.Device == "" && !n.src.Has(at):
	case shortPCI.MatchString(c.Device):
		n.add(at, c.Device, "%q has no PCI domain; write it as 'nearmetal node show' does, such as 0000:%s", c.Device, strings.ToLower(c.Device))
	case !deviceID.MatchString(c.Device):
		n.add(at, c.Device, "%q is neither the ID of a device, such as 0000:3b:00.0, nor the GUID of its port", c.Device)
	case strings.ToLower(c.Device) != c.Device && pciAddress.MatchString(strings.ToLower(c.Device)):
		n.add(at, c.Device, "%q is not in lower case; write %s", c.Device, strings.ToLower(c.Device))
	}
	if node := c.NUMANode; node != nil && (*node < 0 || *node > MaxNUMANode) {
		n.add(join(path, "numa_node"), strconv.Itoa(*node), "%d is no NUMA node; write a number from 0 to %d", *node, MaxNUMANode)
	}
	if rail := c.Rail; rail != nil && (*rail < 0 || *rail > MaxRail) {
		n.add(join(path, "rail"), strconv.Itoa(*rail), "%d is no rail; write a number from 0 to %d", *rail, MaxRail)
	}
}
