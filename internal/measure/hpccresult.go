package measure

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// HPCCReason is why an HPC Challenge run is refused.
type HPCCReason string

// The reasons.
const (
	// HPCCIncomplete: the run did not come to its end, or its output is not that of one whole run.
	HPCCIncomplete HPCCReason = "incomplete"
	// HPCCWrong: what it computed is wrong; how fast it did so means nothing.
	HPCCWrong HPCCReason = "wrong results"
	// HPCCOther: it is a run of another setting.
	HPCCOther HPCCReason = "another setting"
)

// HPCCError refuses an HPC Challenge run.
type HPCCError struct {
	Reason HPCCReason
	Detail string
}

func (e *HPCCError) Error() string {
	return fmt.Sprintf("the HPC Challenge run is not valid (%s): %s", e.Reason, e.Detail)
}

// hplThreshold is what HPL's scaled residual has to stay below (HPL.dat's usual value).
const hplThreshold = 16.0

// The marks of the output.
const (
	hpccSummaryBegins = "Begin of Summary section."
	hpccSummaryEnds   = "End of Summary section."
	hpccEnds          = "End of HPC Challenge tests."
)

// HPCCResult is what a run said of itself.
type HPCCResult struct {
	Setting HPCC
	// HPLGflops is of all ranks together, StreamTriadGBPerS of one while all others do the same.
	HPLGflops         float64
	StreamTriadGBPerS float64
	// Residual is HPL's scaled residual; below 16 the solution is right.
	Residual float64
	// HPLSeconds is what solving took; StreamWords the length of STREAM's vectors, of 8 bytes each. Vectors that a cache holds measure the
	// cache.
	HPLSeconds  float64
	StreamWords int64
	// Summary has everything of the output's summary, by name.
	Summary map[string]string
}

// Points is the result for a Run.
func (r HPCCResult) Points() []Point {
	return []Point{{X: float64(r.Setting.Ranks()), Values: map[string]float64{
		HPLGflops: r.HPLGflops, StreamTriadGBPerS: r.StreamTriadGBPerS,
	}}}
}

// Points reads the output of a run of this setting; it has the form that MeasurePairs takes.
func (h HPCC) Points(output []byte) ([]Point, error) {
	result, err := ParseHPCC(output, h)
	if err != nil {
		return nil, err
	}
	return result.Points(), nil
}

// ParseHPCC reads the output of one run of a setting, as Script prints it. Whatever does not come from one whole and right run of
// that setting is refused with an *HPCCError.
func ParseHPCC(output []byte, setting HPCC) (HPCCResult, error) {
	r := HPCCResult{Setting: setting}
	summary, err := hpccSummary(output)
	if err != nil {
		return HPCCResult{}, err
	}
	r.Summary = summary
	if err := r.checkSetting(); err != nil {
		return HPCCResult{}, err
	}
	numbers := hpccNumbers{summary: summary}
	r.HPLGflops = 1000 * numbers.positive("HPL_Tflops")
	r.HPLSeconds = numbers.positive("HPL_time")
	r.StreamTriadGBPerS = numbers.positive("StarSTREAM_Triad")
	r.StreamWords = int64(numbers.positive("STREAM_VectorSize"))
	// As HPL computes it: ||Ax-b|| / (eps * (||x|| * ||A|| + ||b||) * N), all norms infinite.
	r.Residual = numbers.atLeastZero("HPL_RnormI") /
		(numbers.positive("HPL_eps") * (numbers.positive("HPL_XnormI")*numbers.positive("HPL_AnormI") + numbers.atLeastZero("HPL_BnormI")) * float64(setting.N))
	if numbers.err != nil {
		return HPCCResult{}, numbers.err
	}
	if err := r.checkResults(output); err != nil {
		return HPCCResult{}, err
	}
	return r, nil
}

// hpccSummary reads the NAME=VALUE lines of the summary, of which there must be one.
func hpccSummary(output []byte) (map[string]string, error) {
	incomplete := func(format string, args ...any) (map[string]string, error) {
		return nil, &HPCCError{HPCCIncomplete, fmt.Sprintf(format, args...)}
	}
	for _, mark := range []string{hpccSummaryBegins, hpccSummaryEnds, hpccEnds} {
		if n := bytes.Count(output, []byte(mark)); n == 0 {
			return incomplete("its output has no line %q; it ends with %q", mark, output[max(0, len(output)-200):])
		} else if n > 1 {
			return incomplete("its output has %d lines %q: more than one run wrote it", n, mark)
		}
	}
	_, text, _ := strings.Cut(string(output), hpccSummaryBegins)
	text, rest, found := strings.Cut(text, hpccSummaryEnds)
	if !found || !strings.Contains(rest, hpccEnds) {
		return incomplete("the sections of its output are out of order")
	}
	summary := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			continue
		}
		if _, twice := summary[name]; twice {
			return incomplete("its summary has %s twice", name)
		}
		summary[name] = value
	}
	return summary, nil
}

