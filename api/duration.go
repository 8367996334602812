package api

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Duration is a time span that people write as a quantity: "90s", "30m", "4h", "2d", "1d12h". As JSON it is such a string; a plain number
// is refused, since its unit would be a guess.
type Duration time.Duration

const day = 24 * time.Hour

// ParseDuration reads a span: days ("2d"), then what time.ParseDuration takes. Negative spans are refused.
func ParseDuration(s string) (Duration, error) {
	text := strings.TrimSpace(s)
	var total time.Duration
	if days, rest, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil || !(n >= 0 && n <= 36500) {
			return 0, fmt.Errorf("%q is not a time span; write one like 90s, 30m, 4h or 2d", s)
		}
		total, text = time.Duration(n*float64(day)), rest
	}
	if text != "" || total == 0 {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 || d > 36500*day {
			return 0, fmt.Errorf("%q is not a time span; write one like 90s, 30m, 4h or 2d", s)
		}
		total += d
	}
	return Duration(total), nil
}

// Std is the span as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes days, then hours and below without zero parts: "1d12h", "4h", "1m30s".
func (d Duration) String() string {
	if d == 0 {
		return "0s"
	}
	text, rest := "", time.Duration(d)
	if n := rest / day; n > 0 {
		text, rest = strconv.FormatInt(int64(n), 10)+"d", rest%day
	}
	for _, u := range []struct {
		suffix string
		length time.Duration
	}{{"h", time.Hour}, {"m", time.Minute}} {
		if n := rest / u.length; n > 0 {
			text, rest = text+strconv.FormatInt(int64(n), 10)+u.suffix, rest%u.length
		}
	}
	if rest > 0 {
		text += rest.String()
	}
	return text
}

// MarshalJSON writes the span as a string.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads a span string.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%s is not a time span; write one like \"90s\", \"30m\", \"4h\" or \"2d\"", data)
	}
	n, err := ParseDuration(s)
	if err != nil {
		return err
	}
	*d = n
	return nil
}
