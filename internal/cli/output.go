package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
)

// format is how objects are printed.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
)

// String, Set and Type make format a flag's value.
func (f *format) String() string { return string(*f) }

// Set refuses unknown formats.
func (f *format) Set(s string) error {
	switch format(s) {
	case formatTable, formatJSON, formatYAML:
		*f = format(s)
		return nil
	default:
		return fmt.Errorf("%q is not a format; use table, json or yaml", s)
	}
}

// Type names the kind of value in help.
func (f *format) Type() string { return "table|json|yaml" }

// outputFlag adds -o.
func outputFlag(cmd *cobra.Command) *format {
	f := formatTable
	cmd.Flags().VarP(&f, "output", "o", "output format")
	// Only fails for a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	return &f
}

// print writes an object in the format; table writes it for people.
func (f *format) print(w io.Writer, v any, table func(io.Writer)) error {
	switch *f {
	case formatJSON:
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	case formatYAML:
		text, err := toYAML(v)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	default:
		table(w)
		return nil
	}
}

// printStream writes one of many objects that come over time: JSON on one line, YAML as a document of its own.
func (f *format) printStream(w io.Writer, v any, line func(io.Writer)) error {
	switch *f {
	case formatJSON:
		return json.NewEncoder(w).Encode(v)
	case formatYAML:
		text, err := toYAML(v)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "---\n%s", text)
		return err
	default:
		line(w)
		return nil
	}
}

// toYAML writes the same fields as JSON, in the same order.
func toYAML(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(text)
}

// table is aligned text.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, header ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.row(header...)
	return t
}

// row adds a row; empty cells show a dash, so that columns can be counted.
func (t *table) row(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
		// Control characters in a message must not break the alignment, nor the terminal.
		cells[i] = printable(cells[i])
	}
	fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

func (t *table) flush() { _ = t.w.Flush() } // a closed output shows at the process's end

// fields writes the properties of one object, a line each; empty ones are left out.
func fields(w io.Writer, pairs ...string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(t, "%s:\t%s\n", pairs[i], printable(pairs[i+1]))
		}
	}
	_ = t.Flush()
}

// printable replaces control characters: text of servers and members must not steer a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}

// timeFormat is how moments are written for people, in local time.
const timeFormat = "2006-01-02 15:04:05"

// age is how long ago something was, in its largest unit that says enough.
func (a *app) age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return largestUnit(max(a.Now().Sub(t), 0))
}

// until is in how long something will be.
func (a *app) until(t *time.Time) string {
	switch {
	case t == nil:
		return ""
	case !t.After(a.Now()):
		return "now"
	default:
		return "in " + largestUnit(rounded(t.Sub(a.Now())))
	}
}

// rounded is a span to the nearest of the unit it is written in: "in 59m" of a limit of an hour that has just begun would puzzle.
func rounded(d time.Duration) time.Duration {
	near := d.Round(time.Second)
	for _, unit := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour} {
		if near >= 2*unit {
			near = d.Round(unit)
		}
	}
	return near
}

func largestUnit(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// ageOf is age for what may not have been yet.
func (a *app) ageOf(t *time.Time) string {
	if t == nil {
		return ""
	}
	return a.age(*t)
}

// projectColumn leaves the second column of a table, the project, away where everything belongs to the default one.
type projectColumn bool

func severalProjects[T any](all []T, project func(T) string) projectColumn {
	return projectColumn(slices.ContainsFunc(all, func(v T) bool { return otherProject(project(v)) != "" }))
}

func (p projectColumn) row(cells ...string) []string {
	if p {
		return cells
	}
	return slices.Delete(cells, 1, 2)
}

// countText is a number, and nothing for 0.
func countText(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// labels writes labels in order.
func labels(m map[string]string) string {
	pairs := make([]string, 0, len(m))
	for k, v := range m {
		pairs = append(pairs, k+"="+v)
	}
	sort.Strings(pairs)
	return strings.Join(pairs, ",")
}

// ranges writes ascending numbers shortly: 0-3,8.
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(numbers[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", numbers[i], numbers[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// yesNo writes a truth for people.
func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
