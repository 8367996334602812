package manifest

import (
	"reflect"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// CheckCondition checks the condition of a cluster's network. The error is an *Invalid.
func CheckCondition(c api.NetworkCondition, src *Source) error {
	n := normalizer{src: src}
	if c.Delay > api.MaxConditionDelay {
		n.add("delay", c.Delay.String(), "can be at most %v: a longer one can't be measured in time", api.MaxConditionDelay)
	}
	if c.Jitter > c.Delay {
		n.add("jitter", c.Jitter.String(), "can be at most the delay, %v", c.Delay)
	}
	for _, p := range []struct {
		path  string
		value float64
	}{{"loss", c.Loss}, {"duplicate", c.Duplicate}, {"corrupt", c.Corrupt}, {"reorder", c.Reorder}} {
		if !(p.value >= 0 && p.value <= 100) {
			n.add(p.path, percent(p.value), "is no percentage; write a number from 0 to 100")
		}
	}
	if sum := c.Loss + c.Corrupt; sum > api.MaxConditionLoss && c.Loss <= 100 && c.Corrupt <= 100 {
		n.add("loss", percent(c.Loss), "is with corrupt %v%%, and may be at most %v%%: where fewer packets come, a condition can't be measured", sum, api.MaxConditionLoss)
	}
	if c.Reorder > 0 && c.Delay == 0 {
		n.add("reorder", percent(c.Reorder), "needs a delay: packets overtake those that wait")
	}
	if c.Seed < 0 {
		n.add("seed", strconv.FormatInt(c.Seed, 10), "can't be negative")
	}
	if c == (api.NetworkCondition{}) || c == (api.NetworkCondition{Seed: c.Seed}) {
		n.add("delay", "", "or another condition is needed; to take a condition away, clear it")
	}
	return n.err()
}

// float reads a number, which may have a fraction.
func (d *decoder) float(path string, v value, into reflect.Value) {
	if !d.want(path, v, kindNumber) {
		return
	}
	n, err := strconv.ParseFloat(v.text, 64)
	if err != nil {
		d.problem(path, v, "is out of range")
		return
	}
	into.SetFloat(n)
}

func percent(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }
