package usage

import (
	"bytes"
	"encoding/csv"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// CSV renders rows as a table (RFC 4180): a header whose names carry the units, then a record for each row.
func CSV(rows []api.UsageRow) ([]byte, error) {
	records := [][]string{append([]string{"from", "to", "project", "user", "cluster", "uid"}, units("")...)}
	for i := range rows {
		r := &rows[i]
		records = append(records, append([]string{text(r.From), text(r.To), r.Project, plain(r.User), r.Cluster, r.UID}, numbers(r.Amount)...))
	}
	return table(records)
}

// SiteCSV renders where the site's capacity went.
func SiteCSV(rows []api.SiteUsage) ([]byte, error) {
	header := []string{"from", "to"}
	for _, part := range []string{"capacity_", "allocated_", "cleaning_", "idle_", "down_"} {
		header = append(header, units(part)...)
	}
	records := [][]string{header}
	for i := range rows {
		r := &rows[i]
		record := []string{text(r.From), text(r.To)}
		for _, a := range []api.Amount{r.Capacity, r.Allocated, r.Cleaning, r.Idle, r.Down} {
			record = append(record, numbers(a)...)
		}
		records = append(records, record)
	}
	return table(records)
}

func units(prefix string) []string {
	return []string{prefix + "node_seconds", prefix + "member_seconds", prefix + "core_seconds", prefix + "memory_byte_seconds"}
}

func numbers(a api.Amount) []string {
	var all []string
	for _, n := range []float64{a.NodeSeconds, a.MemberSeconds, a.CoreSeconds, a.MemoryByteSeconds} {
		all = append(all, strconv.FormatFloat(n, 'f', -1, 64))
	}
	return all
}

func text(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// plain keeps a spreadsheet from taking a name for a formula.
func plain(name string) string {
	if name != "" && bytes.ContainsRune([]byte("=+-@\t\r"), rune(name[0])) {
		return "'" + name
	}
	return name
}

func table(records [][]string) ([]byte, error) {
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	if err := w.WriteAll(records); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
