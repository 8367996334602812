package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// printGPUs writes the GPUs of a node, with why some are not given to members.
func printGPUs(w io.Writer, n api.Node) {
	if n.Agent == nil || len(n.Agent.GPUs)+len(n.Agent.GPUProblems) == 0 {
		return
	}
	fmt.Fprintln(w)
	if len(n.Agent.GPUs) > 0 {
		table := newTable(w, "GPU", "MODEL", "MEMORY", "PCI", "NUMA", "DRIVER", "CUDA", "COMPUTE", "MIG", "NVLINK", "PROBLEMS")
		for _, g := range n.Agent.GPUs {
			numa, memory, links := "", "", ""
			if g.NUMANode >= 0 {
				numa = strconv.Itoa(g.NUMANode)
			}
			if g.MemoryBytes > 0 {
				memory = api.Bytes(g.MemoryBytes).String()
			}
			if len(g.NVLinkPeers) > 0 {
				links = fmt.Sprintf("%d peers", len(g.NVLinkPeers))
			}
			mig := g.MIG
			if len(g.MIGProfiles) > 0 {
				mig += " (" + strings.Join(g.MIGProfiles, " ") + ")"
			}
			table.row(g.ID, g.Model, memory, g.PCI, numa, g.Driver, g.CUDA, g.ComputeCapability, mig, links, strings.Join(g.Problems, "; "))
		}
		table.flush()
	}
	for _, problem := range n.Agent.GPUProblems {
		fmt.Fprintf(w, "GPUs: %s\n", problem)
	}
}
