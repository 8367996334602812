package manifest

import (
	"fmt"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// Shaped fills cores and memory that a request does not give from the shapes that its groups name. find returns a shape for the group of a name,
// and false for one that is not known: the problem says so with missing. Normalize comes after it.
func Shaped(req api.ClusterRequest, src *Source, find func(group, shape string) (api.Shape, bool), missing func(shape string) string) (api.ClusterRequest, []api.FieldProblem) {
	var problems []api.FieldProblem
	fill := func(path, group, shape string, cores *int, memory *api.Bytes) {
		at := join(path, "shape")
		if shape == "" || LabelProblem(shape, MaxLabel) != "" { // for Normalize to refuse
			return
		}
		found, ok := find(group, shape)
		if !ok {
			problems = append(problems, api.FieldProblem{Location: at, Line: src.Line(at), Value: shape, Message: missing(shape)})
			return
		}
		if *cores == 0 && !src.Has(join(path, "cores")) {
			*cores = found.Cores
		}
		if *memory == 0 && !src.Has(join(path, "memory")) {
			*memory = found.Memory
		}
	}
	if len(req.Groups) == 0 {
		fill("", req.Name, req.ShapeName, &req.Cores, &req.Memory)
		return req, problems
	}
	req.Groups = append([]api.Group(nil), req.Groups...)
	for i := range req.Groups {
		g := &req.Groups[i]
		name := g.Name
		if name == "" {
			name = req.Name
		}
		fill(fmt.Sprintf("groups[%d]", i), name, g.ShapeName, &g.Cores, &g.Memory)
	}
	return req, problems
}

// CheckShape refuses settings that no named shape can have. The error is an *Invalid.
func CheckShape(name string, s api.ShapeSettings, src *Source) error {
	n := normalizer{src: src}
	if problem := LabelProblem(name, MaxLabel); problem != "" {
		n.add("name", name, "%q %s", name, problem)
	}
	if len(s.Description) > MaxShapeDescription {
		n.add("description", "", "is %d bytes long; use at most %d", len(s.Description), MaxShapeDescription)
	}
	switch {
	case s.Cores == 0 && !src.Has("cores"):
		n.add("cores", "", "is missing; give the cores of each member, at least 1")
	case s.Cores < 1 || s.Cores > MaxCores:
		n.add("cores", strconv.Itoa(s.Cores), "%d is not possible; give 1 to %d", s.Cores, MaxCores)
	}
	if s.Memory == 0 && !src.Has("memory") {
		n.add("memory", "", "is missing; give the memory of each member, like 8GiB")
	} else {
		n.memory("memory", &s.Memory, MinMemory)
	}
	if s.Disk != 0 || src.Has("disk") {
		n.disk("disk", api.Group{Stack: api.StackVM, Shape: api.Shape{Disk: s.Disk}})
	}
	return n.err()
}

// MaxShapeDescription bounds the description of a named shape, in bytes.
const MaxShapeDescription = 1000
