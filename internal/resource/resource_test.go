package resource

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
)

func drawVector(t *rapid.T, name string) Vector {
	var v Vector
	for c := range v {
		v[c] = rapid.Int64Range(0, 20).Draw(t, name)
	}
	return v
}

func TestWhatIsAddedCanBeTakenAgainAndWhatIsNotThereCanNot(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawVector(t, "a"), drawVector(t, "b")
		if got, err := a.Plus(b).Minus(b); err != nil || got != a {
			t.Fatalf("%v plus %v minus the same is %v, %v", a, b, got, err)
		}
		left, err := a.Minus(b)
		if (err == nil) != b.Fits(a) {
			t.Fatalf("%v minus %v: %v, but fits is %t", a, b, err, b.Fits(a))
		}
		if err == nil && left.Plus(b) != a {
			t.Fatalf("%v minus %v is %v, which with it is %v", a, b, left, left.Plus(b))
		}
		for c, n := range a.Beyond(b) {
			if n < 0 || n > 0 && n+b[c] != a[c] || n == 0 && a[c] > b[c] {
				t.Fatalf("%v beyond %v is %v", a, b, a.Beyond(b))
			}
		}
	})
}

func TestWhatFitsFitsInMoreRoomAndLessOfItFits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		need, room, more := drawVector(t, "need"), drawVector(t, "room"), drawVector(t, "more")
		class, short := need.Short(room)
		if short && need[class] <= room[class] {
			t.Fatalf("%v in %v: %s is not short", need, room, class)
		}
		if short == need.Fits(room) {
			t.Fatalf("%v in %v: short and fitting", need, room)
		}
		if need.Fits(room) && (!need.Fits(room.Plus(more)) || !need.Beyond(more).Fits(room)) {
			t.Fatalf("%v fits in %v, but not in %v more, or not less %v", need, room, more, more)
		}
		if !need.Fits(need.Max(room)) || !room.Fits(need.Max(room)) {
			t.Fatalf("the larger of %v and %v is %v", need, room, need.Max(room))
		}
	})
}

func TestAClaimThatIsSplitIsTheSameInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one := drawVector(t, "one")
		counts := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 6).Draw(t, "counts")
		held := time.Duration(rapid.Int64Range(0, 1<<50).Draw(t, "held"))
		total, sum := 0, Vector{}
		var parts, whole Use
		order := rand.New(rand.NewPCG(1, rapid.Uint64().Draw(t, "order"))).Perm(len(counts))
		for _, i := range order {
			total += counts[i]
			sum = sum.Plus(one.Times(counts[i]))
			cut := time.Duration(rapid.Int64Range(0, int64(held)).Draw(t, "cut"))
			var first, second Use
			first.Add(one.Times(counts[i]), cut)
			second.Add(one.Times(counts[i]), held-cut)
			parts.Plus(&second)
			parts.Plus(&first)
		}
		if sum != one.Times(total) {
			t.Fatalf("%v in parts %v is %v, in one %v", one, counts, sum, one.Times(total))
		}
		if whole.Add(sum, held); whole != parts {
			t.Fatalf("%v for %s in parts is %v, in one %v", sum, held, parts, whole)
		}
	})
}

func TestSumsThatOverflowFitNowhere(t *testing.T) {
	t.Parallel()
	huge := Vector{Memory: math.MaxInt64/2 + 1}
	for name, v := range map[string]Vector{"sum": huge.Plus(huge), "product": huge.Times(2), "large product": huge.Times(math.MaxInt)} {
		if v[Memory] != math.MaxInt64 {
			t.Errorf("%s: got %d bytes, want the largest number", name, v[Memory])
		}
	}
	if v := huge.Times(-1); v != (Vector{}) {
		t.Errorf("a negative number of times is %v, want nothing", v)
	}
	if v := OfMember(api.Shape{Cores: -1, Memory: -1}); v != (Vector{Members: 1}) {
		t.Errorf("a negative shape is %v, want one member", v)
	}
}

