package paths

import (
	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
)

// Holders are the nodes that have something of datasets, by the UID of the dataset.
type Holders map[string]*holding

// holding is what nodes have of one dataset.
type holding struct {
	states map[string]*dataset.State // by node
	// peers are the nodes that have all and pass it on, in the order in which they were added. bytes is the size as nodes know it.
	peers []string
	bytes int64
}

// Add adds what a node says of datasets. serves: it passes on what it has.
func (h Holders) Add(node string, serves bool, states []dataset.State) {
	for i := range states {
		s := &states[i]
		of := h[s.UID]
		if of == nil {
			of = &holding{states: map[string]*dataset.State{}}
			h[s.UID] = of
		}
		of.states[node] = s
		of.bytes = max(of.bytes, s.OfBytes)
		if s.Whole && serves && len(s.Contents) > 0 {
			of.peers = append(of.peers, node)
		}
	}
}

// AskOf is what a node is asked about a dataset, by what all nodes say of it.
func (h Holders) AskOf(d *api.Dataset, node string) Ask {
	a := Ask{Node: node, Files: d.Files}
	for i := range d.Files {
		a.Bytes += d.Files[i].SizeBytes
	}
	of := h[d.UID]
	if of == nil {
		return a
	}
	a.Bytes = max(a.Bytes, of.bytes)
	if len(d.Sealed) == 0 { // what is private goes from no node to another
		a.Peers = of.peers
	}
	if s := of.states[node]; s != nil {
		if a.Held = s.HeldBytes; s.Whole {
			a.Bytes = a.Held
		}
	}
	return a
}

// AskAnew is AskOf for a node that has nothing.
func (h Holders) AskAnew(d *api.Dataset, node string) Ask {
	a := h.AskOf(d, node)
	a.Held, a.Peers = 0, nil
	if of := h[d.UID]; of != nil && len(d.Sealed) == 0 {
		for _, p := range of.peers {
			if p != node {
				a.Peers = append(a.Peers, p)
			}
		}
	}
	return a
}
