// Package energy measures what nodes consume, and divides it among clusters, jobs, idle time and the rest.
//
// Sources (rapl, pdu, command) read a counter or a meter; a Sampler reads those of a node together with its members' CPU time. A Book, on the
// leader, takes the samples and divides each difference of a counter by Split, which is pure and loses no microjoule. A reading that is not
// there is unavailable with its reason, never zero. The package must not decide anything, and must not store. Start with Split, then Sampler,
// then Book.
package energy

import (
	"context"

	"github.com/nearmetal/nearmetal/api"
)

// Source is one way to know what a machine consumes.
type Source interface {
	// Kind names it, Scope says in words which part of the machine it sees.
	Kind() api.EnergySource
	Scope() string
	// Read reads it. It returns before its context's deadline. An error is the reason why there is no reading, as a sentence for an operator. It may
	// be called again after any error.
	Read(ctx context.Context) (Reading, error)
}

// Reading is what a source says at one time: a counter or a power.
type Reading struct {
	// Counter is set for a source that counts energy.
	Counter *Counter
	// Watts is the present power of a source that does not count.
	Watts float64
	// Modelled is why the reading is no measurement; empty: it is one.
	Modelled string
}

// Counter is energy since a source was opened.
type Counter struct {
	Microjoules int64
	// Breaks is how often energy went uncounted: a difference over a break says nothing.
	Breaks int64
	// Domains are its parts.
	Domains []Domain
}

// Domain is a part of a machine with a counter of its own.
type Domain struct {
	Name        string
	Microjoules int64
	// Counted: the source's sum contains it.
	Counted bool
}
