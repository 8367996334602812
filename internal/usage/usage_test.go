package usage

import (
	"encoding/csv"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

var (
	midnight = time.Date(2026, 3, 30, 0, 0, 0, 0, time.UTC) // a Monday, two days before a month ends
	tick     = 10 * time.Minute
)

const ticks = 60

func at(n int) time.Time { return midnight.Add(time.Duration(n) * tick) }

// history draws an input whose times all lie on ticks.
func history(t *rapid.T) Input {
	draw := func(from, to int, what string) int { return rapid.IntRange(from, to).Draw(t, what) }
	in := Input{Now: at(draw(ticks/2, ticks, "now")), atOnce: draw(1, 12, "stretches at once")}
	var records []*api.UsageRecord
	node := func() string { return fmt.Sprint("n", draw(0, 2, "node")) }
	for n := range draw(1, 3, "nodes") {
		seq := int64(0)
		for begin := draw(0, 9, "first"); begin < ticks; {
			seq++
			end := begin + draw(1, 30, "length")
			s := &api.NodeSpan{
				Seq: seq, Node: fmt.Sprint("n", n), Cores: draw(0, 8, "cores"), MemoryBytes: int64(draw(0, 9, "memory")) << 40,
				Devices: gpuSlices(draw(0, 7, "slices")), Down: draw(0, 3, "down") == 0, From: at(begin),
			}
			if end < ticks {
				to := at(end)
				s.To = &to
			}
			in.Nodes = append(in.Nodes, s)
			begin = end + draw(0, 2, "gap")
		}
	}
	for c := range draw(0, 4, "clusters") {
		uid, project, user := fmt.Sprint("u", c), []string{"", "default", "physics"}[draw(0, 2, "project")], fmt.Sprint("user", draw(0, 1, "user"))
		r := &api.UsageRecord{UID: uid, Cluster: "c" + uid, Project: project, User: user}
		for range draw(0, 4, "spans") {
			begin := draw(0, ticks-1, "from")
			r.Spans = append(r.Spans, api.UsageSpan{
				Kind: []api.SpanKind{api.SpanAllocated, api.SpanCleaning}[draw(0, 1, "kind")], Node: node(),
				From: at(begin), To: at(draw(begin, ticks, "to")), Members: draw(0, 3, "members"), Cores: draw(0, 5, "cores"),
				MemoryBytes: int64(draw(0, 5, "memory")) << 38, Devices: gpuSlices(draw(0, 3, "slices")),
			})
		}
		records = append(records, r)
		for i := range draw(0, 3, "open") {
			open := Open{Cluster: "c" + uid, UID: uid, Project: project, User: user, Assignment: &api.Assignment{
				ID: fmt.Sprint(uid, i), Node: node(), Slots: make([]int, draw(1, 3, "slots")), Memory: []api.MemoryClaim{{Bytes: int64(i) << 30}},
				Of: []string{"", "m"}[draw(0, 1, "part")], Devices: []api.DeviceClaim{{Class: "gpu", Takes: map[string]int64{"slices": int64(draw(0, 3, "slices"))}}}, TakenAt: at(draw(0, ticks, "taken")),
			}}
			if draw(0, 1, "released") == 1 {
				since := at(draw(0, ticks, "since"))
				open.ReleasedAt = &since
			}
			in.Open = append(in.Open, open)
		}
	}
	in.Records = all(records...)
	return in
}

// all are records that can be read.
func all(records ...*api.UsageRecord) iter.Seq2[*api.UsageRecord, error] {
	return func(yield func(*api.UsageRecord, error) bool) {
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// gpuSlices are so many of the one counter of devices there is.
func gpuSlices(n int) map[string]int64 {
	if n == 0 {
		return nil
	}
	return map[string]int64{"gpu/slices": int64(n)}
}

// slicesFor are slices of GPUs over so many seconds.
func slicesFor(seconds float64) map[string]float64 { return map[string]float64{"gpu/slices": seconds} }

// holding is what is held, offered or free at one moment, by arithmetic of its own.
type holding struct{ members, cores, bytes, slices int64 }

func (h holding) plus(o holding) holding {
	return holding{h.members + o.members, h.cores + o.cores, h.bytes + o.bytes, h.slices + o.slices}
}

func (h holding) minus(o holding) holding {
	return holding{h.members - o.members, h.cores - o.cores, h.bytes - o.bytes, h.slices - o.slices}
}

// sum is an amount of ticks, by brute force.
type sum struct {
	members, cores, bytes, slices int64
	nodes                         *big.Rat
}

func (s *sum) add(h holding, nodeCores int64) {
	s.members, s.cores, s.bytes, s.slices = s.members+h.members, s.cores+h.cores, s.bytes+h.bytes, s.slices+h.slices
	if s.nodes == nil {
		s.nodes = new(big.Rat)
	}
	if h.cores != 0 {
		s.nodes.Add(s.nodes, big.NewRat(h.cores, nodeCores))
	}
}

// text is how amounts are compared: exact, in units of a tick.
func (s sum) text() string {
	if s.nodes == nil {
		s.nodes = new(big.Rat)
	}
	return fmt.Sprintf("%d members %d cores %d bytes %d slices %s nodes", s.members, s.cores, s.bytes, s.slices, s.nodes.RatString())
}

func textOf(a *amount) string {
	one := big.NewInt(int64(tick))
	nodes := new(big.Rat)
	for _, s := range a.nodes {
		nodes.Add(nodes, s.cores.Over(new(big.Int).Mul(one, big.NewInt(s.nodeCores))))
	}
	return fmt.Sprintf("%s members %s cores %s bytes %s slices %s nodes",
		a.use.Of(resource.Members).Over(one).RatString(), a.use.Of(resource.Cores).Over(one).RatString(), a.use.Of(resource.Memory).Over(one).RatString(),
		a.use.Devices()["gpu/slices"].Over(one).RatString(), nodes.RatString())
}

// bruteForce looks at every node at every tick.
func bruteForce(in Input, from, to int, periodOf func(int) int, by By) (rows map[rowKey]*sum, site map[int]*[5]sum) {
	rows, site = map[rowKey]*sum{}, map[int]*[5]sum{}
	covers := func(a, b time.Time, i int) bool { return !a.After(at(i)) && b.After(at(i)) }
	for i := from; i < to; i++ {
		period := periodOf(i)
		if site[period] == nil {
			site[period] = &[5]sum{}
		}
		for n := range 3 {
			name := fmt.Sprint("n", n)
			var offered, allocated, cleaning holding
			down := false
			type use struct {
				owner
				holding
			}
			var uses []use
			for _, s := range in.Nodes {
				if s.Node == name && (s.To == nil && !s.From.After(at(i)) || s.To != nil && covers(s.From, *s.To, i)) {
					offered = offered.plus(holding{0, int64(s.Cores), s.MemoryBytes, s.Devices["gpu/slices"]})
					down = down || s.Down
				}
			}
			_ = in.spans(func(o *owner, s *api.UsageSpan) bool {
				if s.Node != name || !covers(s.From, s.To, i) {
					return true
				}
				h := holding{int64(s.Members), int64(s.Cores), s.MemoryBytes, s.Devices["gpu/slices"]}
				if s.Kind == api.SpanAllocated {
					allocated = allocated.plus(h)
					uses = append(uses, use{o.as(by), h})
				} else {
					cleaning = cleaning.plus(h)
				}
				return true
			})
			used := allocated.plus(cleaning)
			all := holding{used.members, max(used.cores, offered.cores), max(used.bytes, offered.bytes), max(used.slices, offered.slices)}
			for _, u := range uses {
				key := rowKey{period, u.owner}
				if rows[key] == nil {
					rows[key] = &sum{}
				}
				rows[key].add(u.holding, all.cores)
			}
			free := 3
			if down && offered != (holding{}) {
				free = 4
			}
			p := site[period]
			p[0].add(all, all.cores)
			p[1].add(allocated, all.cores)
			p[2].add(cleaning, all.cores)
			p[free].add(all.minus(used), all.cores)
		}
	}
	return rows, site
}

func TestEveryTotalIsWhatCountingTickByTickGives(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := history(t)
		from := rapid.IntRange(0, ticks/2-1).Draw(t, "from")
		to := rapid.IntRange(from+1, ticks/2).Draw(t, "to")
		by := rapid.SampledFrom([]By{ByAll, ByCluster, ByUser, ByProject}).Draw(t, "by")
		period := rapid.SampledFrom([]Period{Whole, Hour}).Draw(t, "period")
		periodOf := func(i int) int {
			if period == Whole {
				return 0
			}
			return i/6 - from/6
		}
		got, err := add(&in, at(from), at(to), period, by)
		if err != nil {
			t.Fatal(err)
		}
		rows, site := bruteForce(in, from, to, periodOf, by)
		for key, want := range rows {
			row := got.rows[key]
			if row == nil {
				t.Fatalf("no row %+v, want %s", key, want.text())
			}
			if textOf(row) != want.text() {
				t.Fatalf("row %+v: got %s, want %s", key, textOf(row), want.text())
			}
		}
		if len(got.rows) != len(rows) {
			t.Fatalf("%d rows, want %d", len(got.rows), len(rows))
		}
		for period := range got.site {
			s := &got.site[period]
			for i, part := range []*amount{&s.capacity, &s.allocated, &s.cleaning, &s.idle, &s.down} {
				if want := site[period][i].text(); textOf(part) != want {
					t.Fatalf("period %d, part %d: got %s, want %s", period, i, textOf(part), want)
				}
			}
		}
	})
}

func TestCapacityIsConservedToTheNanosecond(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := history(t)
		// Times that lie on no tick, nor on a second.
		for _, s := range in.Nodes {
			s.From = s.From.Add(time.Duration(rapid.IntRange(-1e9, 1e9).Draw(t, "ns")))
		}
		from := midnight.Add(time.Duration(rapid.Int64Range(0, int64(ticks/2*tick)).Draw(t, "from")))
		to := from.Add(time.Duration(rapid.Int64Range(1, int64(ticks*tick)).Draw(t, "length")))
		got, err := add(&in, from, to, Hour, ByProject)
		if err != nil {
			t.Fatal(err)
		}
		var allocated, rows amount
		for i := range got.site {
			s := &got.site[i]
			var parts amount
			for _, part := range []*amount{&s.allocated, &s.cleaning, &s.idle, &s.down} {
				parts.plus(part)
			}
			if textOf(&parts) != textOf(&s.capacity) {
				t.Fatalf("period %d: the parts are %s, the capacity is %s", i, textOf(&parts), textOf(&s.capacity))
			}
			allocated.plus(&s.allocated)
		}
		for _, row := range got.rows {
			rows.plus(row)
		}
		if textOf(&rows) != textOf(&allocated) {
			t.Fatalf("the rows are %s, allocated is %s", textOf(&rows), textOf(&allocated))
		}
		// What readers see adds up, too, and rounding moves it by nothing that counts.
		for i, s := range got.round().Site {
			if !cmp.Equal(s.Capacity, s.Allocated.Plus(s.Cleaning).Plus(s.Idle).Plus(s.Down)) {
				t.Fatalf("rounded, the parts of %+v are not its capacity", s)
			}
			exact := got.site[i].capacity.seconds()
			if near := math.Abs(exact.CoreSeconds - s.Capacity.CoreSeconds); near > 1e-9 {
				t.Fatalf("rounded, the capacity is %g, want %g", s.Capacity.CoreSeconds, exact.CoreSeconds)
			}
		}
	})
}