// checkSetting refuses a run of something else, such as ranks that did not find each other and ran alone.
func (r HPCCResult) checkSetting() error {
	for _, want := range []struct {
		name  string
		value int
	}{
		{"CommWorldProcs", r.Setting.Ranks()},
		{"HPL_N", r.Setting.N},
		{"HPL_NB", r.Setting.NB},
		{"HPL_nprow", r.Setting.P},
		{"HPL_npcol", r.Setting.Q},
	} {
		got, ok := r.Summary[want.name]
		if !ok {
			return &HPCCError{HPCCIncomplete, fmt.Sprintf("its summary lacks %s", want.name)}
		}
		if got != strconv.Itoa(want.value) {
			return &HPCCError{HPCCOther, fmt.Sprintf("%s is %s instead of the requested %d", want.name, got, want.value)}
		}
	}
	return nil
}

// checkResults refuses a run that computed something wrong, by its own words or by its residual.
func (r HPCCResult) checkResults(output []byte) error {
	wrong := func(format string, args ...any) error { return &HPCCError{HPCCWrong, fmt.Sprintf(format, args...)} }
	if got := r.Summary["Success"]; got != "1" {
		return wrong("its summary says Success=%s", got)
	}
	if !(r.Residual < hplThreshold) {
		return wrong("HPL's scaled residual is %.3g; it must be below %.1f", r.Residual, hplThreshold)
	}
	_, hpl, _ := strings.Cut(string(output), "Begin of HPL section.")
	passed, failed := strconv.Itoa(r.Setting.solves()), "0"
	if !hasCount(hpl, passed, "tests completed and passed residual checks") || !hasCount(hpl, failed, "tests completed and failed residual checks") {
		return wrong("HPL does not report %s solutions that all passed the residual check", passed)
	}
	if strings.Contains(hpl, "FAILED") {
		return wrong("HPL reports a FAILED test")
	}
	_, stream, _ := strings.Cut(string(output), "Begin of StarSTREAM section.")
	stream, _, _ = strings.Cut(stream, "End of StarSTREAM section.")
	if !strings.Contains(stream, "Solution Validates") || !hasCount(stream, "Node(s) with error", "0") {
		return wrong("STREAM does not report that its vectors are right")
	}
	return nil
}

// hasCount looks for a line of these two parts, blanks apart.
func hasCount(text, first, second string) bool {
	return slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
		return strings.TrimSuffix(strings.Join(strings.Fields(line), " "), ",") == first+" "+second
	})
}

// hpccNumbers reads numbers of the summary and remembers the first that is none.
type hpccNumbers struct {
	summary map[string]string
	err     error
}

func (n *hpccNumbers) positive(name string) float64 {
	v := n.atLeastZero(name)
	if v == 0 && n.err == nil {
		n.err = &HPCCError{HPCCIncomplete, name + " is 0"}
	}
	return v
}

func (n *hpccNumbers) atLeastZero(name string) float64 {
	text, ok := n.summary[name]
	v, err := strconv.ParseFloat(text, 64)
	if n.err == nil && (!ok || err != nil || math.IsInf(v, 0) || !(v >= 0)) {
		n.err = &HPCCError{HPCCIncomplete, fmt.Sprintf("its summary's %s is not a sensible number: %q", name, text)}
	}
	return v
}

// Conditions are what a reader has to know of the run to judge its numbers.
func (r HPCCResult) Conditions() []Condition {
	best := ""
	if n := r.Setting.solves(); n > 1 {
		best = fmt.Sprintf(" (the fastest of %d times)", n)
	}
	return []Condition{
		{"HPL", fmt.Sprintf("order %d, blocks of %d, %d x %d ranks, solved in %s s%s, scaled residual %s",
			r.Setting.N, r.Setting.NB, r.Setting.P, r.Setting.Q, number(r.HPLSeconds), best, number(r.Residual))},
		{"STREAM", fmt.Sprintf("three vectors of %s MiB a rank; caches that hold them are what it measures", number(float64(r.StreamWords)*8/(1<<20)))},
		{"HPC Challenge", strings.Join([]string{r.Summary["VersionMajor"], r.Summary["VersionMinor"], r.Summary["VersionMicro"]}, ".") + r.Summary["VersionRelease"]},
	}
}
