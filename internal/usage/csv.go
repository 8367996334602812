package usage

import (
	"bytes"
	"encoding/csv"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// CSV renders rows as a table (RFC 4180): a header whose names carry the units, then a record for each row. Each counter of devices that
// any row has used is a column behind the others, and then comes storage, and energy if that of any row is known. A row without has these empty.
func CSV(rows []api.UsageRow) ([]byte, error) {
	devices := map[string]bool{}
	for i := range rows {
		note(devices, rows[i].Amount)
	}
	counters := slices.Sorted(maps.Keys(devices))
	header := append([]string{"from", "to", "project", "user", "cluster", "uid"}, units("", counters)...)
	header = append(header, "storage_byte_seconds")
	energy := slices.ContainsFunc(rows, func(r api.UsageRow) bool { return r.Energy != nil })
	if energy {
		header = append(header, "energy_measured_joules", "energy_modelled_joules", "energy_known_member_seconds")
	}
	records := [][]string{header}
	for i := range rows {
		r := &rows[i]
		records = append(records, append([]string{text(r.From), text(r.To), r.Project, plain(r.User), r.Cluster, r.UID}, numbers(r.Amount, counters)...))
		last := &records[len(records)-1]
		*last = append(*last, strconv.FormatFloat(r.StorageByteSeconds, 'f', -1, 64))
		if energy {
			*last = append(*last, energyTexts(r.Energy)...)
		}
	}
	return table(records)
}

// energyTexts are the columns of a row's energy: empty, and not zero, where it is not known.
func energyTexts(e *api.EnergyUse) []string {
	if e == nil {
		return []string{"", "", ""}
	}
	all := []string{}
	for _, n := range []float64{e.MeasuredJoules, e.ModelledJoules, e.KnownMemberSeconds} {
		all = append(all, strconv.FormatFloat(n, 'f', -1, 64))
	}
	return all
}

// SiteCSV renders where the site's capacity went.
func SiteCSV(rows []api.SiteUsage) ([]byte, error) {
	devices := map[string]bool{}
	for i := range rows {
		note(devices, rows[i].Capacity) // which has all that the others have
	}
	counters := slices.Sorted(maps.Keys(devices))
	header := []string{"from", "to"}
	for _, part := range []string{"capacity_", "allocated_", "cleaning_", "idle_", "down_"} {
		header = append(header, units(part, counters)...)
	}
	records := [][]string{header}
	for i := range rows {
		r := &rows[i]
		record := []string{text(r.From), text(r.To)}
		for _, a := range []api.Amount{r.Capacity, r.Allocated, r.Cleaning, r.Idle, r.Down} {
			record = append(record, numbers(a, counters)...)
		}
		records = append(records, record)
	}
	return table(records)
}

// note takes down of which counters of devices something was used.
func note(counters map[string]bool, a api.Amount) {
	for counter := range a.DeviceSeconds {
		counters[counter] = true
	}
}

func units(prefix string, counters []string) []string {
	all := []string{prefix + "node_seconds", prefix + "member_seconds", prefix + "core_seconds", prefix + "memory_byte_seconds"}
	for _, counter := range counters {
		all = append(all, plain(prefix+counter+"_seconds"))
	}
	return all
}

func numbers(a api.Amount, counters []string) []string {
	amounts := []float64{a.NodeSeconds, a.MemberSeconds, a.CoreSeconds, a.MemoryByteSeconds}
	for _, counter := range counters {
		amounts = append(amounts, a.DeviceSeconds[counter])
	}
	all := make([]string, len(amounts))
	for i, n := range amounts {
		all[i] = strconv.FormatFloat(n, 'f', -1, 64)
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