func TestReportsOfAdjoiningTimesAddUpToThatOfTheWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := history(t)
		cutAt := rapid.Int64Range(1, int64(ticks*tick)-1).Draw(t, "cut")
		by := rapid.SampledFrom([]By{ByAll, ByCluster, ByUser, ByProject}).Draw(t, "by")
		report := func(from, to time.Time, period Period) *exact {
			sums, err := add(&in, from, to, period, by)
			if err != nil {
				t.Fatal(err)
			}
			return sums
		}
		middle := midnight.Add(time.Duration(cutAt))
		whole := report(midnight, at(ticks), Whole)
		for _, parts := range [][]*exact{
			{report(midnight, middle, Whole), report(middle, at(ticks), Whole)},
			{report(midnight, at(ticks), Hour)},
			{report(midnight, at(ticks), Day)},
		} {
			rows, capacity := map[owner]*amount{}, amount{}
			for _, part := range parts {
				for key, row := range part.rows {
					if rows[key.owner] == nil {
						rows[key.owner] = &amount{}
					}
					rows[key.owner].plus(row)
				}
				for i := range part.site {
					capacity.plus(&part.site[i].capacity)
				}
			}
			if len(rows) != len(whole.rows) {
				t.Fatalf("%d rows in parts, %d in the whole", len(rows), len(whole.rows))
			}
			for key, row := range whole.rows {
				if got := textOf(rows[key.owner]); got != textOf(row) {
					t.Fatalf("%+v: the parts are %s, the whole is %s", key.owner, got, textOf(row))
				}
			}
			if textOf(&capacity) != textOf(&whole.site[0].capacity) {
				t.Fatalf("capacity: the parts are %s, the whole is %s", textOf(&capacity), textOf(&whole.site[0].capacity))
			}
		}
	})
}

