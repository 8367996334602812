package cli

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

const (
	// transferStep is how much passes between two looks at the clock.
	transferStep = 256 << 10
	// transferNews is how often a terminal shows the progress of a transfer, and transferNewsInLines how often lines do without a terminal.
	transferNews        = 500 * time.Millisecond
	transferNewsInLines = 10 * time.Second
)

// transfer is a stream of bytes that shows its progress: how many bytes, of how many where that is known, and how many a second since the last line.
type transfer struct {
	p        *progress
	now      func() time.Time
	verb     string
	total    int64 // 0: not known
	every    time.Duration
	done     atomic.Int64
	toldAt   time.Time
	toldDone int64
}

func (a *app) transfer(p *progress, verb string, total int64) *transfer {
	t := &transfer{p: p, now: a.Now, verb: verb, total: total, every: transferNewsInLines, toldAt: a.Now()}
	if p.terminal {
		t.every = transferNews
	}
	return t
}

// copy passes bytes on until from ends. It returns how many have passed.
func (t *transfer) copy(to io.Writer, from io.Reader) (int64, error) {
	for {
		n, err := io.CopyN(to, from, transferStep)
		done := t.done.Add(n)
		if errors.Is(err, io.EOF) {
			return done, nil
		}
		if err != nil {
			return done, err
		}
		if now := t.now(); now.Sub(t.toldAt) >= t.every {
			t.p.say(t.line(done, now))
			t.toldAt, t.toldDone = now, done
		}
	}
}

func (t *transfer) line(done int64, now time.Time) string {
	text := t.verb + " " + volumeBytes(api.Bytes(done))
	if t.total > 0 {
		text += fmt.Sprintf(" of %s (%d%%)", volumeBytes(api.Bytes(t.total)), done*100/t.total)
	}
	if span := now.Sub(t.toldAt).Seconds(); span > 0 {
		text += ", " + volumeBytes(api.Bytes(float64(done-t.toldDone)/span)) + "/s"
	}
	return text
}
