package decision

import "github.com/nearmetal/nearmetal/internal/lifecycle"

// Need is what a cluster asks admission for.
type Need = lifecycle.Need
