package api

// ClassGPU is the class of GPUs among devices.
const ClassGPU = "gpu"

// WayWhole is how a GPU is handed out that one member has alone.
const WayWhole = "whole"

// The counters of GPUs.
const (
	// CounterGPUs counts GPUs that are handed out whole.
	CounterGPUs = "gpus"
	// CounterSlices counts the parts into which a GPU can be divided (NVIDIA's MIG). A whole GPU takes all of its own. A GPU that can't be divided has none.
	CounterSlices = "slices"
)

// GPURequest asks for whole GPUs of a member's own node: their number, as in "2", or that and their kind, as in "1:H200" or "1:80GiB": words of the model's
// name, or the least memory of each.
type GPURequest string

// GPUPattern is the form of a GPURequest, also for JSON Schema.
const GPUPattern = `^[0-9]{1,2}(:[A-Za-z0-9][A-Za-z0-9 ._+-]{0,62})?$`

// NodeGPU is a GPU of a node as its agent last saw it.
type NodeGPU struct {
	// ID is stable on its node: the GPU's UUID, or the qualified name of a CDI device, such as example.com/gpu=gpu0.
	ID string `json:"id"`
	// Model is the product's name; empty where it is not known.
	Model string `json:"model,omitempty"`
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
	// NVLinkPeers are the IDs of the GPUs of the node that it reaches over NVLink.
	NVLinkPeers []string `json:"nvlink_peers,omitempty"`
	// CDI is the file that says what a container needs to use it; empty where Nearmetal makes that itself.
	CDI string `json:"cdi,omitempty"`
	// Problems are why it is not offered to members, one a line.
	Problems []string `json:"problems,omitempty"`
}
