package state

import "github.com/nearmetal/nearmetal/api"

// sameCondition reports whether two conditions of a cluster's network are one; nil is none.
func sameCondition(a, b *api.NetworkCondition) bool {
	return a == b || a != nil && b != nil && *a == *b
}
