package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// span makes a time span the value of a flag: "90m", "4h", "2d".
type span struct{ value *api.Duration }

// String is empty for none, so that help shows no default.
func (s span) String() string {
	if s.value == nil || *s.value == 0 {
		return ""
	}
	return s.value.String()
}

// Set reads a span.
func (s span) Set(text string) error {
	d, err := api.ParseDuration(text)
	if err == nil {
		*s.value = d
	}
	return err
}

// Type names the kind of value in help.
func (s span) Type() string { return "span" }

// moment reads a time as people give it: RFC 3339, a date or date and time (local), or how long ago ("24h", "7d").
func moment(text string, now time.Time) (time.Time, error) {
	text = strings.TrimSpace(text)
	if text == "now" {
		return now, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	for _, layout := range []string{time.DateOnly, "2006-01-02 15:04", "2006-01-02T15:04", time.DateTime, "2006-01-02T15:04:05"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	if ago, err := api.ParseDuration(text); err == nil {
		return now.Add(-ago.Std()), nil
	}
	return time.Time{}, fmt.Errorf("%q is not a time; write 2026-01-31, 2026-01-31T14:00:00Z, or how long ago it was, like 24h or 7d", text)
}

// bitRate makes a rate the value of a flag: "200Mbit", "25Gbit".
type bitRate struct{ value *api.Rate }

// String is empty for none, so that help shows no default.
func (r bitRate) String() string {
	if r.value == nil || *r.value == 0 {
		return ""
	}
	return r.value.String()
}

// Set reads a rate.
func (r bitRate) Set(text string) (err error) {
	*r.value, err = api.ParseRate(text)
	return err
}

// Type names the kind of value in help.
func (r bitRate) Type() string { return "rate" }
