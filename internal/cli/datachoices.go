package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// printDataDecisions lists what was decided of datasets whose ways groups leave open, with all that there was to choose from.
func printDataDecisions(w io.Writer, choices []api.DataChoice) {
	if len(choices) > 0 {
		fmt.Fprintln(w, "\nChoices of datasets as of the time when members got their places:")
		printChoices(w, choices)
	}
}

// printDataChoices lists how nodes could have the datasets of a cluster's groups, with what that is predicted to take.
func printDataChoices(w io.Writer, choices []api.DataChoice) {
	if len(choices) > 0 {
		fmt.Fprintln(w, "\nChoices of datasets by what is known now:")
		printChoices(w, choices)
	}
}

func printChoices(w io.Writer, choices []api.DataChoice) {
	t := newTable(w, "GROUP", "NODE", "DATASET", "CHOICE", "TAKEN", "PREDICTED", "ENERGY (MODELLED)", "SUM", "FIGURES")
	for _, c := range choices {
		t.row(c.Group, c.Node, c.Dataset, c.Choice, yesNo(c.Taken), predicted(c.Seconds, secondsText), predicted(c.Joules, waitJoules), orElse(c.Sum, "-"), c.Figures)
	}
	t.flush()
}

// printDataClaims lists how members read datasets whose ways their groups leave open.
func printDataClaims(w io.Writer, members []api.MemberStatus) {
	if !slices.ContainsFunc(members, func(m api.MemberStatus) bool { return len(m.Data) > 0 }) {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "MEMBER", "DATASET", "WAY", "CHOICE", "PREDICTED", "READS", "REASON")
	for _, m := range members {
		for i := range m.Data {
			d := &m.Data[i]
			t.row(m.Name, d.Name, string(d.Way), d.Choice, predicted(d.Seconds, secondsText), fmt.Sprintf("%.3g (%s)", d.Reads, datasetBytes(d.Bytes)), d.Why)
		}
	}
	t.flush()
}

// printDataReads lists the fractions of datasets that members were seen to read.
func printDataReads(w io.Writer, reads map[string]api.DataReads, ago func(time.Time) string) {
	if len(reads) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "DATASET", "READ OF IT (MEDIAN)", "MEMBERS", "NEWEST", "BYTES PER WAIT")
	for _, name := range slices.Sorted(maps.Keys(reads)) {
		r := reads[name]
		perWait := "-"
		if r.BytesPerWait > 0 {
			perWait = datasetBytes(int64(r.BytesPerWait))
		}
		t.row(name, fmt.Sprintf("%.3g", r.Fraction), fmt.Sprint(r.Members), ago(r.At)+" ago", perWait)
	}
	t.flush()
}

func predicted(value *float64, text func(float64) string) string {
	if value == nil {
		return "-"
	}
	return text(*value)
}

func secondsText(s float64) string {
	switch {
	case s == 0:
		return "0 s"
	case s < 10:
		return fmt.Sprintf("%.2f s", s)
	default:
		return fmt.Sprintf("%.0f s", s)
	}
}

func waitJoules(j float64) string { return joulesText(api.EnergyJoules{ModelledJoules: j}) }

// printDataOutcomes lists predictions beside what came of them.
func printDataOutcomes(w io.Writer, outcomes []api.DataOutcome) {
	if len(outcomes) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "NODE", "DATASET", "CHOICE", "GROUPS", "SIZE", "PREDICTED", "TOOK", "RATIO")
	for _, o := range outcomes {
		if o.Unseen != "" {
			t.row(o.Node, orElse(o.Dataset, "-"), o.Choice, orElse(strings.Join(o.Groups, ","), "-"), datasetBytes(o.PredictedBytes), secondsText(o.PredictedSeconds), o.Unseen, "-")
			continue
		}
		size := datasetBytes(o.Bytes)
		if o.PredictedBytes > 0 {
			size += fmt.Sprintf(" (predicted %s)", datasetBytes(o.PredictedBytes))
		}
		t.row(o.Node, orElse(o.Dataset, "-"), o.Choice, orElse(strings.Join(o.Groups, ","), "-"), size, secondsText(o.PredictedSeconds), secondsText(o.Seconds), fmt.Sprintf("%.2f", o.Ratio))
	}
	t.flush()
}

// printDataErrors sums up how predictions about a dataset turned out.
func printDataErrors(w io.Writer, errors []api.DataErrors) {
	if len(errors) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "CHOICE", "TIMES", "PREDICTED", "TOOK", "TOOK/PREDICTED (MEDIAN)")
	for _, e := range errors {
		t.row(e.Choice, fmt.Sprint(e.Count), secondsText(e.PredictedSeconds), secondsText(e.Seconds), fmt.Sprintf("%.2f", e.MedianRatio))
	}
	t.flush()
}
