package store

import (
	"fmt"
	"strings"
)

// CheckCommit tells why a commit breaks the contract's limits, or nil. Every store calls it, so that what passes in tests on
// one passes on all.
func CheckCommit(conds []Cond, ops []Op) error {
	if len(ops) == 0 || len(ops) > MaxOps || len(conds) > MaxOps {
		return fmt.Errorf("a commit has %d writes and %d conditions; the limits are 1 to %d writes and %d conditions", len(ops), len(conds), MaxOps, MaxOps)
	}
	bytes := 0
	seen := make(map[string]bool, len(ops))
	for _, op := range ops {
		if op.Key == "" || op.Key == ElectionKey || op.DeletePrefix && strings.HasPrefix(ElectionKey, op.Key) {
			return fmt.Errorf("a commit must not write the key %q", op.Key)
		}
		if seen[op.Key] {
			return fmt.Errorf("a commit writes the key %q twice", op.Key)
		}
		seen[op.Key] = true
		bytes += len(op.Key) + len(op.Value)
	}
	for _, op := range ops {
		for key := range seen {
			if op.DeletePrefix && key != op.Key && strings.HasPrefix(key, op.Key) {
				return fmt.Errorf("a commit writes the key %q and deletes all of %q", key, op.Key)
			}
		}
	}
	if bytes > MaxBytes {
		return fmt.Errorf("a commit has %d bytes; the limit is %d", bytes, MaxBytes)
	}
	return nil
}
