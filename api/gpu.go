package api

// ClassGPU is the class of GPUs among devices.
const ClassGPU = "gpu"

// The ways to hand out GPUs.
const (
	// WayWhole is how a GPU is handed out that one member has alone.
	WayWhole = "whole"
	// WayRemote is how a part of a GPU's memory is handed out, by a server beside the GPU. Programs of the member call that server by CUDA's or OpenCL's own
	// functions, from any node. Its mode excludes WayWhole.
	WayRemote = "remote"
	// WayPassthrough is how a virtual machine gets a whole GPU: as a PCI device, by VFIO. Groups on the stack vm ask for it as WayWhole. Its mode excludes
	// all others.
	WayPassthrough = "passthrough"
	// WayMIG is how a slice of a GPU is handed out that its operator has divided (NVIDIA's MIG). Each slice is a device of its own.
	WayMIG = "mig"
	// WayAny asks for whatever is best: a whole GPU of the member's own node (WholeWay), or WayRemote. Nothing is handed out in this way.
	WayAny = "any"
)

// The counters of GPUs.
const (
	// CounterGPUs counts GPUs that are handed out whole.
	CounterGPUs = "gpus"
	// CounterSlices counts the parts into which a GPU can be divided (NVIDIA's MIG). A whole GPU takes all of its own, and a slice as many as its profile
	// says: 3 for 3g.40gb. A GPU that can't be divided has none.
	CounterSlices = "slices"
	// CounterRemoteMiB counts the memory of GPUs that are handed out by servers, in MiB.
	CounterRemoteMiB = "remote-mib"
)

// PortGPUServer is the TCP port of servers of remote GPUs.
const PortGPUServer = 7070

// OpenCLDevice is the ID of a node's own OpenCL device, which is its processor. Servers hand out its memory as that of a GPU.
const OpenCLDevice = "opencl0"

// Times is how many times what its way takes a part of a request takes: the MiB of memory of a remote GPU, and 1 of all others.
func (r *DeviceRequest) Times() int64 {
	if r.Class != ClassGPU || r.Way != WayRemote {
		return 1
	}
	return max(1, (int64(r.Memory)+1<<20-1)>>20)
}

// MayBeServed reports whether a server may meet a request: it is for remote GPUs, or for any.
func (r *DeviceRequest) MayBeServed() bool {
	return r.Class == ClassGPU && (r.Way == WayRemote || r.Way == WayAny)
}

// WholeWay is the way in which members on a stack get whole GPUs: by their node's driver, or, in virtual machines, as PCI devices.
func WholeWay(stack Stack) string {
	if stack == StackVM {
		return WayPassthrough
	}
	return WayWhole
}

// By returns a request for any GPU as one for that way alone. Other requests stay as they are.
func (r DeviceRequest) By(way string) DeviceRequest {
	if r.Class == ClassGPU && r.Way == WayAny {
		r.Way, r.Remote = way, way == WayRemote
	}
	return r
}

// The memory of its node that a server of remote GPUs may use: contexts of the driver and rings, or those of the node's own OpenCL device, which
// compiles there, too.
const (
	serverMemory       = 2 << 30
	serverMemoryOpenCL = 1 << 30
)

// ServerMemoryBytes is how much memory of its node a server of these GPUs may use. What it hands out of the node's own OpenCL device is among it.
func ServerMemoryBytes(claims []DeviceClaim) int64 {
	own, least := int64(0), int64(serverMemoryOpenCL)
	for i := range claims {
		if claims[i].Device == OpenCLDevice {
			own += claims[i].Times() << 20
		} else {
			least = serverMemory
		}
	}
	return least + own
}

// Times is how many times what its way takes a claim takes, as for a request.
func (c *DeviceClaim) Times() int64 {
	if c.Class != ClassGPU || c.Way != WayRemote {
		return 1
	}
	return max(1, c.Takes[CounterRemoteMiB])
}

// ServesGPU reports whether an assignment is a server of remote GPUs, for the member that it is a part of.
func (a *Assignment) ServesGPU() bool {
	return a.IsPart() && !a.IsSuccessor() && len(a.Devices) > 0 && a.Devices[0].Class == ClassGPU && a.Devices[0].Way == WayRemote
}

// GPURequest asks for GPUs of each member. Whole ones of its own node are asked for by their number, as in "2", or that and their kind, as in "1:H200" or
// "1:80GiB": words of the model's name, or the least memory of each. "1:remote:8GiB" asks for 8 GiB of the memory of a GPU of any node, "1:any:8GiB" for a
// whole GPU of its own node with as much memory where one is free, and else for that. "1:mig" asks for a slice of a GPU, "1:mig:1g.10gb" for one of that
// profile, and "1:mig:9GiB" for one with at least so much memory.
type GPURequest string

