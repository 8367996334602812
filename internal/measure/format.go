package measure

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// number writes a value with three significant digits and no exponent: 0.0123, 5.37, 123, 45600.
func number(v float64) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Sprintf("%.3g", v)
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	if digits < 0 {
		scale := math.Pow(10, float64(-digits))
		return strconv.FormatFloat(math.Round(v/scale)*scale, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

// size writes a value of the axis: its label if it has one, bytes in binary units, other things as they are.
func (a Axis) size(x float64) string {
	if i := int(x) - 1; i >= 0 && i < len(a.Labels) {
		return a.Labels[i]
	}
	if !a.Bytes {
		unit := a.Unit
		if x == 1 {
			unit = strings.TrimSuffix(unit, "s")
		}
		return strings.TrimSpace(strconv.FormatFloat(x, 'f', -1, 64) + " " + unit)
	}
	for _, u := range []struct {
		name string
		of   float64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if x >= u.of {
			return strconv.FormatFloat(x/u.of, 'f', -1, 64) + " " + u.name
		}
	}
	return strconv.FormatFloat(x, 'f', -1, 64) + " B"
}

// interval writes "[0.981, 0.994]", or what is missing for one.
func (e Estimate) interval() string {
	if !e.Bounded() {
		return "no interval: too few pairs"
	}
	return fmt.Sprintf("[%.3f, %.3f]", e.Low, e.High)
}
