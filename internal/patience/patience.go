// Package patience asks file systems that may not answer, as one of another node does not while that node is away: the kernel then keeps the thread that
// asked, for as long as that lasts.
//
// Each question has a thread of its own, and there is at most one about a subject at a time, however often it is asked again. Start with Ask.
package patience

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Limit is how long an answer may take at most. A disk that is merely busy has answered by then.
const Limit = 10 * time.Second

// ErrSilent reports a file system that does not answer.
var ErrSilent = errors.New("it does not answer; see whether the node or the server that has its files is up")

// Questions are those that have no answer yet. The zero value has none. It is safe for concurrent use.
type Questions struct {
	mu   sync.Mutex
	open map[string]chan struct{} // by their subjects, closed with the answer
}

// Ask returns what f returns, or ErrSilent once ctx ends or Limit is over. Then f goes on, and late gets what it returns without an error. As long as an
// earlier question about the subject has no answer, f is not called.
func Ask[T any](ctx context.Context, q *Questions, subject string, f func() (T, error), late func(T)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	var nothing T
	done, err := q.begin(ctx, subject)
	if err != nil {
		return nothing, err
	}
	type answer struct {
		value T
		err   error
	}
	answers, gone := make(chan answer), make(chan struct{})
	go func() {
		defer done()
		value, err := f()
		select {
		case answers <- answer{value, err}:
		case <-gone:
			if err == nil && late != nil {
				late(value)
			}
		}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		close(gone)
		return nothing, silent(ctx)
	}
}

// begin waits until no question about a subject is open, and opens one. done closes it.
func (q *Questions) begin(ctx context.Context, subject string) (done func(), err error) {
	for {
		q.mu.Lock()
		before := q.open[subject]
		if before == nil {
			break
		}
		q.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, silent(ctx)
		}
	}
	defer q.mu.Unlock()
	if q.open == nil {
		q.open = map[string]chan struct{}{}
	}
	mine := make(chan struct{})
	q.open[subject] = mine
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.open, subject)
		close(mine)
	}, nil
}

func silent(ctx context.Context) error { return fmt.Errorf("%w (%w)", ErrSilent, ctx.Err()) }
