package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// formatCSV is comma-separated values; only usage has it.
const formatCSV format = "csv"

// usageFormat is a format that may be CSV, too.
type usageFormat struct{ *format }

// Set refuses unknown formats.
func (f usageFormat) Set(s string) error {
	if format(s) == formatCSV {
		*f.format = formatCSV
		return nil
	}
	if f.format.Set(s) != nil {
		return fmt.Errorf("%q is not a format; use table, json, yaml or csv", s)
	}
	return nil
}

// Type names the kind of value in help.
func (f usageFormat) Type() string { return "table|json|yaml|csv" }

// usageFlags are the flags of `usage`.
type usageFlags struct{ from, to, period, by string }

func (a *app) usageCommand() *cobra.Command {
	var f usageFlags
	cmd := &cobra.Command{
		Use: "usage", Short: "Show usage by cluster, user or project", Args: noArgs,
		Long: `Show usage by cluster, user or project: what clusters held, from the decision to place a member to its release. Times are RFC 3339 moments, dates
(their beginning, local time), or how long ago something was (24h, 7d). A node-hour is a whole node for an hour, or its cores' worth.
Storage-GiB-hours are the sizes of volumes, from the decision about a size to the next, or until the volume is wiped; snapshots are not in them.
Device-hours are in units of each counter of devices: a GPU of 7 slices that is held whole for an hour comes to 7 of gpu/slices.

Administrators also see where the site's capacity went. Every core-hour is in exactly one column, and the sum is shown: capacity = allocated +
cleaning + idle + down.`,
		Example: `  nearmetal usage --from 7d --by user
  nearmetal usage --from 2026-01-01 --to 2026-02-01 --period day --by cluster -o csv`,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.from, "from", "", "beginning (default: a day before the end)")
	flags.StringVar(&f.to, "to", "", "end (default: now)")
	flags.StringVar(&f.period, "period", "", "rows for each hour, day or month (default: one for all the time)")
	flags.StringVar(&f.by, "by", "project", "rows for each cluster, user or project")
	out := formatTable
	flags.VarP(usageFormat{&out}, "output", "o", "output format")
	// Only fail for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml", "csv"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("period", cobra.FixedCompletions([]string{"hour", "day", "month"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]string{"cluster", "user", "project"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		q, err := f.query(a.Now())
		if err != nil {
			return err
		}
		c, err := a.client(0)
		if err != nil {
			return err
		}
		return a.usage(cmd.Context(), c, q, out)
	}
	return a.connects(cmd)
}

// query checks the flags.
func (f usageFlags) query(now time.Time) (client.UsageQuery, error) {
	q := client.UsageQuery{Period: f.period, By: f.by}
	switch f.period {
	case "", "none", "hour", "day", "month":
	default:
		return q, usage("--period: %q is no period; use hour, day or month", f.period)
	}
	switch f.by {
	case "cluster", "user", "project":
	default:
		return q, usage("--by: rows can't be made by %q; use cluster, user or project", f.by)
	}
	for _, end := range []struct {
		flag, text string
		into       *time.Time
	}{{"from", f.from, &q.From}, {"to", f.to, &q.To}} {
		if end.text == "" {
			continue
		}
		t, err := moment(end.text, now)
		if err != nil {
			return q, usage("--%s: %v", end.flag, err)
		}
		*end.into = t
	}
	to := q.To
	if to.IsZero() {
		to = now
	}
	if !q.From.IsZero() && !q.From.Before(to) {
		return q, usage("--from (%s) is not before --to (%s)", q.From.Format(timeFormat), to.Format(timeFormat))
	}
	return q, nil
}

// usage prints the report.
func (a *app) usage(ctx context.Context, c *client.Client, q client.UsageQuery, out format) error {
	if out == formatCSV {
		return c.UsageCSV(ctx, q, a.Streams.Out)
	}
	report, err := c.Usage(ctx, q)
	if err != nil {
		return err
	}
	return out.print(a.Streams.Out, report, func(w io.Writer) { a.printUsage(w, report, q) })
}

// periodText is a span of time in local time; days and months without what is always the same.
func (a *app) periodText(from, to time.Time, period string) string {
	zone := a.Now().Location()
	from, to = from.In(zone), to.In(zone)
	switch {
	case period == "month" && from.Day() == 1:
		return from.Format("2006-01")
	case period == "day" && from.Hour() == 0:
		return from.Format(time.DateOnly)
	case period == "hour":
		return from.Format("2006-01-02 15:04")
	default:
		return from.Format("2006-01-02 15:04") + " to " + to.Format("2006-01-02 15:04")
	}
}