// example is a node of 4 cores that is up for two hours and down for one, and a cluster that held half of it for the first.
func example() Input {
	down, gone := at(12), at(18)
	return Input{
		Now: at(18),
		Records: all(&api.UsageRecord{
			Seq: 1, UID: "u1", Cluster: "physics.sim", Project: "physics", User: "eve", Spans: []api.UsageSpan{
				{Kind: api.SpanAllocated, Node: "n1", From: at(0), To: at(6), Members: 2, Cores: 2, MemoryBytes: 2048},
				{Kind: api.SpanAllocated, Node: "n2", From: at(0), To: at(6), Devices: gpuSlices(7)},
				{Kind: api.SpanCleaning, Node: "n1", From: at(6), To: at(6).Add(time.Second), Members: 2, Cores: 2, MemoryBytes: 2048},
			},
		}),
		Nodes: []*api.NodeSpan{
			{Seq: 1, Node: "n1", Cores: 4, MemoryBytes: 4096, From: at(0), To: &down},
			{Seq: 2, Node: "n1", Cores: 4, MemoryBytes: 4096, Down: true, From: down, To: &gone},
			{Seq: 1, Node: "n2", Devices: gpuSlices(14), From: at(0), To: &down},
		},
	}
}

func TestAReportSaysWhoUsedWhatInWhichUnits(t *testing.T) {
	t.Parallel()
	report, err := Report(example(), at(0), at(24), Whole, ByCluster)
	if err != nil {
		t.Fatal(err)
	}
	want := api.UsageReport{
		Rows: []api.UsageRow{{
			From: at(0), To: at(18), Project: "physics", User: "eve", Cluster: "physics.sim", UID: "u1",
			Amount: api.Amount{NodeSeconds: 1800, MemberSeconds: 7200, CoreSeconds: 7200, MemoryByteSeconds: 2048 * 3600, DeviceSeconds: slicesFor(7 * 3600)},
		}},
		Site: []api.SiteUsage{{
			From: at(0), To: at(18),
			Capacity:  api.Amount{NodeSeconds: 3 * 3600, MemberSeconds: 7202, CoreSeconds: 4 * 3 * 3600, MemoryByteSeconds: 4096 * 3 * 3600, DeviceSeconds: slicesFor(14 * 7200)},
			Allocated: api.Amount{NodeSeconds: 1800, MemberSeconds: 7200, CoreSeconds: 7200, MemoryByteSeconds: 2048 * 3600, DeviceSeconds: slicesFor(7 * 3600)},
			Cleaning:  api.Amount{NodeSeconds: 0.5, MemberSeconds: 2, CoreSeconds: 2, MemoryByteSeconds: 2048},
			Idle: api.Amount{
				NodeSeconds: 2*3600 - 1800.5, CoreSeconds: 4*2*3600 - 7202, MemoryByteSeconds: 4096*2*3600 - 2048*3601, DeviceSeconds: slicesFor(7*3600 + 14*3600),
			},
			Down: api.Amount{NodeSeconds: 3600, CoreSeconds: 4 * 3600, MemoryByteSeconds: 4096 * 3600},
		}},
	}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	other := example()
	other.Project = "chemistry"
	if report, err := Report(other, at(0), at(18), Day, ByUser); err != nil || len(report.Rows) != 0 {
		t.Errorf("rows of another project: %+v, %v, want none", report.Rows, err)
	}
}

