package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

// gpuOfSite is a GPU of the site, or a slice of one, and what members hold of it.
type gpuOfSite struct {
	Node string `json:"node"`
	// ID is that of the GPU, or of the slice, and Parent the GPU of a slice. Profile is the slice's size.
	ID      string `json:"id"`
	Parent  string `json:"parent,omitempty"`
	Profile string `json:"profile,omitempty"`
	Model   string `json:"model,omitempty"`
	// MemoryBytes is its own memory; 0 where that is not known.
	MemoryBytes int64           `json:"memory_bytes,omitempty"`
	Uses        []api.DeviceUse `json:"uses,omitempty"`
	// Gone: the node does not offer it any more, and somebody holds it. Problems are why it is not offered to members.
	Gone     bool     `json:"gone,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

func (a *app) gpuCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "gpu", Short: "Show the GPUs of the site", Args: cobra.ArbitraryArgs, RunE: needCommand}
	cmd.AddCommand(a.gpuList())
	return a.connects(cmd)
}

func (a *app) gpuList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the GPUs of all nodes and their slices, with the members that hold them", Args: noArgs}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		nodes, err := c.Nodes(cmd.Context())
		if err != nil {
			return err
		}
		gpus := gpusOfSite(nodes)
		return out.print(a.Streams.Out, gpus, func(w io.Writer) {
			t := newTable(w, "NODE", "GPU", "SLICE OF", "PROFILE", "MODEL", "MEMORY", "HELD BY", "PROBLEMS")
			for _, g := range gpus {
				memory := ""
				if g.MemoryBytes > 0 {
					memory = api.Bytes(g.MemoryBytes).String()
				}
				t.row(g.Node, g.ID, g.Parent, g.Profile, g.Model, memory, holdersText(g.Uses), strings.Join(g.Problems, "; "))
			}
			t.flush()
		})
	}
	return cmd
}

// gpusOfSite lists the GPUs of nodes, each with its slices behind it, and what members hold that is gone at the end of its node.
func gpusOfSite(nodes []api.Node) []gpuOfSite {
	all := []gpuOfSite{}
	for _, n := range nodes {
		if n.Agent == nil {
			continue
		}
		known := map[string]bool{}
		add := func(g gpuOfSite) {
			for _, u := range n.GPUUses {
				if u.Device == g.ID {
					g.Uses = append(g.Uses, u)
				}
			}
			known[g.ID] = true
			all = append(all, g)
		}
		for _, g := range n.Agent.GPUs {
			add(gpuOfSite{Node: n.Name, ID: g.ID, Model: g.Model, MemoryBytes: g.MemoryBytes, Problems: g.Problems})
			for _, s := range g.Slices {
				add(gpuOfSite{Node: n.Name, ID: s.ID, Parent: g.ID, Profile: s.Profile, Model: g.Model, MemoryBytes: s.MemoryBytes, Problems: s.Problems})
			}
		}
		for _, u := range n.GPUUses {
			if !known[u.Device] {
				add(gpuOfSite{Node: n.Name, ID: u.Device, Parent: u.Parent, Profile: u.Profile, Gone: true, Problems: []string{"its node does not have it any more"}})
			}
		}
	}
	return all
}

// holdersText names who holds what of a GPU: c1/c1-0 (whole).
func holdersText(uses []api.DeviceUse) string {
	texts := make([]string, len(uses))
	for i, u := range uses {
		texts[i] = fmt.Sprintf("%s (%s)", orElse(u.Member, "of another project"), deviceAmount(u.MemberDevice))
	}
	return strings.Join(texts, ", ")
}
