package agent

import (
	"context"
	"errors"
	"time"

	"github.com/nearmetal/nearmetal/internal/tracing"
)

// task is a call of a driver for a member.
type task struct {
	what string
	// life ends it early.
	life     context.Context
	deadline time.Duration
	// slots bounds how many such calls there are at once; nil: nothing does.
	slots chan struct{}
	call  func(context.Context) error
}

// inTurn makes the call once there is a slot for it.
func (t task) inTurn(ctx context.Context) error {
	if t.slots != nil {
		select {
		case t.slots <- struct{}{}:
			defer func() { <-t.slots }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	bounded, cancel := context.WithTimeout(ctx, t.deadline)
	defer cancel()
	bounded, end := tracing.Stage(bounded, t.what)
	err := t.call(bounded)
	end(err)
	if err != nil && errors.Is(bounded.Err(), context.DeadlineExceeded) {
		err = errors.Join(err, errors.New("the operation took longer than "+t.deadline.String()))
	}
	return err
}
