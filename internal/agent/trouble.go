package agent

import "time"

// The pauses after which an error that stays the same is logged again; they double from one to the other.
const (
	troubleFirst = 10 * time.Second
	troubleLast  = 10 * time.Minute
)

// trouble decides which failed attempts to reach the server are logged: a new error at once, the same one again with growing pauses. An
// agent that the server refuses for days must not look healthy at the end of its log, nor fill it.
type trouble struct {
	said     string
	next     time.Time
	pause    time.Duration
	attempts int
}

// worthSaying counts an error. It returns how many attempts have failed with it since it was logged last, or 0 when it is not to be
// logged now.
func (t *trouble) worthSaying(err error, now time.Time) int {
	if text := err.Error(); text != t.said {
		*t = trouble{said: text, pause: troubleFirst}
	}
	t.attempts++
	if now.Before(t.next) {
		return 0
	}
	attempts := t.attempts
	t.next, t.attempts = now.Add(t.pause), 0
	t.pause = min(2*t.pause, troubleLast)
	return attempts
}

// reset forgets what was logged, since the server has taken the agent meanwhile.
func (t *trouble) reset() { *t = trouble{} }

// joined puts two reasons together; either may be empty.
func joined(a, b string) string {
	if a != "" && b != "" {
		return a + "; " + b
	}
	return a + b
}
