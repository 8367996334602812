package usage

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// By is what a report has a row for, in each period.
type By string

// What rows can be of. A user's rows are apart for each project.
const (
	ByAll     By = ""
	ByCluster By = "cluster"
	ByUser    By = "user"
	ByProject By = "project"
)

// Period is how a report cuts time: at the beginnings of calendar hours, days, weeks (Mondays) and months, in UTC.
type Period string

// The periods.
const (
	Whole Period = ""
	Hour  Period = "hour"
	Day   Period = "day"
	Week  Period = "week"
	Month Period = "month"
)

// maxPeriods bounds the length of a report.
const maxPeriods = 10_000

// Times are counted in nanoseconds since 1970 (time.Time.UnixNano), which have room for these years.
const firstYear, lastYear = 1970, 2200

// total is what the site's capacity was used for in a period, exact.
type total struct{ capacity, allocated, cleaning, idle, down amount }

// rowKey is what a row is of.
type rowKey struct {
	period int
	owner
}

// exact is a report before it is rounded to seconds.
type exact struct {
	periods []time.Time // one more than there are periods
	rows    map[rowKey]*amount
	site    []total
	energy  []siteEnergy // of each period
}

// Report adds up who used what from one time to another, in periods: a row for each cluster, user or project that held anything, and one
// for the site. What lies after in.Now has not happened and is not counted. Its memory is that of the answer and of a bounded number of stretches
// of use; that the records can't be read is ErrRecords, every other error says what is wrong with the question.
//
// Sums are exact: members, cores and bytes times nanoseconds, as whole numbers; only what is written into the rows is rounded, each number
// once. So the reports of adjoining times add up to that of the whole. The numbers of a site row are rounded so that Capacity is the sum
// of Allocated, Cleaning, Idle and Down to the last bit, added in that order. Idle and down capacity has no members.
func Report(in Input, from, to time.Time, period Period, by By) (api.UsageReport, error) {
	if to.After(in.Now) {
		to = in.Now
	}
	sums, err := add(&in, from, to, period, by)
	if err != nil {
		return api.UsageReport{}, err
	}
	return sums.round(), nil
}

// add is Report without rounding.
func add(in *Input, from, to time.Time, period Period, by By) (*exact, error) {
	switch by {
	case ByAll, ByCluster, ByUser, ByProject:
	default:
		return nil, fmt.Errorf("usage can't be grouped by %q; use %q, %q or %q", by, ByCluster, ByUser, ByProject)
	}
	periods, err := cut(from, to, period)
	if err != nil {
		return nil, err
	}
	bounds := nanoseconds(periods)
	sums := &exact{periods: periods, rows: map[rowKey]*amount{}, site: make([]total, len(periods)-1), energy: make([]siteEnergy, len(periods)-1)}
	begin, end := bounds[0], bounds[len(bounds)-1]
	// What a node has free, and how much of it a core is, depends on all that is held there at once: so much as is looked at together must be in
	// memory, though not more. Sums of adjoining times add up, so a long time is taken in parts.
	limit := cmp.Or(in.atOnce, stretchesAtOnce)
	for at, length := begin, end-begin; at < end; {
		if length <= 1+(end-begin)/mostParts {
			limit = math.MaxInt
		}
		nodes, storage, err := timelines(in, at, min(at+length, end), limit)
		if errors.Is(err, errTooMany) {
			length = (length + 1) / 2
			continue
		}
		if err != nil {
			return nil, err
		}
		sums.addNodes(nodes, bounds, in, by)
		sums.addStorage(storage, bounds, in, by)
		at += length
	}
	return sums, sums.addEnergy(in, bounds, by)
}

// stretchesAtOnce bounds how many stretches of use are in memory at once, of some 70 bytes each; mostParts how often the records are gone through for it.
const (
	stretchesAtOnce = 1 << 20
	mostParts       = 64
)

// addNodes counts what became of nodes, and what of them was used by whom.
func (x *exact) addNodes(nodes map[string]*timeline, bounds []int64, in *Input, by By) {
	for _, n := range nodes {
		widths := x.addSite(n, bounds)
		for i := range n.allocated {
			h := &n.allocated[i]
			if in.counts(h.owner) {
				x.addRow(h, bounds, widths, by)
			}
		}
	}
}

// addSite counts what became of a node's capacity, and returns how many cores it had when.
func (x *exact) addSite(n *timeline, bounds []int64) []width {
	var widths []width
	n.each(bounds, func(period int, from, to int64, m *moment) {
		ns := to - from
		capacity, used := m.capacity()
		free, cores := capacity.Beyond(used), capacity.Vector[resource.Cores]
		t := &x.site[period]
		t.capacity.add(ns, capacity, cores)
		t.allocated.add(ns, m.allocated, cores)
		t.cleaning.add(ns, m.cleaning, cores)
		if !m.down.IsZero() {
			t.down.add(ns, free, cores)
		} else {
			t.idle.add(ns, free, cores)
		}
		if last := len(widths) - 1; last >= 0 && widths[last].to == from && widths[last].cores == cores {
			widths[last].to = to
		} else {
			widths = append(widths, width{from, to, cores})
		}
	})
	return widths
}

