package measure

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// CarrierKind is what sort of thing carried the messages between ranks.
type CarrierKind string

// The kinds. A run whose messages took ways of several kinds has all of their names, joined.
const (
	CarriedByMemory CarrierKind = "shared memory"
	CarriedByTCP    CarrierKind = "TCP"
	// CarriedUnknown: MPI did not say.
	CarriedUnknown CarrierKind = "not known"
)

// Carrier is what carried the messages of a run, as MPI itself said while it ran.
type Carrier struct {
	Kind CarrierKind `json:"kind"`
	// By are MPI's names for it, such as "vader" or "posix".
	By []string `json:"by,omitempty"`
}

func (c Carrier) String() string {
	if len(c.By) == 0 {
		return string(c.Kind)
	}
	return fmt.Sprintf("%s (%s)", c.Kind, strings.Join(c.By, ", "))
}

// kindOf has the names of Open MPI's byte transfer layers (ompi_info) and UCX's transports (ucx_info -d).
var kindOf = map[string]CarrierKind{
	"vader": CarriedByMemory, "sm": CarriedByMemory, "smcuda": CarriedByMemory,
	"posix": CarriedByMemory, "sysv": CarriedByMemory, "xpmem": CarriedByMemory, "cma": CarriedByMemory, "knem": CarriedByMemory,
	"tcp": CarriedByTCP,
}

var (
	// Open MPI says at level 5 of btl_base_verbose by what a process reaches each other one (mca_bml_r2_endpoint_add_btl); by "self" it
	// reaches itself.
	openMPICarrier = regexp.MustCompile(`mca: bml: Using (\w+) btl for send to`)
	// UCX says at level info which lanes an endpoint has: "ep_cfg[1]: tag(posix/memory cma/memory)" up to 1.13, "intra-node cfg#1
	// tag(...)" since. A process has an endpoint to itself, too, whose first lane is self/memory.
	ucxCarrier = regexp.MustCompile(`cfg(?:\[\d+\]|#\d+):? .*?\w+\(([^)]*)\)`)
)

// FindCarrier reads from what MPI printed what carried the messages between different ranks. Transport.Environment makes MPI say so.
func FindCarrier(output []byte) Carrier {
	by := map[string]bool{}
	for _, found := range openMPICarrier.FindAllSubmatch(output, -1) {
		by[string(found[1])] = true
	}
	delete(by, "self")
	for _, found := range ucxCarrier.FindAllSubmatch(output, -1) {
		lanes := strings.Fields(string(found[1]))
		if slices.ContainsFunc(lanes, func(lane string) bool { return strings.HasPrefix(lane, "self/") }) {
			continue
		}
		for _, lane := range lanes {
			name, _, _ := strings.Cut(lane, "/")
			by[name] = true
		}
	}
	if len(by) == 0 {
		return Carrier{Kind: CarriedUnknown}
	}
	c := Carrier{By: slices.Sorted(maps.Keys(by))}
	var kinds []string
	for _, name := range c.By {
		kind, ok := kindOf[name]
		if !ok {
			kind = CarrierKind(name)
		}
		if !slices.Contains(kinds, string(kind)) {
			kinds = append(kinds, string(kind))
		}
	}
	slices.Sort(kinds)
	c.Kind = CarrierKind(strings.Join(kinds, " and "))
	return c
}

// carriers says what carried each side's messages, "" if no run says.
func (e Experiment) carriers() string {
	var parts []string
	for _, side := range e.Sides {
		var of []string
		for _, r := range e.Runs {
			if r.Side == side.Name && r.CarriedBy != nil && !slices.Contains(of, r.CarriedBy.String()) {
				of = append(of, r.CarriedBy.String())
			}
		}
		if len(of) > 0 {
			parts = append(parts, side.Name+": "+strings.Join(of, "; in other runs "))
		}
	}
	return strings.Join(parts, ". ")
}

// unlike says which sides were carried by different things, so that their ratio is not of like with like; "" if none was.
func (e Experiment) unlike() string {
	base := map[int]*Carrier{}
	for _, r := range e.Runs {
		if r.Side == e.Sides[0].Name {
			base[r.Pair] = r.CarriedBy
		}
	}
	for _, side := range e.Sides[1:] {
		for _, r := range e.Runs {
			if b := base[r.Pair]; r.Side == side.Name && !side.Reference && b != nil && r.CarriedBy != nil && r.CarriedBy.Kind != b.Kind {
				return fmt.Sprintf("in pair %d the messages of %s went by %s, those of %s by %s. Their ratio says nothing about the cluster.",
					r.Pair+1, e.Sides[0].Name, b, side.Name, r.CarriedBy)
			}
		}
	}
	return ""
}