// GPUPattern is the form of a GPURequest, also for JSON Schema.
const GPUPattern = `^[0-9]{1,2}(:[A-Za-z0-9][A-Za-z0-9 ._+-]{0,62}){0,3}$`

// MIGProfilePattern is the form of the name of a slice's size: 3g.40gb, 1g.18gb+me, or 1c.3g.40gb for one of several compute instances of a GPU instance.
const MIGProfilePattern = `^(?:([0-9])c\.)?([0-9])g\.[0-9]{1,4}gb([+-][a-z][a-z.]{0,15})?$`

// NodeGPU is a GPU of a node as its agent last saw it.
type NodeGPU struct {
	// ID is stable on its node: the GPU's UUID, or the qualified name of a CDI device, such as example.com/gpu=gpu0.
	ID string `json:"id"`
	// Model is the product's name; empty where it is not known.
	Model string `json:"model,omitempty"`
	// Kinds are the names that its operator gave to GPUs like it.
	Kinds []string `json:"kinds,omitempty"`
	// MemoryBytes is the size of its memory; 0 where that is not known.
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	// PCI is its PCI address, such as 0000:3b:00.0; empty where it is not known. NUMANode is the NUMA node that it is attached to, -1 where that is not known.
	PCI      string `json:"pci,omitempty"`
	NUMANode int    `json:"numa_node"`
	// Driver is the version of its kernel driver, CUDA the latest version of CUDA that this driver carries, and ComputeCapability the GPU's own, such as 9.0.
	Driver            string `json:"driver,omitempty"`
	CUDA              string `json:"cuda,omitempty"`
	ComputeCapability string `json:"compute_capability,omitempty"`
	// MIG is the mode of a GPU that can be divided into slices: enabled or disabled; empty for others. MIGProfiles are the sizes of slices, known while
	// the mode is enabled.
	MIG         string   `json:"mig,omitempty"`
	MIGProfiles []string `json:"mig_profiles,omitempty"`
	// Slices are the MIG devices that its operator made of it. While its mode is enabled, they are handed out, and the GPU itself is not.
	Slices []GPUSlice `json:"slices,omitempty"`
	// NVLinkPeers are the IDs of the GPUs of the node that it reaches over NVLink.
	NVLinkPeers []string `json:"nvlink_peers,omitempty"`
	// CDI is the file that says what a container needs to use it; empty where Nearmetal makes that itself.
	CDI string `json:"cdi,omitempty"`
	// Remote: servers hand out its memory to members of any node, while no member has it whole.
	Remote bool `json:"remote,omitempty"`
	// Passthrough is how virtual machines get it whole; nil where its place on the PCI bus is not known.
	Passthrough *GPUPassthrough `json:"passthrough,omitempty"`
	// Bare: nothing but its place on the PCI bus is known, so only virtual machines can have it.
	Bare bool `json:"bare,omitempty"`
	// Load is how busy it was when that was measured last; nil: not known. The site says so, not the agent's record.
	Load *GPULoad `json:"load,omitempty"`
	// Problems are why it is not offered to members, one a line.
	Problems []string `json:"problems,omitempty"`
}

// GPUSlice is a MIG device: a part of a GPU with memory and processors of its own.
type GPUSlice struct {
	// ID is its UUID, such as MIG-5d7a1c3e-0b42-4f6e-9a11-2c8f00d1e001, and Profile its size, such as 1g.10gb.
	ID      string `json:"id"`
	Profile string `json:"profile"`
	// MemoryBytes is the size of its memory; 0 where that is not known.
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	// CDI is the qualified name by which a CDI file of the node has its device nodes; empty where no file has it.
	CDI string `json:"cdi,omitempty"`
	// Problems are why it is not offered to members, one a line.
	Problems []string `json:"problems,omitempty"`
}

// GPUPassthrough is how virtual machines get a GPU.
type GPUPassthrough struct {
	// Offered: virtual machines get it.
	Offered bool `json:"offered,omitempty"`
	// IOMMUGroup is its IOMMU group, empty without an IOMMU, and Functions are the addresses of the other PCI functions that go along, such as its audio.
	IOMMUGroup string   `json:"iommu_group,omitempty"`
	Functions  []string `json:"functions,omitempty"`
	// Reset is how it is reset between owners, in the words of the kernel's reset_method; empty where the kernel can't.
	Reset string `json:"reset,omitempty"`
	// Problem is why virtual machines can't get it; empty where they can.
	Problem string `json:"problem,omitempty"`
}
