package measure

import (
	"bytes"
	"encoding/json"
	"math"
)

type estimateJSON struct {
	Value    *float64 `json:"value"`
	Low      *float64 `json:"low,omitempty"`
	High     *float64 `json:"high,omitempty"`
	Level    float64  `json:"level"`
	Coverage float64  `json:"coverage,omitempty"`
}

// MarshalJSON leaves the interval out when there is none, since JSON has no infinity.
func (e Estimate) MarshalJSON() ([]byte, error) {
	out := estimateJSON{Level: e.Level, Coverage: e.Coverage}
	if !math.IsNaN(e.Value) {
		out.Value = &e.Value
	}
	if e.Bounded() {
		out.Low, out.High = &e.Low, &e.High
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (e *Estimate) UnmarshalJSON(data []byte) error {
	var in estimateJSON
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	*e = Estimate{Value: math.NaN(), High: math.Inf(1), Level: in.Level, Coverage: in.Coverage}
	if in.Value != nil {
		e.Value = *in.Value
	}
	if in.Low != nil && in.High != nil {
		e.Low, e.High = *in.Low, *in.High
	}
	return nil
}

func splitLines(output []byte) [][]byte {
	lines := bytes.Split(output, []byte("\n"))
	for i := range lines {
		lines[i] = bytes.TrimSpace(lines[i])
	}
	return lines
}

func truncate(b []byte, n int) []byte {
	if len(b) <= n {
		return b
	}
	return append(bytes.Clone(b[:n]), "..."...)
}
