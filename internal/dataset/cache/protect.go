package cache

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/internal/data/xrootd"
	"github.com/nearmetal/nearmetal/internal/nftables"
)

// table is the table of the rules for caches, in the network namespace of their node.
const table = "inet nearmetal_caches"

// protect keeps the servers of caches from connecting to this node, wherever a name or a redirect of their origin leads: the caches of others listen there,
// and services that trust whoever is on the machine. What they answer passes.
func protect(ctx context.Context) error {
	script := fmt.Sprintf(`table %[1]s
delete table %[1]s
table %[1]s {
	chain out {
		type filter hook output priority 0; policy accept;
		meta skgid %[2]d meta l4proto tcp ct direction original fib daddr type local counter reject with tcp reset comment "caches must not read from their own node"
	}
}
`, table, xrootd.Group)
	if err := nftables.Load(ctx, script); err != nil {
		return fmt.Errorf("keeping caches from reading from this node: %w", err)
	}
	return nil
}

// unprotect removes the rules. A table that is not there is as good.
func unprotect(ctx context.Context) {
	_ = nftables.Load(ctx, fmt.Sprintf("table %[1]s\ndelete table %[1]s\n", table))
}
