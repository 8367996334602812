package driver

import "github.com/nearmetal/nearmetal/api"

// Meter is the ability to tell what members use.
type Meter interface {
	// Use returns what a running member has used since it started. It returns ErrNotFound for a member that the driver does not run. It may be
	// called while other calls for the member go on.
	Use(id string) (api.MemberUse, error)
}
