package api

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Rate is a number of bits per second, as tc(8) writes it: "200Mbit", "1.5Gbit".
type Rate int64

// The bounds of a rate.
const (
	MinRate Rate = 1e6
	MaxRate Rate = 1e12
)

// RatePattern is the form of a rate, also for JSON Schema.
const RatePattern = `^[0-9]+(\.[0-9]+)?(Mbit|Gbit|Tbit)$`

var (
	rateText  = regexp.MustCompile(RatePattern)
	rateUnits = []struct {
		suffix string
		bits   float64
	}{{"Tbit", 1e12}, {"Gbit", 1e9}, {"Mbit", 1e6}}
)

// ParseRate reads a rate with its unit, from MinRate to MaxRate.
func ParseRate(s string) (Rate, error) {
	if !rateText.MatchString(s) {
		return 0, fmt.Errorf("%s is not a rate in bits per second; write one such as 200Mbit or 1.5Gbit", quoted(s))
	}
	for _, u := range rateUnits {
		number, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if r := n * u.bits; err == nil && r >= float64(MinRate) && r <= float64(MaxRate) {
			return Rate(math.Round(r)), nil
		}
	}
	return 0, fmt.Errorf("%s is out of range; rates are from %v to %v", quoted(s), MinRate, MaxRate)
}

// String writes the rate in the largest unit that needs no fraction, or in Mbit.
func (r Rate) String() string {
	for _, u := range rateUnits {
		if n := float64(r) / u.bits; int64(r)%int64(u.bits) == 0 || u.bits == 1e6 {
			return strconv.FormatFloat(n, 'f', -1, 64) + u.suffix
		}
	}
	return ""
}

// MarshalJSON writes the rate as text.
func (r Rate) MarshalJSON() ([]byte, error) { return json.Marshal(r.String()) }

// UnmarshalJSON reads the rate from text.
func (r *Rate) UnmarshalJSON(data []byte) (err error) {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%s is not a rate in bits per second; write one such as \"200Mbit\"", quoted(string(data)))
	}
	*r, err = ParseRate(s)
	return err
}

// DSCP is a differentiated services code point (RFC 2474) as a decimal number, "" for none.
type DSCP string

// maxDSCP is the highest code point: the field has 6 bits.
const maxDSCP = 63

// dscpNames are the names of code points besides CS0 to CS7 (RFC 2474) and AF11 to AF43 (RFC 2597), which are computed.
var dscpNames = map[string]int{"EF": 46, "VOICE-ADMIT": 44, "LE": 1} // RFC 3246, RFC 5865, RFC 8622

// ParseDSCP reads a code point: a number from 0 to 63, or a name such as EF, AF11 or CS1.
func ParseDSCP(s string) (DSCP, error) {
	n, err := strconv.Atoi(s)
	name := strings.ToUpper(s)
	if named, ok := dscpNames[name]; ok {
		n, err = named, nil
	}
	if class, ok := strings.CutPrefix(name, "CS"); ok && len(class) == 1 && class[0] >= '0' && class[0] <= '7' {
		n, err = 8*int(class[0]-'0'), nil
	}
	if class, ok := strings.CutPrefix(name, "AF"); ok && len(class) == 2 && class[0] >= '1' && class[0] <= '4' && class[1] >= '1' && class[1] <= '3' {
		n, err = 8*int(class[0]-'0')+2*int(class[1]-'0'), nil
	}
	if err != nil || n < 0 || n > maxDSCP {
		return "", fmt.Errorf("%s is not a DSCP; write a number from 0 to %d, or a name such as EF, AF11 or CS1", quoted(s), maxDSCP)
	}
	return DSCP(strconv.Itoa(n)), nil
}

// Number returns the code point, 0 for none.
func (d DSCP) Number() int {
	n, _ := strconv.Atoi(string(d))
	return n
}

// MarshalJSON writes the code point as a number.
func (d DSCP) MarshalJSON() ([]byte, error) { return json.Marshal(d.Number()) }

// UnmarshalJSON reads a number or a name.
func (d *DSCP) UnmarshalJSON(data []byte) (err error) {
	var s string
	if json.Unmarshal(data, &s) != nil {
		s = string(data)
	}
	*d, err = ParseDSCP(s)
	return err
}

// Quality is the quality of service of a port. The zero value leaves the port alone.
type Quality struct {
	// MaxRate bounds what the port sends and what it receives, each for itself. 0: no limit.
	MaxRate Rate `json:"max_rate,omitempty"`
	// MinRate is the share of what the port sends while ports with rates of one node compete. 0: none.
	MinRate Rate `json:"min_rate,omitempty"`
	// DSCP marks all packets from the port, in place of other marks, also outside of tunnels between nodes. "": marks stay as they are, and none
	// are outside of tunnels.
	DSCP DSCP `json:"dscp,omitempty"`
}

// QualityText writes the quality on one line, "" for none: 200Mbit-1Gbit dscp 10.
func (q Quality) QualityText() string {
	var parts []string
	if rates := q.RatesText(); rates != "" {
		parts = append(parts, rates)
	}
	if q.DSCP != "" {
		parts = append(parts, "dscp "+string(q.DSCP))
	}
	return strings.Join(parts, " ")
}

// RatesText writes the rates as ParseRates reads them, "" for none.
func (q Quality) RatesText() string {
	switch {
	case q.MinRate > 0 && q.MaxRate > 0:
		return q.MinRate.String() + "-" + q.MaxRate.String()
	case q.MinRate > 0:
		return q.MinRate.String() + "-"
	case q.MaxRate > 0:
		return q.MaxRate.String()
	}
	return ""
}

// ParseRates reads rates: MIN-MAX, MAX or MIN-.
func ParseRates(s string) (minimum, maximum Rate, err error) {
	low, high, both := strings.Cut(s, "-")
	if !both {
		maximum, err = ParseRate(s)
		return 0, maximum, err
	}
	if minimum, err = ParseRate(low); err != nil || high == "" {
		return minimum, 0, err
	}
	maximum, err = ParseRate(high)
	return minimum, maximum, err
}
