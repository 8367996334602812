package cli

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
)

func (a *app) energyCommand() *cobra.Command {
	var hours int
	cmd := &cobra.Command{
		Use: "energy", Short: "Show the power of nodes and the energy of clusters and jobs", Args: noArgs,
		Long: `Show the energy that clusters and their jobs used in the last hours. Administrators also see each node: its power now, the source that it is
read from, and where its energy went. Every microjoule that a node counted is in exactly one column: counted = clusters + idle + unattributed.

A figure is measured (read from a counter or a meter), modelled (computed from utilization), or unavailable, with the reason. What is unavailable is
shown as "-" and never as zero. MEMBER-HOURS KNOWN are the hours of members of which the energy is known.`,
		Example: "  nearmetal energy\n  nearmetal energy --hours 1 -o json",
	}
	out := outputFlag(cmd)
	cmd.Flags().IntVar(&hours, "hours", 24, "how many hours up to now are added up")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if hours < 1 || hours > 1440 {
			return usage("--hours is %d; give 1 to 1440", hours)
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		report, err := c.Energy(cmd.Context(), hours)
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, report, func(w io.Writer) { printEnergy(w, &report) })
	}
	return a.connects(cmd)
}

func printEnergy(w io.Writer, report *api.EnergyReport) {
	if len(report.Nodes) > 0 {
		t := newTable(w, "NODE", "POWER", "SOURCE", "TAG", "COUNTED", "= CLUSTERS", "+ IDLE", "+ UNATTRIBUTED", "REASON")
		for i := range report.Nodes {
			n := &report.Nodes[i]
			t.row(n.Node, wattsText(n.Watts), string(n.Source), string(n.Tag), amountText(n.Counter), amountText(n.Clusters), amountText(n.Idle), amountText(n.Unattributed), n.Reason)
		}
		t.flush()
		fmt.Fprintln(w)
	}
	t := newTable(w, "CLUSTER", "USER", "JOB", "ENERGY", "TAG", "MEMBER-HOURS KNOWN")
	for i := range report.Clusters {
		c := &report.Clusters[i]
		e := c.Joules()
		t.row(c.Cluster, c.User, c.Job, joulesText(e), string(tagOf(e)), hours(c.KnownMemberSeconds))
	}
	t.flush()
}

// tagOf is how an amount is known.
func tagOf(e api.EnergyJoules) api.EnergyTag {
	switch {
	case e.ModelledJoules > 0 && e.MeasuredJoules > 0:
		return "measured and modelled"
	case e.ModelledJoules > 0:
		return api.EnergyModelled
	default:
		return api.EnergyMeasured
	}
}

func wattsText(watts *float64) string {
	if watts == nil {
		return ""
	}
	return fmt.Sprintf("%.1f W", *watts)
}

// amountText writes an amount; empty: nothing is known.
func amountText(e *api.EnergyAmount) string {
	if e == nil {
		return ""
	}
	return joulesText(e.Joules())
}

// joulesText writes energy in a unit that suits it.
func joulesText(e api.EnergyJoules) string {
	joules, unit := e.MeasuredJoules+e.ModelledJoules, "J"
	for _, next := range []string{"kJ", "MJ", "GJ"} {
		if joules < 10_000 {
			break
		}
		joules, unit = joules/1000, next
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", joules), ".0") + " " + unit
}

// plusEnergy adds the energy of a row; nil: nothing is known of it.
func plusEnergy(sum, more *api.EnergyUse) *api.EnergyUse {
	if sum == nil || more == nil {
		return cmp.Or(sum, more)
	}
	return &api.EnergyUse{EnergyJoules: sum.Plus(more.EnergyJoules), KnownMemberSeconds: sum.KnownMemberSeconds + more.KnownMemberSeconds}
}

// energyText is the energy of a row of usage: the tag beside it unless all of it is measured, and the part of the time of which it is known unless
// that is all of it.
func energyText(r *api.UsageRow) string {
	if r.Energy == nil {
		return ""
	}
	text := joulesText(r.Energy.EnergyJoules)
	if tag := tagOf(r.Energy.EnergyJoules); tag != api.EnergyMeasured {
		text += " " + string(tag)
	}
	const whole = 0.995
	if part := r.Energy.KnownMemberSeconds / max(r.MemberSeconds, 1e-9); part < whole {
		text += fmt.Sprintf(" (%.0f%% of the time)", 100*part)
	}
	return text
}

// energyUnits are units of energy in joules.
var energyUnits = map[string]float64{"J": 1, "kJ": 1e3, "MJ": 1e6, "GJ": 1e9, "Wh": 3.6e3, "kWh": 3.6e6, "MWh": 3.6e9}

// parseEnergy reads an amount of energy such as 50kWh, in joules.
func parseEnergy(text string) (joules int64, err error) {
	number := strings.TrimRight(text, "JkMGWh")
	unit, known := energyUnits[text[len(number):]]
	value, err := strconv.ParseFloat(number, 64)
	if !known || err != nil || !(value > 0) || value*unit < 1 || value*unit > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is not an amount of energy; write a number and one of the units J, kJ, MJ, GJ, Wh, kWh, MWh, like 50kWh", text)
	}
	return int64(value * unit), nil
}

// kilowattHours writes energy as quotas of it are given.
func kilowattHours(joules int64) string {
	return strconv.FormatFloat(float64(joules)/energyUnits["kWh"], 'g', 4, 64) + " kWh"
}