// printUsage writes a report for people: hours in place of seconds.
func (a *app) printUsage(w io.Writer, report api.UsageReport, q client.UsageQuery) {
	columns := map[string][]string{"cluster": {"PROJECT", "USER", "CLUSTER"}, "user": {"PROJECT", "USER"}, "project": {"PROJECT"}}[q.By]
	units := []string{"CORE-HOURS", "NODE-HOURS", "MEMBER-HOURS", "GIB-HOURS", "STORAGE-GIB-HOURS", "DEVICE-HOURS"}
	texts := amountTexts
	if !slices.ContainsFunc(report.Rows, func(r api.UsageRow) bool { return r.StorageByteSeconds > 0 }) {
		units = slices.Delete(units, 4, 5)
		texts = func(m api.Amount) []string { return slices.Delete(amountTexts(m), 4, 5) }
	}
	if !slices.ContainsFunc(report.Rows, func(r api.UsageRow) bool { return len(r.DeviceSeconds) > 0 }) {
		units = units[:len(units)-1]
	}
	header := append(append([]string{"PERIOD"}, columns...), units...)
	energy := slices.ContainsFunc(report.Rows, func(r api.UsageRow) bool { return r.Energy != nil })
	if energy {
		header = append(header, "ENERGY")
	}
	t := newTable(w, header...)
	var sum api.UsageRow
	for _, r := range report.Rows {
		whose := []string{r.Project, r.User, r.Cluster}[:len(columns)]
		cells := append(append([]string{a.periodText(r.From, r.To, q.Period)}, whose...), texts(r.Amount)[:len(units)]...)
		if energy {
			cells = append(cells, energyText(&r))
		}
		t.row(cells...)
		sum.Amount, sum.Energy = sum.Plus(r.Amount), plusEnergy(sum.Energy, r.Energy)
	}
	if len(report.Rows) > 1 {
		cells := append(append([]string{"sum"}, make([]string, len(columns))...), texts(sum.Amount)[:len(units)]...)
		if energy {
			cells = append(cells, energyText(&sum))
		}
		t.row(cells...)
	}
	t.flush()
	if len(report.Site) == 0 {
		return
	}
	fmt.Fprintln(w)
	site := newTable(w, "CORE-HOURS OF THE SITE", "CAPACITY", "= ALLOCATED", "+ CLEANING", "+ IDLE", "+ DOWN", "SUM")
	for _, s := range report.Site {
		if s.Capacity.IsZero() && len(report.Site) > 1 {
			continue // before the first node came
		}
		total := s.Allocated.Plus(s.Cleaning).Plus(s.Idle.Plus(s.Down))
		site.row(a.periodText(s.From, s.To, q.Period), coreHours(s.Capacity), coreHours(s.Allocated), coreHours(s.Cleaning), coreHours(s.Idle),
			coreHours(s.Down), sumText(s.Capacity, total))
	}
	site.flush()
	printSiteEnergy(w, a, report, q)
}

// printSiteEnergy shows where the nodes' energy went, in the periods of which anything is known.
func printSiteEnergy(w io.Writer, a *app, report api.UsageReport, q client.UsageQuery) {
	if !slices.ContainsFunc(report.Site, func(s api.SiteUsage) bool { return s.Energy != nil && s.Energy.KnownNodeSeconds > 0 }) {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "ENERGY OF THE SITE", "COUNTED", "= CLUSTERS", "+ IDLE", "+ UNATTRIBUTED", "NODE-HOURS KNOWN", "UNKNOWN")
	for _, s := range report.Site {
		if e := s.Energy; e != nil && e.KnownNodeSeconds > 0 {
			t.row(a.periodText(s.From, s.To, q.Period), joulesText(e.Counter), joulesText(e.Clusters), joulesText(e.Idle), joulesText(e.Unattributed),
				hours(e.KnownNodeSeconds), hours(e.UnknownNodeSeconds))
		}
	}
	t.flush()
}

// sumText is the sum of what the capacity went to, and a complaint when that is not the capacity.
func sumText(capacity, total api.Amount) string {
	text := coreHours(total)
	// Floating point may lose a part in 10^9, not more.
	if math.Abs(capacity.CoreSeconds-total.CoreSeconds) > 1e-9*max(capacity.CoreSeconds, 1)+1e-3 {
		text += ", which is NOT the capacity"
	}
	return text
}

// amountTexts are the quantities of a row, in the order of the columns.
func amountTexts(m api.Amount) []string {
	return []string{coreHours(m), hours(m.NodeSeconds), hours(m.MemberSeconds), hours(m.MemoryByteSeconds / (1 << 30)), hours(m.StorageByteSeconds / (1 << 30)), deviceHours(m)}
}

// deviceHours lists counters of devices, each with its hours.
func deviceHours(m api.Amount) string {
	var texts []string
	for _, counter := range slices.Sorted(maps.Keys(m.DeviceSeconds)) {
		texts = append(texts, counter+" "+hours(m.DeviceSeconds[counter]))
	}
	return strings.Join(texts, ", ")
}

func coreHours(m api.Amount) string { return hours(m.CoreSeconds) }

// hours writes seconds as hours, with as many decimals as say something.
func hours(seconds float64) string {
	h := seconds / 3600
	switch {
	case h == 0:
		return "0"
	case math.Abs(h) < 0.0001:
		return "<0.0001"
	case math.Abs(h) < 1:
		return strings.TrimRight(fmt.Sprintf("%.4f", h), "0")
	default:
		return fmt.Sprintf("%.2f", h)
	}
}
