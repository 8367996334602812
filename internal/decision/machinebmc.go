package decision

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// applyBMC returns what is known of a machine's BMC after an operation on it. was stays as it is.
func applyBMC(was *api.MachineBMC, op lifecycle.MachineOperation, now time.Time) *api.MachineBMC {
	b := api.MachineBMC{}
	if was != nil {
		b = *was
	}
	switch op := op.(type) {
	case lifecycle.BeginDuty:
		b.Duties++
		b.Duty = &api.BMCDuty{Kind: op.Kind, Number: b.Duties, For: op.For, Deadline: op.Deadline}
		if len(op.Next) > 0 {
			b.Next = op.Next
		}
	case lifecycle.DropDuty:
		b.Duty = nil // Next stays: nobody knows which password is right
	case lifecycle.NoteDrift:
		b.Drift = api.ShortMessage(op.Text)
	case lifecycle.EndDuty:
		endDuty(&b, op, now)
	}
	return &b
}

func endDuty(b *api.MachineBMC, op lifecycle.EndDuty, now time.Time) {
	seen := op.Seen
	if b.Duty != nil && b.Duty.Kind == api.BMCLock {
		b.LockedFor = b.Duty.For
	}
	b.Duty = nil
	b.Host, b.HostMessage, b.HostAt = seen.Host, api.ShortMessage(seen.HostReason), now
	b.Baseline, b.Unwatched, b.Drift = seen.Baseline, api.ShortMessage(seen.Unwatched), ""
	b.Unrotated = api.ShortMessage(seen.Unrotated)
	switch {
	case seen.Rotated:
		b.Sealed, b.Replaces, b.Next, b.RotatedAt = b.Next, op.Replaces, nil, &now
	case seen.Unrotated != "":
		b.Next = nil
	}
}