// addRow counts one stretch of use for its owner.
func (x *exact) addRow(h *held, bounds []int64, widths []width, by By) {
	key := rowKey{owner: h.owner.as(by)}
	key.period = sort.Search(len(bounds), func(i int) bool { return bounds[i] > h.from }) - 1
	w := sort.Search(len(widths), func(i int) bool { return widths[i].to > h.from })
	for from := h.from; from < h.to; {
		end := min(h.to, bounds[key.period+1], widths[w].to)
		row := x.rows[key]
		if row == nil {
			row = &amount{}
			x.rows[key] = row
		}
		row.add(end-from, h.amounts, widths[w].cores)
		if from = end; from == bounds[key.period+1] {
			key.period++
		}
		if from == widths[w].to {
			w++
		}
	}
}

// as leaves of an owner what a report tells apart.
func (o owner) as(by By) owner {
	switch by {
	case ByCluster:
		return o
	case ByUser:
		return owner{project: o.project, user: o.user}
	case ByProject:
		return owner{project: o.project}
	default:
		return owner{}
	}
}

// round makes the rows, in the order of time and names.
func (x *exact) round() api.UsageReport {
	keys := make([]rowKey, 0, len(x.rows))
	for key := range x.rows {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b rowKey) int {
		return cmp.Or(a.period-b.period, strings.Compare(a.project, b.project), strings.Compare(a.user, b.user),
			strings.Compare(a.cluster, b.cluster), strings.Compare(a.uid, b.uid))
	})
	report := api.UsageReport{Rows: make([]api.UsageRow, len(keys)), Site: make([]api.SiteUsage, len(x.site))}
	for i, k := range keys {
		report.Rows[i] = api.UsageRow{
			From: x.periods[k.period], To: x.periods[k.period+1],
			Project: k.project, User: k.user, Cluster: k.cluster, UID: k.uid, Amount: x.rows[k].seconds(),
			Energy: x.rows[k].energy.rowOf(),
		}
	}
	for i := range x.site {
		t := &x.site[i]
		s := api.SiteUsage{
			From: x.periods[i], To: x.periods[i+1],
			Allocated: t.allocated.seconds(), Cleaning: t.cleaning.seconds(), Idle: t.idle.seconds(), Down: t.down.seconds(),
		}
		// Not t.capacity.seconds(), which is the same but for the rounding: readers can check the sum.
		s.Capacity = s.Allocated.Plus(s.Cleaning).Plus(s.Idle).Plus(s.Down)
		s.Energy = x.energy[i].rowOf()
		report.Site[i] = s
	}
	return report
}

// cut lists where periods begin and end: from, the beginnings of periods after it, to.
func cut(from, to time.Time, period Period) ([]time.Time, error) {
	if !from.Before(to) {
		return nil, fmt.Errorf("the requested time ends at %s, which is not after its start at %s",
			to.UTC().Format(time.RFC3339), from.UTC().Format(time.RFC3339))
	}
	if from.Year() < firstYear || to.Year() > lastYear {
		return nil, fmt.Errorf("the requested time, %s to %s, is outside the years %d to %d",
			from.UTC().Format(time.RFC3339), to.UTC().Format(time.RFC3339), firstYear, lastYear)
	}
	bounds := []time.Time{from}
	for at := from; ; {
		next, err := period.next(at)
		if err != nil {
			return nil, err
		}
		if period == Whole || !next.Before(to) {
			return append(bounds, to), nil
		}
		if len(bounds) == maxPeriods {
			return nil, fmt.Errorf("more than %d periods of a %s lie between %s and %s; choose longer periods or a shorter time",
				maxPeriods, period, from.UTC().Format(time.RFC3339), to.UTC().Format(time.RFC3339))
		}
		bounds, at = append(bounds, next), next
	}
}

// next is when the first period after a time begins.
func (p Period) next(at time.Time) (time.Time, error) {
	at = at.UTC()
	year, month, day := at.Date()
	date := func(year int, month time.Month, day, hour int) time.Time {
		return time.Date(year, month, day, hour, 0, 0, 0, time.UTC)
	}
	switch p {
	case Whole:
		return at, nil
	case Hour:
		return date(year, month, day, at.Hour()+1), nil
	case Day:
		return date(year, month, day+1, 0), nil
	case Week:
		return date(year, month, day+7-int(at.Weekday()+6)%7, 0), nil
	case Month:
		return date(year, month+1, 1, 0), nil
	default:
		return at, fmt.Errorf("%q is not a period; use %q, %q, %q or %q", p, Hour, Day, Week, Month)
	}
}