func TestPeriodsAreThoseOfTheCalendar(t *testing.T) {
	t.Parallel()
	day := func(month time.Month, d, hour int) time.Time {
		return time.Date(2026, month, d, hour, 0, 0, 0, time.UTC)
	}
	begin := day(3, 29, 22).Add(30 * time.Minute) // a Sunday
	for _, tt := range []struct {
		period Period
		to     time.Time
		want   []time.Time
	}{
		{Whole, day(5, 1, 0), nil},
		{Hour, day(3, 30, 1), []time.Time{day(3, 29, 23), day(3, 30, 0)}},
		{Day, day(4, 1, 1), []time.Time{day(3, 30, 0), day(3, 31, 0), day(4, 1, 0)}},
		{Week, day(4, 7, 0), []time.Time{day(3, 30, 0), day(4, 6, 0)}},
		{Month, day(5, 1, 0), []time.Time{day(4, 1, 0)}},
	} {
		got, err := cut(begin, tt.to, tt.period)
		want := append(append([]time.Time{begin}, tt.want...), tt.to)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v, -want +got:\n%s", tt.period, err, diff)
		}
	}
}

func TestAReportThatMakesNoSenseIsRefusedWithWhatToDo(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		from, to time.Time
		period   Period
		by       By
		want     string
	}{
		{"no time", at(1), at(1), Whole, ByAll, "not after its start"},
		{"backwards", at(2), at(1), Whole, ByAll, "not after its start"},
		{"the future", at(30), at(40), Whole, ByAll, "not after its start"},
		{"no beginning", time.Time{}, at(1), Whole, ByAll, "outside the years 1970 to 2200"},
		{"another period", at(1), at(2), "year", ByAll, `use "hour"`},
		{"another key", at(1), at(2), Whole, "node", `use "cluster"`},
		{"too fine", at(1).AddDate(-2, 0, 0), at(2), Hour, ByAll, "choose longer periods"},
	} {
		if _, err := Report(example(), tt.from, tt.to, tt.period, tt.by); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}

