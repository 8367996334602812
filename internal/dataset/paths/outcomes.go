package paths

import (
	"cmp"
	"math"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// newestOutcomes are kept of each dataset.
const newestOutcomes = 32

// Add returns outcomes with one more, and the sums of all.
func Add(all api.DataOutcomes, one api.DataOutcome) api.DataOutcomes {
	one.Ratio = one.Seconds / one.PredictedSeconds
	if !(one.Ratio > 0) || math.IsInf(one.Ratio, 0) { // nothing was predicted, or it took no time
		return all
	}
	newest := append(slices.Clone(all.Newest), one)
	all.Newest = newest[max(0, len(newest)-newestOutcomes):]
	all.Errors = slices.Clone(all.Errors)
	at, known := slices.BinarySearchFunc(all.Errors, one.Choice, func(e api.DataErrors, choice string) int { return cmp.Compare(e.Choice, choice) })
	if !known {
		all.Errors = slices.Insert(all.Errors, at, api.DataErrors{Choice: one.Choice})
	}
	e := &all.Errors[at]
	e.Count++
	e.PredictedSeconds += one.PredictedSeconds
	e.Seconds += one.Seconds
	var ratios []float64
	for i := range all.Newest {
		if all.Newest[i].Choice == one.Choice {
			ratios = append(ratios, all.Newest[i].Ratio)
		}
	}
	e.MedianRatio = median(ratios)
	return all
}

// median is the middle of some numbers, which it sorts; 0 of none.
func median(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return (of[(len(of)-1)/2] + of[len(of)/2]) / 2
}
