package api

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestRatesAreReadAndWrittenAsPeopleWriteThem(t *testing.T) {
	for text, want := range map[string]string{
		"200Mbit": "200Mbit", "1Gbit": "1Gbit", "1000Mbit": "1Gbit", "1.5Gbit": "1500Mbit", "2.3Gbit": "2300Mbit", "2.5Mbit": "2.5Mbit", "1Tbit": "1Tbit",
	} {
		r, err := ParseRate(text)
		if err != nil || r.String() != want {
			t.Errorf("%s: got %v, %v; want %s", text, r, err, want)
		}
		if again, err := ParseRate(r.String()); err != nil || again != r {
			t.Errorf("%s: written as %v, which is read as %v, %v", text, r, again, err)
		}
	}
	for text, want := range map[string]string{
		"": "is not a rate", "0Mbit": "out of range", "0.5Mbit": "out of range", "2Tbit": "out of range", "100": "is not a rate", "100MB": "is not a rate",
		"100mbit": "is not a rate", "-1Gbit": "is not a rate", "1 Gbit": "is not a rate", "1e3Mbit": "is not a rate", "99999999999999999999Gbit": "out of range",
	} {
		if r, err := ParseRate(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, %v; want an error that contains %q", text, r, err, want)
		}
	}
}

func TestRatesOfAPortAreReadAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]Quality{"1Gbit": {MaxRate: 1e9}, "200Mbit-1Gbit": {MinRate: 2e8, MaxRate: 1e9}, "200Mbit-": {MinRate: 2e8}} {
		low, high, err := ParseRates(text)
		if got := (Quality{MinRate: low, MaxRate: high}); err != nil || got != want || got.RatesText() != text {
			t.Errorf("%s: got %v to %v, %v, written as %q", text, low, high, err, got.RatesText())
		}
	}
	for _, text := range []string{"", "-", "-1Gbit", "1Gbit-2", "1Gbit-2Gbit-3Gbit", "fast"} {
		if low, high, err := ParseRates(text); err == nil {
			t.Errorf("%q: got %v to %v; want an error", text, low, high)
		}
	}
}

func TestCodePointsHaveNumbersAndNames(t *testing.T) {
	for text, want := range map[string]DSCP{"0": "0", "10": "10", "63": "63", "AF11": "10", "af43": "38", "EF": "46", "CS1": "8", "CS7": "56", "LE": "1"} {
		if d, err := ParseDSCP(text); err != nil || d != want {
			t.Errorf("%s: got %q, %v; want %q", text, d, err, want)
		}
	}
	for _, text := range []string{"", "64", "-1", "AF14", "AF51", "CS8", "EFF", "0x10", "1.5"} {
		if d, err := ParseDSCP(text); err == nil {
			t.Errorf("%q: got %q; want an error", text, d)
		}
	}
}

func TestAQualityOfServiceIsOmittedWhereItIsNotChosen(t *testing.T) {
	for want, network := range map[string]GroupNetwork{
		`"lab"`:                    {Name: "lab"},
		`{"name":"lab","dscp":0}`:  {Name: "lab", Quality: Quality{DSCP: "0"}},
		`{"name":"lab","dscp":46}`: {Name: "lab", Quality: Quality{DSCP: "46"}},
		`{"name":"lab","max_rate":"1Gbit","min_rate":"200Mbit"}`: {Name: "lab", Quality: Quality{MaxRate: 1e9, MinRate: 2e8}},
	} {
		got, err := json.Marshal(network)
		if err != nil || string(got) != want {
			t.Errorf("%+v: got %s, %v; want %s", network, got, err, want)
		}
		var again GroupNetwork
		if err := json.Unmarshal(got, &again); err != nil || again.String() != network.String() || again.Quality != network.Quality {
			t.Errorf("%s: read as %+v, %v", got, again, err)
		}
	}
}
