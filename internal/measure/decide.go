package measure

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// Decision is what an interval says about a highlight's goal.
type Decision struct {
	Metric string  `json:"metric"`
	Side   string  `json:"side"`
	X      float64 `json:"x"`
	Goal   float64 `json:"goal"`
	// Verdict is Efficiency.Against(Goal).
	Verdict Verdict `json:"verdict"`
	// Unlike is true when the sides were not like enough to be judged (Analysis.Unlike); the verdict is then Undecided.
	Unlike bool `json:"unlike,omitempty"`
	// PairsToDecide is about how many pairs would decide it; 0 when it is decided, or when no number can be named.
	PairsToDecide int `json:"pairs_to_decide,omitempty"`
}

// decide judges the highlights that have a goal.
func (a Analysis) decide(highlights []Highlight) []Decision {
	var out []Decision
	for _, h := range highlights {
		c, ok := a.Find(h.Metric, h.Side, h.X)
		if !ok || h.Goal == 0 {
			continue
		}
		d := Decision{Metric: h.Metric, Side: h.Side, X: h.X, Goal: h.Goal, Verdict: c.Efficiency.Against(h.Goal)}
		switch {
		case a.Unlike != "":
			d.Verdict, d.Unlike = Undecided, true
		case d.Verdict == Undecided:
			d.PairsToDecide, _ = PairsToDecide(c.Ratios, h.Goal, a.Level)
		}
		out = append(out, d)
	}
	return out
}

// decision returns what was decided about a highlight.
func (a Analysis) decision(h Highlight) Decision {
	for _, d := range a.Decisions {
		if d.Metric == h.Metric && d.Side == h.Side && d.X == h.X && d.Goal == h.Goal {
			return d
		}
	}
	return Decision{Goal: h.Goal, Verdict: Undecided}
}

// GoalText says what ratios of pairs say about a goal, at DefaultLevel, for those who have no Experiment.
func GoalText(ratios []float64, goal float64) string {
	d := Decision{Goal: goal, Verdict: MedianInterval(ratios, DefaultLevel).Against(goal)}
	if d.Verdict == Undecided {
		d.PairsToDecide, _ = PairsToDecide(ratios, goal, DefaultLevel)
	}
	return d.text()
}

// text is what a report says of a decision.
func (d Decision) text() string {
	switch {
	case d.Unlike:
		return fmt.Sprintf("goal %.3g not judged: the sides are not alike", d.Goal)
	case d.Verdict == Above:
		return fmt.Sprintf("goal %.3g reached", d.Goal)
	case d.Verdict == Below:
		return fmt.Sprintf("goal %.3g not reached", d.Goal)
	case d.PairsToDecide > 0:
		return fmt.Sprintf("goal %.3g undecided: about %d pairs would decide it", d.Goal, d.PairsToDecide)
	default:
		return fmt.Sprintf("goal %.3g undecided: too close, or too few pairs, to say how many would decide it", d.Goal)
	}
}

const (
	// decidingPower is how likely the number of pairs is to decide, if their median and spread are as those seen.
	decidingPower = 0.8
	// fewestForSpread is how many pairs it takes to say anything of their spread, mostPairs the largest number worth saying.
	fewestForSpread, mostPairs = 4, 10_000
)

// PairsToDecide estimates how many pairs would bring the interval of MedianInterval to one side of the bound, in four tries out of five. It
// reports false when the ratios can't tell: fewer than 4, one that is not positive, their median at the bound, or so near to it that more
// than 10,000 pairs would be needed.
//
// That interval inverts the sign test, whose sample size is n = (z(1-a/2) + z(power))^2 / (4 (p - 1/2)^2), p being the chance that a pair lies
// on the median's side of the bound (Noether, "Sample size determination for some common nonparametric tests", Journal of the American
// Statistical Association 82, 1987, section 2). Counting pairs gives p in coarse steps, so it is taken from their spread: p = Phi(d/s), where d
// is the distance of the median from the bound and s the spread of the pairs, both on a logarithmic scale. s is the interquartile range
// over 1.349, which is the standard deviation where logarithms are normal, and which outliers hardly touch.
//
// The median of few pairs is uncertain itself, and so is the answer: it says which order of magnitude to try.
func PairsToDecide(ratios []float64, bound, level float64) (int, bool) {
	if len(ratios) < fewestForSpread || !(bound > 0) {
		return 0, false
	}
	logs := make([]float64, len(ratios))
	for i, r := range ratios {
		if !(r > 0) || math.IsInf(r, 1) {
			return 0, false
		}
		logs[i] = math.Log(r / bound)
	}
	distance := math.Abs(Median(logs))
	if distance == 0 {
		return 0, false
	}
	standard := distuv.UnitNormal
	side := 1.0 // no spread: all pairs lie on one side
	if spread := (Quantile(logs, 0.75) - Quantile(logs, 0.25)) / 1.349; spread > 0 {
		side = standard.CDF(distance / spread)
	}
	z := standard.Quantile(1-(1-level)/2) + standard.Quantile(decidingPower)
	n := math.Ceil(z * z / (4 * (side - 0.5) * (side - 0.5)))
	if !(n <= mostPairs) {
		return 0, false
	}
	// These have not decided it, and fewer than it takes for an interval never do.
	return twoDigits(max(int(n), len(ratios)+1, fewestForInterval(level))), true
}

// fewestForInterval is how many pairs MedianInterval needs for any interval.
func fewestForInterval(level float64) int {
	return int(math.Ceil(1 - math.Log2(1-level)))
}

// twoDigits rounds up to two significant digits; more would claim too much.
func twoDigits(n int) int {
	step := 1
	for n/step >= 100 {
		step *= 10
	}
	return (n + step - 1) / step * step
}
