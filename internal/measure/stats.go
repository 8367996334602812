package measure

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"
)

// Estimate is a statistic with a confidence interval. Without an interval (too few pairs) Low is 0 and High +Inf in memory and
// both are absent in JSON.
type Estimate struct {
	Value float64
	Low   float64
	High  float64
	// Level is the level that was asked for; Coverage what the method guarantees, never less than Level; 0 without interval.
	Level    float64
	Coverage float64
}

// Bounded tells whether the estimate has an interval.
func (e Estimate) Bounded() bool { return e.Coverage > 0 }

// Verdict is what an interval says about a bound.
type Verdict string

// The verdicts. The interval decides, never the point estimate.
const (
	Above     Verdict = "above"
	Below     Verdict = "below"
	Undecided Verdict = "undecided"
)

// Against tells whether the whole interval lies above the bound or below it; "undecided" when it holds the bound or when
// there is no interval.
func (e Estimate) Against(bound float64) Verdict {
	switch {
	case !e.Bounded():
		return Undecided
	case e.Low > bound:
		return Above
	case e.High < bound:
		return Below
	default:
		return Undecided
	}
}

// Median returns the middle value, or the mean of the two middle values; NaN for no values.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

// Quantile returns the q-quantile by linear interpolation between order statistics (definition 7 of Hyndman and Fan, "Sample
// Quantiles in Statistical Packages", The American Statistician 50(4), 1996, the default of R and NumPy); NaN for no values.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	i := int(math.Floor(at))
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// MedianInterval estimates the median of the distribution the values come from. The interval lies between order statistics
// [x(k), x(n+1-k)] and inverts the sign test: its coverage is 1 - 2*P(Binomial(n, 1/2) < k), exactly, for any continuous
// distribution, so neither outliers nor skew harm it (Conover, "Practical Nonparametric Statistics", 3rd ed. 1999, section
// 3.2; Le Boudec, "Performance Evaluation of Computer and Communication Systems", 2010, theorem 2.1). k is the largest whose
// coverage is at least level. At 95% it takes 6 values for [min, max] to be enough (96.9%); fewer give no interval, which is
// why a comparison is made of 6 pairs or more. Ratios are paired by design, so the values are the ratios of pairs.
func MedianInterval(values []float64, level float64) Estimate {
	n := len(values)
	e := Estimate{Value: Median(values), High: math.Inf(1), Level: level}
	sorted := slices.Sorted(slices.Values(values))
	// tail is P(Binomial(n, 1/2) < k), summed as k grows.
	tail, probability := 0.0, math.Pow(0.5, float64(n))
	for k := 1; 2*k <= n; k++ {
		tail += probability
		probability *= float64(n-k+1) / float64(k)
		coverage := 1 - 2*tail
		if coverage < level {
			break
		}
		e.Low, e.High, e.Coverage = sorted[k-1], sorted[n-k], coverage
	}
	return e
}

// GeoMeanInterval estimates the geometric mean of positive ratios by Student's t on their logarithms: exp(m +- t(n-1) s/sqrt(n)).
// Ratios are averaged by the geometric mean because the answer must not depend on which side is the numerator (Fleming and
// Wallace, "How not to lie with statistics", CACM 29(3), 1986); the interval is the paired t of Jain, "The Art of Computer
// Systems Performance Analysis", 1991, section 13.4.1, on logarithms. It is exact when the logarithms are normal and a good
// approximation when they are symmetric; it is narrower than MedianInterval and less robust. It needs 2 values or more.
func GeoMeanInterval(ratios []float64, level float64) (Estimate, error) {
	n := float64(len(ratios))
	e := Estimate{Value: math.NaN(), High: math.Inf(1), Level: level}
	sum := 0.0
	for _, r := range ratios {
		if !(r > 0) || math.IsInf(r, 1) {
			return e, fmt.Errorf("a geometric mean needs positive ratios, got %v", r)
		}
		sum += math.Log(r)
	}
	if n == 0 {
		return e, nil
	}
	mean := sum / n
	e.Value = math.Exp(mean)
	if n < 2 {
		return e, nil
	}
	squares := 0.0
	for _, r := range ratios {
		d := math.Log(r) - mean
		squares += d * d
	}
	t := distuv.StudentsT{Mu: 0, Sigma: 1, Nu: n - 1}.Quantile(1 - (1-level)/2)
	half := t * math.Sqrt(squares/(n-1)) / math.Sqrt(n)
	e.Low, e.High, e.Coverage = math.Exp(mean-half), math.Exp(mean+half), level
	return e, nil
}
