package api

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Bytes is a number of bytes that people write as a quantity: "512MiB", "2GiB", "1.5GiB", "1000MB" or a plain number.
type Bytes int64

// Units in the order they are tried when a quantity is written: binary first (IEC 80000-13), decimal only when read.
var byteUnits = []struct {
	suffix string
	bytes  int64
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"kB", 1e3},
	{"B", 1},
}

// BytesPattern is the form of a quantity, also for JSON Schema.
const BytesPattern = `^ *[0-9]+(\.[0-9]+)? *([KMGT]iB|[kMGT]?B)? *$`

var quantity = regexp.MustCompile(BytesPattern)

// ParseBytes reads a quantity: a number with a unit, or a whole number of bytes.
func ParseBytes(s string) (Bytes, error) {
	if !quantity.MatchString(s) {
		return 0, fmt.Errorf("%s is not a size; write one such as 512MiB or 2GiB", quoted(s))
	}
	text, unit := strings.Trim(s, " "), int64(0)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			text, unit = strings.TrimRight(rest, " "), u.bytes
			break
		}
	}
	if unit == 0 {
		unit = 1
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n <= maxBytes/unit {
		return Bytes(n * unit), nil
	}
	if unit == 1 && strings.Contains(text, ".") {
		return 0, fmt.Errorf("%s is not a whole number of bytes; add a unit, such as %sGiB", quoted(s), text)
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f*float64(unit) >= maxBytes {
		return 0, fmt.Errorf("%s is too large; write a size below 4194304TiB, such as 512MiB or 2GiB", quoted(s))
	}
	return Bytes(f * float64(unit)), nil
}

// maxBytes is 2^62, so that sums of two sizes don't overflow.
const maxBytes = 1 << 62

// quoted is a text for an error, cut when it is long.
func quoted(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strconv.Quote(s)
}

// String writes the largest binary unit that divides the number exactly.
func (b Bytes) String() string {
	if b == 0 {
		return "0"
	}
	for _, u := range byteUnits[:4] {
		if int64(b)%u.bytes == 0 {
			return strconv.FormatInt(int64(b)/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalJSON writes the quantity as a string.
func (b Bytes) MarshalJSON() ([]byte, error) { return json.Marshal(b.String()) }

// UnmarshalJSON reads a quantity string or a plain number of bytes.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		s = string(data)
	}
	n, err := ParseBytes(s)
	if err != nil {
		return err
	}
	*b = n
	return nil
}
