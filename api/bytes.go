package api

import (
	"encoding/json"
	"fmt"
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

// ParseBytes reads a quantity. It refuses a missing or unknown unit other than a plain number of bytes, and negatives.
func ParseBytes(s string) (Bytes, error) {
	text, unit := strings.TrimSpace(s), int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(text, u.suffix); ok {
			text, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		if n < 0 || n > (1<<62)/unit {
			return 0, fmt.Errorf("%q is out of range; write a size like 512MiB or 2GiB", s)
		}
		return Bytes(n * unit), nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= 0 && f*float64(unit) < 1<<62) {
		return 0, fmt.Errorf("%q is not a size; write one like 512MiB or 2GiB", s)
	}
	return Bytes(f * float64(unit)), nil
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
