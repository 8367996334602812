package hostcheck

import (
	"cmp"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// gpus reports on the host's GPUs; a host without any has no findings.
func gpus(w Word) []Finding {
	var all []Finding
	for _, g := range w.GPUs {
		text := cmp.Or(g.Model, "for members")
		if g.MemoryBytes > 0 {
			text += fmt.Sprintf(", %s of memory", api.Bytes(g.MemoryBytes))
		}
		if n := len(g.Slices); n > 0 {
			text += fmt.Sprintf(", handed out by slices (%d)", n)
		}
		if len(g.Problems) == 0 {
			all = append(all, Finding{Area: GPU, Name: g.ID, Status: OK, Detail: text})
		}
		for _, s := range g.Slices {
			for _, problem := range s.Problems {
				all = append(all, finding(GPU, s.ID, Warning, problem))
			}
		}
		for _, problem := range g.Problems {
			all = append(all, finding(GPU, g.ID, Warning, problem))
		}
	}
	for _, problem := range w.GPUProblems {
		all = append(all, finding(GPU, "driver", Warning, problem))
	}
	return all
}
