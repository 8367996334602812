package driver

import "context"

// IOLimiter is the ability to bound the I/O of a member with the file systems that it has of the host.
type IOLimiter interface {
	// LimitIO holds a running or paused member to m.IOLimits, and lifts all other limits of its I/O. On nil the host says that exactly these are in
	// force. On error those that could be set are, and LimitIO may be repeated. It returns ErrNotFound when the member is absent. It changes nothing
	// else of the member. Start sets the limits too, before the member's first instruction, but starts a member without those that it can't set.
	LimitIO(ctx context.Context, m Member) error
}
