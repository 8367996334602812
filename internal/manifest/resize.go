package manifest

import (
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// Resized returns a group whose members have the size that a request names; what the request omits stays. The error is an *Invalid.
func Resized(g api.Group, req api.ResizeRequest, src *Source) (api.Group, error) {
	n := normalizer{src: src}
	given := false
	if req.Cores != 0 || src.Has("cores") {
		given = true
		if req.Cores < 1 || req.Cores > MaxCores {
			n.add("cores", strconv.Itoa(req.Cores), "%d is not possible; give 1 to %d", req.Cores, MaxCores)
		}
		g.Cores = req.Cores
	}
	if req.Memory != 0 || src.Has("memory") {
		given = true
		least := MinMemory
		if g.Stack == api.StackVM {
			least = MinVMMemory
		}
		n.memory("memory", &req.Memory, least)
		g.Memory = req.Memory
		if g.HugePages != 0 {
			n.hugePages("", g)
		}
	}
	if req.Disk != 0 || src.Has("disk") {
		given = true
		n.disk("disk", api.Group{Stack: g.Stack, Shape: api.Shape{Disk: req.Disk}})
		g.Disk = req.Disk
	}
	if !given {
		n.add("cores", "", "is missing; give the new cores, memory or disk of each member")
	}
	return g, n.err()
}