func TestUseIsExactBeyond64Bits(t *testing.T) {
	t.Parallel()
	var use Use
	century := 100 * 365 * 24 * time.Hour
	for range 10 {
		use.Add(Vector{Memory: 1 << 40, Cores: 1}, century)
	}
	want := new(big.Int).Mul(big.NewInt(10<<40), big.NewInt(int64(century)))
	if got := use[Memory].Over(big.NewInt(1)); got.Cmp(new(big.Rat).SetInt(want)) != 0 {
		t.Errorf("got %s byte-nanoseconds, want %s", got, want)
	}
	if got := use[Cores].Seconds(); got != 10*century.Seconds() {
		t.Errorf("got %g core-seconds, want %g", got, 10*century.Seconds())
	}
}

func TestALimitStopsOnlyWhatAddsToIt(t *testing.T) {
	t.Parallel()
	limit := Limit{Members: 4, Cores: 8}
	for _, tt := range []struct {
		name      string
		used, add Vector
		want      []Class
	}{
		{"exactly full", Vector{Members: 3, Cores: 6}, Vector{Members: 1, Cores: 2}, nil},
		{"one too many of both", Vector{Members: 4, Cores: 8}, Vector{Members: 1, Cores: 1}, []Class{Members, Cores}},
		{"over already, adding nothing to it", Vector{Cores: 20}, Vector{Members: 1}, nil},
		{"a class without a limit", Vector{}, Vector{Memory: 1 << 60, Clusters: 9}, nil},
		{"a sum that overflows", Vector{Cores: math.MaxInt64}, Vector{Cores: math.MaxInt64}, []Class{Cores}},
	} {
		if diff := cmp.Diff(tt.want, limit.Exceeded(tt.used, tt.add)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestAmountsReadAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	v := Vector{Memory: 3 << 29, Cores: 8, Members: 1}
	for got, want := range map[string]string{
		v.String(): "1 member, 8 cores, 1536MiB of memory", Vector{}.String(): "nothing", Cores.Text(1): "1 core", Cores.Number(8): "8",
		Memory.Number(2 << 30): "2GiB", Clusters.Text(0): "0 clusters",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	_, err := Vector{Cores: 1}.Minus(Vector{Cores: 3})
	if want := "3 cores can't be taken from 1 core"; err == nil || err.Error() != want {
		t.Errorf("got error %v, want %q", err, want)
	}
	for c := range classes {
		if c.String() == classes.String() || c.String() == "" {
			t.Errorf("class %d has no name", c)
		}
	}
}

func TestAQuotaIsTheSameThereAndBack(t *testing.T) {
	t.Parallel()
	q := api.Quota{Clusters: 1, Members: 2, Cores: 3, Memory: 4}
	if got := OfQuota(q).Quota(); got != q {
		t.Errorf("got %+v, want %+v", got, q)
	}
	groups := []api.Group{{Size: 2, Shape: api.Shape{Cores: 3, Memory: 5}}, {Size: 1, Shape: api.Shape{Cores: 1}}}
	if got, want := OfGroups(groups), (Vector{Cores: 7, Memory: 10}); got != want {
		t.Errorf("groups: got %v, want %v", got, want)
	}
}

func TestAPartCountsNoMemberOfTheQuota(t *testing.T) {
	t.Parallel()
	member := api.Assignment{ID: "u.c-0.1", Slots: []int{0, 1}, Memory: []api.MemoryClaim{{Bytes: 5}}}
	part := api.Assignment{ID: "u.c-0.1-d0", Of: member.ID, Memory: []api.MemoryClaim{{Bytes: 7}}}
	if got, want := OfAssignment(&member).Plus(OfAssignment(&part)), (Vector{Members: 1, Cores: 2, Memory: 12}); got != want {
		t.Errorf("a member with a part holds %v, want %v", got, want)
	}
}