func TestARecordThatCantBeReadIsNoFaultOfTheQuestion(t *testing.T) {
	t.Parallel()
	in := example()
	broken := errors.New("the disk is gone")
	in.Records = func(yield func(*api.UsageRecord, error) bool) { yield(nil, broken) }
	if _, err := Report(in, at(0), at(1), Whole, ByAll); !errors.Is(err, ErrRecords) || !errors.Is(err, broken) {
		t.Errorf("%v, want ErrRecords and the cause", err)
	}
	if _, err := Report(example(), at(1), at(0), Whole, ByAll); err == nil || errors.Is(err, ErrRecords) {
		t.Errorf("a wrong question: %v, want another error", err)
	}
}

func TestALongReportIsMadeInPartsAndTheLargestMomentInOne(t *testing.T) {
	t.Parallel()
	in := year(200)
	records, passes := in.Records, 0
	in.Records = func(yield func(*api.UsageRecord, error) bool) {
		passes++
		records(yield)
	}
	want, err := Report(in, midnight, in.Now, Month, ByUser)
	if err != nil || passes != 1 {
		t.Fatalf("%v after the records were gone through %d times, want once", err, passes)
	}
	for _, tt := range []struct{ atOnce, most int }{{400, 12}, {3, 3 * mostParts}} {
		in.atOnce, passes = tt.atOnce, 0
		got, err := Report(in, midnight, in.Now, Month, ByUser)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" || passes < 4 || passes > tt.most {
			t.Errorf("%d stretches at once: the records were gone through %d times, want 4 to %d; -want +got:\n%s", tt.atOnce, passes, tt.most, diff)
		}
	}
}

