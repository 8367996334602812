package decision

import "github.com/nearmetal/nearmetal/internal/lifecycle"

// Need is the request of a cluster to admission.
type Need = lifecycle.Need
