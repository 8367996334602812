package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// printDataChoices lists how nodes could have the datasets of a cluster's groups, with what that is predicted to take.
func printDataChoices(w io.Writer, choices []api.DataChoice) {
	if len(choices) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "GROUP", "NODE", "DATASET", "CHOICE", "TAKEN", "PREDICTED", "ENERGY (MODELLED)", "FIGURES")
	for _, c := range choices {
		t.row(c.Group, c.Node, c.Dataset, c.Choice, yesNo(c.Taken), predicted(c.Seconds, secondsText), predicted(c.Joules, waitJoules), c.Figures)
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
		t.row(o.Node, orElse(o.Dataset, "-"), o.Choice, orElse(strings.Join(o.Groups, ","), "-"), datasetBytes(o.Bytes), secondsText(o.PredictedSeconds), secondsText(o.Seconds),
			fmt.Sprintf("%.2f", o.Ratio))
	}
	t.flush()
}

// printDataErrors sums up how predictions about a dataset turned out.
func printDataErrors(w io.Writer, errors []api.DataErrors) {
	if len(errors) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "CHOICE", "FETCHES", "PREDICTED", "TOOK", "TOOK/PREDICTED (MEDIAN)")
	for _, e := range errors {
		t.row(e.Choice, fmt.Sprint(e.Count), secondsText(e.PredictedSeconds), secondsText(e.Seconds), fmt.Sprintf("%.2f", e.MedianRatio))
	}
	t.flush()
}
