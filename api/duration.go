package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Duration is a time span that people write as a quantity: "90s", "30m", "4h", "2d", "1d12h". As JSON it is such a string; a plain number
// is refused, since its unit would be a guess.
type Duration time.Duration

const day = 24 * time.Hour

// DurationPattern is the form of a time span, also for JSON Schema.
const DurationPattern = `^(0|([0-9]+(\.[0-9]+)?(d|h|m|s|ms|us|µs|ns))+)$`

var timeSpan = regexp.MustCompile(DurationPattern)

// maxDuration is 100 years.
const maxDuration = 36500 * day

// ParseDuration reads a span: days ("2d"), then what time.ParseDuration takes. Negative spans are refused.
func ParseDuration(s string) (Duration, error) {
	malformed := fmt.Errorf("%s is not a time span; write one such as 90s, 30m, 4h or 2d", quoted(s))
	if !timeSpan.MatchString(s) {
		return 0, malformed
	}
	tooLong := fmt.Errorf("%s is too long; the longest time span is %s", quoted(s), Duration(maxDuration))
	text, total := s, time.Duration(0)
	if days, rest, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		if errors.Is(err, strconv.ErrRange) || n > maxDuration.Hours()/24 {
			return 0, tooLong
		}
		if err != nil || strings.Contains(rest, "d") { // days after hours, or twice
			return 0, malformed
		}
		total, text = time.Duration(n*float64(day)), rest
	}
	if text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d > maxDuration || total+d > maxDuration { // a span of the right form is refused for its length only
			return 0, tooLong
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
		return fmt.Errorf("%s is not a time span; write one such as \"90s\", \"30m\", \"4h\" or \"2d\"", data)
	}
	n, err := ParseDuration(s)
	if err != nil {
		return err
	}
	*d = n
	return nil
}
