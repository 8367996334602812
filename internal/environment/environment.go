// Package environment is what a member's root is made of: the contract between drivers and environments, and the catalog of
// the environments a node offers.
//
// An environment is an allow-list: a member sees what Root names and nothing else of the host. This package reads the host and
// changes nothing on it. Start with Environment and Root, then local.go, the environment that needs no build.
package environment

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Environment is one environment on this node.
type Environment interface {
	// Name is what users write in a group's environment field.
	Name() string
	// Description is one sentence for people.
	Description() string
	// Stacks are the stacks it can be carried on.
	Stacks() []api.Stack
	// Inspect looks at this host and tells whether the environment can run here: its digest, or problems that say what to do.
	Inspect(ctx context.Context) api.EnvironmentOnNode
	// Root returns what a member's root is made of on this host, as it is now.
	Root(ctx context.Context) (Root, error)
}

// Root is what of the host a member sees, read-only. Everything else below the member's / is private to it.
type Root struct {
	// Binds are sorted by Target. Targets below /etc are laid into the member's own generated /etc; a generated file wins over
	// a bind of the same path.
	Binds []Bind
	// Links are symbolic links in the member's root.
	Links []Link
	// Dirs are directories of the member's own, besides those every member has; parents come before children.
	Dirs []Dir
}

// Bind makes a host file or directory visible at Target, read-only; file systems mounted below Source stay hidden.
type Bind struct {
	Source string
	Target string
	// View is Source as this process can open it, where Source is a path in another mount namespace.
	View string
}

// Open is the path by which this process can open what is bound.
func (b Bind) Open() string { return cmp.Or(b.View, b.Source) }

// Link is a symbolic link at Path that points to Target.
type Link struct {
	Path   string
	Target string
}

// Catalog is the set of environments a node offers.
type Catalog []Environment

// Lookup finds an environment by name; the error names those there are.
func (c Catalog) Lookup(name string) (Environment, error) {
	var names []string
	for _, e := range c {
		if e.Name() == name {
			return e, nil
		}
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return nil, fmt.Errorf("this node has no environment %q; it has: %s", name, strings.Join(names, ", "))
}

// Inspect inspects every environment of the catalog on this host.
func (c Catalog) Inspect(ctx context.Context) []api.EnvironmentOnNode {
	found := make([]api.EnvironmentOnNode, 0, len(c))
	for _, e := range c {
		found = append(found, e.Inspect(ctx))
	}
	return found
}
