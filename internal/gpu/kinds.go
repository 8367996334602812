package gpu

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// An operator says which GPUs members get, and names kinds of them as users ask for them. Both are by what is known of a GPU: its ID, its PCI address, or
// words of its model's name. What a list does not name is kept, so that a GPU that is plugged in later goes to nobody by mistake.

// Kind is a name for GPUs.
type Kind struct {
	// Name is what users write, Of which GPUs it is for.
	Name, Of string
}

var kindName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]{0,31}$`)

// ParseKind reads NAME=WHAT.
func ParseKind(text string) (Kind, error) {
	name, of, found := strings.Cut(text, "=")
	if !found || of == "" {
		return Kind{}, fmt.Errorf("%q is no name of GPUs; write NAME=WHAT, such as big=H200", text)
	}
	if !kindName.MatchString(name) || slices.Contains([]string{api.WayWhole, api.WayRemote, api.WayAny, api.WayMIG}, strings.ToLower(name)) {
		return Kind{}, fmt.Errorf("%q can't be the name of a kind of GPUs: write a letter, then letters, digits, '.', '_' and '-', at most 32, and none of whole, remote, any, mig", name)
	}
	return Kind{name, of}, nil
}

// is reports whether an operator's word is for a GPU.
func is(g api.NodeGPU, what string) bool {
	return g.ID == what || g.PCI != "" && strings.EqualFold(g.PCI, what) || api.HasWords(g.Model, what)
}

// keep marks the GPUs that an operator's list does not name as kept. No list keeps none. The host's own OpenCL device is offered by an option of its own.
func (f *Found) keep(allowed []string) {
	if len(allowed) == 0 {
		return
	}
	for i := range f.GPUs {
		g := &f.GPUs[i]
		if !slices.ContainsFunc(allowed, func(what string) bool { return is(*g, what) }) {
			g.Problems = append(g.Problems, "its operator keeps it: it is none of those of --gpu-allow")
			if g.Passthrough != nil {
				g.Passthrough.Offered = false
			}
			f.withdraw(g)
		}
	}
	for _, what := range allowed {
		if !slices.ContainsFunc(f.GPUs, func(g api.NodeGPU) bool { return is(g, what) }) {
			f.Problems = append(f.Problems, fmt.Sprintf("--gpu-allow %q is none of the node's GPUs", what))
		}
	}
}

// name gives GPUs the names of their kinds.
func (f *Found) name(kinds []Kind) {
	for i := range f.GPUs {
		g := &f.GPUs[i]
		for _, k := range kinds {
			if is(*g, k.Of) && !slices.Contains(g.Kinds, k.Name) {
				g.Kinds = append(g.Kinds, k.Name)
			}
		}
	}
}
