package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nearmetal/nearmetal/api"
)

// Remote is how a node takes part in remote GPUs: what its servers hand out to members of any node, and what its own members call servers by.
type Remote struct {
	// Programs is the folder with the server's program and the front ends (make gpuremote); empty: the node has neither.
	Programs string
	// GPUs are handed out by servers, too, where no member has them whole.
	GPUs bool
	// OpenCLBytes is how much memory of the host's own OpenCL device, which is its processor (PoCL), is handed out by servers; 0: it is not.
	OpenCLBytes int64
}

const (
	// OpenCLID is the ID of a node's own OpenCL device.
	OpenCLID = api.OpenCLDevice
	// ServerProgram is the server's program, among the others.
	ServerProgram = "nearmetal-gpu-server"
	// remoteReserve is how much of each GPU's memory is not handed out: contexts of the driver take some of it, which no client sees.
	remoteReserve = 1 << 30
	// vendors is where OpenCL's loader learns of drivers, and where a server has it.
	vendors       = "/etc/OpenCL/vendors"
	serverVendors = Dir + "/vendors"
)

// frontEnds are the libraries that programs call servers by, under the names that programs know.
var frontEnds = []string{
	"libcuda.so.1", "libcudart.so.13", "libcublas.so.13", "libcufft.so.12", "libcurand.so.10", "libcusparse.so.12", "libcudnn.so.9",
}

// missing says what of the programs of remote GPUs a node lacks, "" where it has them.
func (r Remote) missing() string {
	switch {
	case r.Programs == "":
		return "the programs of remote GPUs are not installed; run: make gpuremote, and give their folder by --gpu-programs"
	case !isExecutable(filepath.Join(r.Programs, ServerProgram)):
		return fmt.Sprintf("%s is not there; run: make gpuremote", filepath.Join(r.Programs, ServerProgram))
	default:
		return ""
	}
}

// openCL is the host's own OpenCL device as it is shown.
func (r Remote) openCL(root string) api.NodeGPU {
	g := api.NodeGPU{ID: OpenCLID, Model: "OpenCL device of the host", MemoryBytes: r.OpenCLBytes, NUMANode: -1, Remote: true}
	if entries, err := os.ReadDir(filepath.Join(root, vendors)); err != nil || len(entries) == 0 {
		g.Problems = append(g.Problems, vendors+" names no OpenCL driver; install one (Debian: pocl-opencl-icd)")
	}
	if why := r.missing(); why != "" {
		g.Problems = append(g.Problems, why)
	}
	return g
}

// addRemote adds what servers hand out to what was found.
func (r Remote) addRemote(found *Found, root string) {
	found.Programs = r.missing() == ""
	for i := range found.GPUs {
		if g := &found.GPUs[i]; r.GPUs && len(g.Problems) == 0 && g.MIG != "enabled" && g.MemoryBytes > remoteReserve {
			g.Remote = r.missing() == ""
		}
	}
	if why := r.missing(); why != "" && r.GPUs {
		found.Problems = append(found.Problems, "no GPU is handed out to other nodes: "+why)
	}
	if r.OpenCLBytes > 0 {
		found.GPUs = append(found.GPUs, r.openCL(root))
	}
}

// remoteMiB is how much of a GPU's memory servers hand out.
func remoteMiB(g api.NodeGPU) int64 {
	switch {
	case !g.Remote:
		return 0
	case g.ID == OpenCLID:
		return g.MemoryBytes >> 20
	default:
		return (g.MemoryBytes - remoteReserve) >> 20
	}
}

// Served returns what a server needs to use the GPUs whose memory it hands out.
func (n *Node) Served(ctx context.Context, claims []api.DeviceClaim) (*Edits, error) {
	remote := n.cfg.Remote
	if why := remote.missing(); why != "" {
		return nil, errors.New(why)
	}
	edits := &Edits{Mounts: []Mount{{Path: Dir + "/server", HostPath: filepath.Join(remote.Programs, ServerProgram), ReadOnly: true}}}
	var whole []api.DeviceClaim
	for _, c := range claims {
		if c.Device != OpenCLID {
			whole = append(whole, c)
			continue
		}
		edits.Mounts = append(edits.Mounts, Mount{Path: serverVendors, HostPath: filepath.Join(n.cfg.Root, vendors), ReadOnly: true})
		edits.Env = append(edits.Env, "OCL_ICD_VENDORS="+serverVendors, "POCL_CACHE_DIR=/tmp/pocl", "HOME=/tmp")
	}
	own, err := n.Edits(ctx, whole)
	if err != nil || own == nil {
		return edits, err
	}
	return edits, edits.add(own)
}

// FrontEnds returns what a member needs whose programs use GPUs by servers.
func (n *Node) FrontEnds() (*Edits, error) {
	remote := n.cfg.Remote
	if why := remote.missing(); why != "" {
		return nil, errors.New(why)
	}
	edits := &Edits{Mounts: []Mount{{Path: Dir + "/lib", HostPath: remote.Programs, ReadOnly: true}}, Libraries: map[string]string{}}
	for _, name := range frontEnds {
		if _, err := os.Stat(filepath.Join(remote.Programs, name)); err != nil {
			continue
		}
		edits.Libraries[name] = Dir + "/lib/" + name
	}
	return edits, nil
}
