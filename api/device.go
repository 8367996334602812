package api

import (
	"slices"
	"strings"
)

// Device is a GPU, an adapter or a disk of a node, of which members get parts.
type Device struct {
	// ID is stable on its node.
	ID    string `json:"id"`
	Class string `json:"class"`
	// NUMANode is the NUMA node that the device is attached to, -1 where it is not known.
	NUMANode int `json:"numa_node"`
	// Rail is the plane of a fabric of several rails that the device's port is connected to, from 0: the place of the adapter among those of its node
	// that its operator gave to the same cell.
	Rail int `json:"rail,omitempty"`
	// Cell is the cell of the fabric that the device's port is connected to; empty for a device without a port.
	Cell string `json:"cell,omitempty"`
	// GUID is the GUID of an InfiniBand adapter's own port, 16 hexadecimal digits; empty where it is not known, and elsewhere.
	GUID string `json:"guid,omitempty"`
	// Model is the product's name, such as NVIDIA H200, and MemoryBytes the device's own memory; empty and 0 where they are not known.
	Model       string `json:"model,omitempty"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"`
	// Kinds are the names that the node's operator gave to devices like it.
	Kinds []string `json:"kinds,omitempty"`
	// Parent is the ID of the GPU that it is a slice of, and Profile the slice's size, such as 1g.10gb; both are empty for all other devices.
	Parent  string `json:"parent,omitempty"`
	Profile string `json:"profile,omitempty"`
	// Counters are the amounts of a device of which no part is held, such as 7 virtual functions.
	Counters map[string]int64 `json:"counters"`
	// Ways are the ways to hand out the device, by name.
	Ways map[string]DeviceWay `json:"ways"`
}

// DeviceWay is one way to hand out a device.
type DeviceWay struct {
	// Mode is the mode that the device must be in. All its parts have the same mode.
	Mode string `json:"mode,omitempty"`
	// Takes are the amounts of the device's counters that one part takes.
	Takes map[string]int64 `json:"takes"`
}

// DeviceRequest asks for parts of devices for each member of a group.
type DeviceRequest struct {
	// Class is that of the devices, Way how they are handed out, Count how many parts each member gets; it defaults to 1.
	Class string `json:"class"`
	Way   string `json:"way"`
	Count int    `json:"count,omitempty"`
	// Cell limits the devices to those connected to that cell; empty: any will do.
	Cell string `json:"cell,omitempty"`
	// Remote lets the parts lie on other nodes than the member.
	Remote bool `json:"remote,omitempty"`
	DeviceChoice
	// Model limits the devices to those whose model has these words, in any case: "H200", or "RTX PRO 6000". Empty: any will do.
	Model string `json:"model,omitempty"`
	// Memory limits the devices to those with at least so much memory of their own; 0: any will do.
	Memory Bytes `json:"memory,omitempty"`
	// Profile limits slices of GPUs to those of this size, such as 1g.10gb. Empty: any will do.
	Profile string `json:"profile,omitempty"`
}

// MemberDevice is a part of a device that a member holds.
type MemberDevice struct {
	Class  string `json:"class"`
	Node   string `json:"node"`
	Device string `json:"device"`
	Way    string `json:"way"`
	// Part is which of several equal parts it is, such as "vf3"; empty where parts have no names.
	Part string `json:"part,omitempty"`
	// Parent is the GPU that it is a slice of, and Profile the slice's size; both are empty for all others.
	Parent  string `json:"parent,omitempty"`
	Profile string `json:"profile,omitempty"`
	// Gone: the node does not offer it any more, such as a slice that its operator destroyed, or a GPU with a problem. GPUs only.
	Gone bool `json:"gone,omitempty"`
	// Memory is how much of a remote GPU's memory it is; 0 for others. Why tells why the GPU was chosen.
	Memory Bytes  `json:"memory,omitempty"`
	Why    string `json:"why,omitempty"`
	// Cost is, of a GPU, what kernels were expected to take by it when it was chosen, in times of what they take on a local one; 0: nothing was expected.
	Cost float64 `json:"cost,omitempty"`
	// Figures tells people which figures that rests on. Service is what the server did, and Observed how many times as long as the server's own work the
	// calls took that programs waited for; nil and 0 where nothing is known.
	Figures  string      `json:"figures,omitempty"`
	Service  *GPUService `json:"service,omitempty"`
	Observed float64     `json:"observed,omitempty"`
}

// DeviceUse is a part of a device of a node, and the member that holds it.
type DeviceUse struct {
	MemberDevice
	// Member is CLUSTER/MEMBER; empty for a cluster that the reader does not see.
	Member string `json:"member,omitempty"`
}

// IsModel reports whether a device is of a model, by words of its name, or of a kind that its operator named so.
func (d *Device) IsModel(words string) bool {
	return HasWords(d.Model, words) || slices.ContainsFunc(d.Kinds, func(kind string) bool { return strings.EqualFold(kind, words) })
}

// HasWords reports whether a name has some words in a row, in any case: A100 is in A100-SXM4-80GB, and A10 is not.
func HasWords(name, words string) bool {
	split := func(text string) string {
		return " " + strings.Join(strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return r == ' ' || r == '-' || r == '_' }), " ") + " "
	}
	return strings.TrimSpace(words) != "" && strings.Contains(split(name), split(words))
}
