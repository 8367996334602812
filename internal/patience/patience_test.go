package patience_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/internal/patience"
)

func TestAnAnswerIsReturned(t *testing.T) {
	var q patience.Questions
	broken := errors.New("broken")
	for range 2 {
		if got, err := patience.Ask(t.Context(), &q, "a", func() (int, error) { return 7, nil }, nil); got != 7 || err != nil {
			t.Errorf("got %d, %v", got, err)
		}
		if _, err := patience.Ask(t.Context(), &q, "a", func() (int, error) { return 0, broken }, nil); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	}
}

// TestWhatDoesNotAnswerHoldsOneThread asks again and again, and once it answers the late answer is taken.
func TestWhatDoesNotAnswerHoldsOneThread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q patience.Questions
		speak, asked, late := make(chan struct{}), 0, []int{}
		ask := func(ctx context.Context) (int, error) {
			return patience.Ask(ctx, &q, "a", func() (int, error) {
				asked++
				<-speak
				return asked, nil
			}, func(n int) { late = append(late, n) })
		}
		begun := time.Now()
		ended, end := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, end)
		if _, err := ask(ended); !errors.Is(err, patience.ErrSilent) || !errors.Is(err, context.Canceled) || time.Since(begun) != time.Second {
			t.Errorf("with a context that ends: %v after %v", err, time.Since(begun))
		}
		begun = time.Now()
		if _, err := ask(t.Context()); !errors.Is(err, patience.ErrSilent) || time.Since(begun) != patience.Limit || asked != 1 {
			t.Errorf("asked %d times: %v after %v, want %v", asked, err, time.Since(begun), patience.Limit)
		}
		if got, err := patience.Ask(t.Context(), &q, "b", func() (string, error) { return "b", nil }, nil); got != "b" || err != nil {
			t.Errorf("another subject: %q, %v", got, err)
		}
		close(speak)
		if got, err := ask(t.Context()); got != 2 || err != nil || len(late) != 1 || late[0] != 1 {
			t.Errorf("once it answers: %d, %v; late %v", got, err, late)
		}
	})
}
