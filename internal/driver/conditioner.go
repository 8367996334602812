package driver

import "context"

// Conditioner is the ability to give what a member sends on its cluster's own network a condition.
type Conditioner interface {
	// SetCondition gives what a running or paused member sends, and what it gets from outside of its networks, m.Condition, in place of another one. On nil
	// the condition is in force, and was measured. Without m.Condition, packets go straight again, also those that a driver of an ended process had led
	// elsewhere. On error the member has no condition, and SetCondition may be repeated. It returns ErrNotFound when the member is absent. A condition
	// lasts until the member ends, or the driver is closed, or its process ends; Start sets none.
	SetCondition(ctx context.Context, m Member) error
}
