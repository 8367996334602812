package cli

import (
	"context"
	"time"

	"github.com/nearmetal/nearmetal/api/client"
)

// lookPause is the shortest time from one look at the server to the next: many changes in a row become one look.
const lookPause = 200 * time.Millisecond

// news reports that something may have changed of what a command waits for. What it is has to be requested: news says when to look, not what
// there is to see.
type news struct {
	// fresh gets a value when there is something to look at: at first, after changes, and when the connection is back.
	fresh chan struct{}
	// failed gets why there will be no more news.
	failed chan error
	looked time.Time
}

// watchNews watches objects until ctx ends. Whatever changes after a look is news, also if it changes before the watch begins.
func watchNews(ctx context.Context, c *client.Client, of client.Selection) *news {
	n := &news{fresh: make(chan struct{}, 1), failed: make(chan error, 1), looked: time.Now()}
	go func() {
		for _, err := range c.Changes(ctx, of) {
			if err != nil {
				n.failed <- err
				return
			}
			select {
			case n.fresh <- struct{}{}:
			default: // the next look sees this change, too
			}
		}
	}()
	return n
}

// retell is how often a wait shows again what it shows of the time that goes by.
const retell = 500 * time.Millisecond

// wait waits until there is something to look at, and calls meanwhile, unless it is nil, now and then. It returns an error when ctx ends, or
// there will be nothing more to wait for.
func (n *news) wait(ctx context.Context, meanwhile func()) error {
	var again <-chan time.Time
	if meanwhile != nil {
		ticker := time.NewTicker(retell)
		defer ticker.Stop()
		again = ticker.C
	}
	for waiting := true; waiting; {
		select {
		case <-n.fresh:
			waiting = false
		case <-again:
			meanwhile()
		case err := <-n.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if early := lookPause - time.Since(n.looked); early > 0 {
		pause := time.NewTimer(early)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	n.looked = time.Now()
	return nil
}
