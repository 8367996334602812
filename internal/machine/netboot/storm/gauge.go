package storm

// Bounds of the number of transfers at once. The least fills a link with the buffers Linux gives a connection; the most is for links much
// faster than the machines' own.
const (
	minLimit   = 8
	startLimit = 16
	maxLimit   = 256
)

const (
	// tooMuchLoss is the share of segments sent again above which the queue is overrun; TCP alone causes far less.
	tooMuchLoss = 0.05
	// worthIt is by how much the link must carry more for one more step up.
	worthIt = 1.03
	// ticksPerStep lets a change show before it is judged.
	ticksPerStep = 4
)

// gauge finds how many transfers at once a link bears: additive increase while more bring more, multiplicative decrease at loss.
type gauge struct {
	limit     int
	carried   float64 // bytes per second, smoothed
	reference float64 // carried when the limit was last judged good
	ticks     int
}

// adjust takes one measurement: bytes per second, the share of segments sent again, and whether any transfer waits.
func (g *gauge) adjust(carried, loss float64, waiting bool) {
	g.carried = 0.7*g.carried + 0.3*carried
	if loss > tooMuchLoss {
		g.limit = max(minLimit, g.limit*3/4)
		g.reference, g.ticks = 0, 0
		return
	}
	if !waiting {
		g.ticks = 0
		return
	}
	if g.ticks++; g.ticks < ticksPerStep {
		return
	}
	g.ticks = 0
	if g.carried > g.reference*worthIt {
		g.reference = g.carried
		g.limit = min(maxLimit, g.limit+max(1, g.limit/4))
		return
	}
	g.limit = max(minLimit, g.limit-1)
	g.reference *= 0.99 // the link may have changed: in time a step up is tried again
}
