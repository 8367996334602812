package passthrough

import (
	"slices"
	"strings"
)

// action is what a step does.
type action string

const (
	// doOverride makes Value the only driver that may take the function; "" lets any.
	doOverride action = "override"
	// doUnbind takes the function from its driver.
	doUnbind action = "unbind"
	// doWays makes Value the only ways in which the kernel may reset the function.
	doWays action = "choosing the reset"
	// doReset resets the function.
	doReset action = "reset"
	// doClear overwrites the GPU's memory, and reads it back.
	doClear action = "clear"
	// doProbe has the kernel give the function to a driver, which must be Value.
	doProbe action = "probe"
)

// step is one operation on a function.
type step struct {
	Do    action
	PCI   string
	Value string
}

// planTake is how a GPU comes to vfio-pci, for an owner who finds nothing in it: neither of the node nor of an earlier owner.
func planTake(c Card, r record, clearing Clearing) []step {
	var steps []step
	for _, f := range c.Functions {
		steps = append(steps, step{doOverride, f.PCI, vfioPCI})
	}
	steps = append(steps, planEmpty(c, r, clearing)...)
	for _, f := range c.Functions {
		steps = append(steps, step{doProbe, f.PCI, vfioPCI})
	}
	return steps
}

// planGive is how a GPU comes back from its owner: without anything of the owner, and with the drivers that it had before.
func planGive(c Card, r record, clearing Clearing) []step {
	var steps []step
	for _, f := range c.Functions {
		// While it is emptied, no driver of the host may take it.
		steps = append(steps, step{doOverride, f.PCI, vfioPCI})
	}
	steps = append(steps, planEmpty(c, r, clearing)...)
	for _, f := range c.Functions {
		was := Function{PCI: f.PCI}
		if i := slices.IndexFunc(r.Functions, func(b Function) bool { return b.PCI == f.PCI }); i >= 0 {
			was = r.Functions[i]
		}
		steps = append(steps, step{doOverride, f.PCI, was.Override})
		if was.Driver != "" {
			steps = append(steps, step{doProbe, f.PCI, was.Driver})
		}
	}
	return steps
}

// planEmpty takes a GPU from its drivers, resets it, and clears its memory. The reset comes first: it ends what the GPU still does to its memory. It is
// in one way alone: else the kernel would try the others where that one fails, and some keep what the GPU holds.
func planEmpty(c Card, r record, clearing Clearing) []step {
	var steps []step
	for _, f := range c.Functions {
		if f.Driver != "" {
			steps = append(steps, step{doUnbind, f.PCI, f.Driver})
		}
	}
	steps = append(steps, step{doWays, c.PCI, c.Reset()}, step{Do: doReset, PCI: c.PCI}, step{doWays, c.PCI, strings.Join(r.Resets, " ")})
	if clearing == ClearingProven {
		steps = append(steps, step{Do: doClear, PCI: c.PCI})
	}
	return steps
}
