package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// resizeDeadline bounds the change of a running member's size: a guest has half a minute each to follow with processors and with memory, and again on the
// way back.
const resizeDeadline = 3 * time.Minute

// sizeWanted reports whether a member is to have another size than it has, which its driver has not found to need a reboot.
func (m *memberState) sizeWanted() bool {
	want := m.want.Assignment.SizeNumber
	return want != m.size && (m.unsized == "" || m.unsizedFor != want)
}

// changeSize gives a running member its new size. A driver that needs a reboot for it is not asked again: the reboot is the user's decision.
func (a *Agent) changeSize(ctx context.Context, m *memberState) {
	want := m.want.Member
	number := want.Assignment.SizeNumber
	resizer, ok := m.driver.(driver.Resizer)
	if !ok {
		m.unsized, m.unsizedFor = fmt.Sprintf("members of stack %q can't be resized", m.driver.Stack()), number
		return
	}
	call := a.ifKnown(m, func(ctx context.Context) error {
		failpoint.Hit("agent.before-resize")
		return resizer.Resize(ctx, want)
	})
	ended := a.counting(ctx, m, func(m *memberState) { m.size, m.unsized = number, "" })
	a.perform(ctx, m, task{"resize", ctx, resizeDeadline, a.slots, call}, func(err error) {
		if errors.Is(err, driver.ErrNeedsReboot) {
			m.unsized, m.unsizedFor = err.Error(), number
			return
		}
		ended(err)
	})
}
