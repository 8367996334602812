package power

import "time"

// Backoff is how long to wait between tries: twice as long after each, within bounds, half of it by chance, so that a thousand BMCs
// behind one switch that failed are not all asked again at the same moment.
type Backoff struct{ First, Longest time.Duration }

// Delay is the wait after a number of tries that failed, from 1 on. jitter is a number in [0, 1).
func (b Backoff) Delay(failed int, jitter float64) time.Duration {
	d := b.First
	for range failed - 1 {
		if d >= b.Longest {
			break
		}
		d *= 2
	}
	d = min(d, b.Longest)
	return d/2 + time.Duration(jitter*float64(d/2))
}