func TestTablesCarryTheirUnitsInTheHeader(t *testing.T) {
	t.Parallel()
	report, err := Report(example(), at(0), at(12), Hour, ByUser)
	if err != nil {
		t.Fatal(err)
	}
	report.Rows[0].User = `=cmd|"x", y`
	rows, err := CSV(report.Rows)
	if err != nil {
		t.Fatal(err)
	}
	want := "from,to,project,user,cluster,uid,node_seconds,member_seconds,core_seconds,memory_byte_seconds,gpu/slices_seconds,storage_byte_seconds\n" +
		"2026-03-30T00:00:00Z,2026-03-30T01:00:00Z,physics,\"'=cmd|\"\"x\"\", y\",,,1800,7200,7200,7372800,25200,0\n"
	if string(rows) != want {
		t.Errorf("got\n%s\nwant\n%s", rows, want)
	}
	site, err := SiteCSV(report.Site)
	if err != nil {
		t.Fatal(err)
	}
	records, err := csv.NewReader(strings.NewReader(string(site))).ReadAll()
	if err != nil || len(records) != 3 || len(records[0]) != 27 {
		t.Fatalf("%v: %d records, want a header and 2 rows of 27 fields:\n%s", err, len(records), site)
	}
	if records[0][2] != "capacity_node_seconds" || records[1][2] != "3600" || records[0][24] != "down_core_seconds" || records[2][24] != "0" ||
		records[0][11] != "allocated_gpu/slices_seconds" || records[1][11] != "25200" || records[2][11] != "0" {
		t.Errorf("got\n%s", site)
	}
}

// year is the use of a year: clusters of 8 members on 100 nodes, each for some hours.
func year(clusters int) Input {
	in := Input{Now: midnight.AddDate(1, 0, 0)}
	for n := range 100 {
		in.Nodes = append(in.Nodes, &api.NodeSpan{Seq: 1, Node: fmt.Sprint("n", n), Cores: 64, MemoryBytes: 1 << 40, From: midnight})
	}
	var records []*api.UsageRecord
	for c := range clusters {
		from := midnight.Add(time.Duration(c) * 8000 * time.Hour / time.Duration(clusters))
		r := &api.UsageRecord{Seq: 1, UID: fmt.Sprint(c), Cluster: fmt.Sprint("c", c), Project: fmt.Sprint("p", c%10), User: fmt.Sprint("u", c%100)}
		for i := range 8 {
			r.Spans = append(r.Spans, api.UsageSpan{
				Kind: api.SpanAllocated, Node: fmt.Sprint("n", (c+i)%100), From: from, To: from.Add(time.Hour), Members: 1, Cores: 4, MemoryBytes: 1 << 34,
			})
		}
		records = append(records, r)
	}
	in.Records = all(records...)
	return in
}

func BenchmarkReportOfAYear(b *testing.B) {
	in := year(10_000)
	for b.Loop() {
		if _, err := Report(in, midnight, in.Now, Month, ByCluster); err != nil {
			b.Fatal(err)
		}
	}
}

func TestWhatIsHeldNowCountsUpToNow(t *testing.T) {
	t.Parallel()
	released := at(4)
	a := &api.Assignment{Node: "n1", Slots: []int{0}, TakenAt: at(1)}
	in := Input{Now: at(7), Open: []Open{{UID: "u1", Assignment: a}, {UID: "u2", Assignment: a, ReleasedAt: &released}}}
	report, err := Report(in, at(0), at(24), Whole, ByCluster)
	if err != nil {
		t.Fatal(err)
	}
	seconds := tick.Seconds()
	if len(report.Rows) != 1 || report.Rows[0].UID != "u1" || report.Rows[0].CoreSeconds != 6*seconds {
		t.Errorf("rows %+v, want 6 ticks of u1 only: the time before its release is written down already", report.Rows)
	}
	if s := report.Site[0]; s.Allocated.CoreSeconds != 6*seconds || s.Cleaning.CoreSeconds != 3*seconds {
		t.Errorf("allocated %g s, cleaning %g s; want 6 and 3 ticks", s.Allocated.CoreSeconds, s.Cleaning.CoreSeconds)
	}
}
