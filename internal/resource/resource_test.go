package resource

import (
	"maps"
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

func drawAmounts(t *rapid.T, name string) Amounts {
	a := Amounts{Vector: drawVector(t, name)}
	for _, counter := range []string{"gpu/slices", "nic/vf"} {
		a.Devices = a.Devices.with(counter, rapid.Int64Range(0, 20).Draw(t, name))
	}
	return a
}

func TestAClaimThatIsSplitIsTheSameInAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one := drawAmounts(t, "one")
		counts := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 6).Draw(t, "counts")
		held := time.Duration(rapid.Int64Range(0, 1<<50).Draw(t, "held"))
		total, sum := 0, Amounts{}
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
		if !sum.Equal(one.Times(total)) {
			t.Fatalf("%v in parts %v is %v, in one %v", one, counts, sum, one.Times(total))
		}
		if whole.Add(sum, held); whole.classes != parts.classes || !maps.Equal(whole.devices, parts.devices) {
			t.Fatalf("%v for %s in parts is %v, in one %v", sum, held, parts, whole)
		}
	})
}

func TestCountersOfDevicesAddUpAsClassesDo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawAmounts(t, "a"), drawAmounts(t, "b")
		was := Amounts{a.Vector, maps.Clone(a.Devices)}
		if got := a.Plus(b).Beyond(b); !got.Equal(a) {
			t.Fatalf("%v plus %v beyond the same is %v", a, b, got)
		}
		if got := a.Beyond(b).Plus(b); !got.Equal(a.Max(b)) {
			t.Fatalf("%v beyond %v and with it is %v, the larger is %v", a, b, got, a.Max(b))
		}
		for counter := range a.Devices {
			if got, want := a.Max(b).Devices[counter], max(a.Devices[counter], b.Devices[counter]); got != want {
				t.Fatalf("the larger of %v and %v has %d %s, want %d", a, b, got, counter, want)
			}
		}
		for _, d := range []Devices{a.Beyond(b).Devices, a.Times(0).Devices, a.Times(-1).Devices, a.Max(b).Devices} {
			for counter, n := range d {
				if n <= 0 {
					t.Fatalf("of %v and %v, %d of %s are listed", a, b, n, counter)
				}
			}
		}
		if !a.Equal(was) {
			t.Fatalf("%v was changed to %v", was, a)
		}
	})
}

func TestWhatAPartTakesIsTheMostOfAnyDeviceOfItsClass(t *testing.T) {
	t.Parallel()
	devices := []api.Device{
		{ID: "gpu0", Class: "gpu", Counters: map[string]int64{"slices": 7, "memory": 40}, Ways: map[string]api.DeviceWay{
			"whole": {Takes: map[string]int64{"slices": 7, "memory": 40}}, "slice": {Takes: map[string]int64{"slices": 1}},
		}},
		{ID: "gpu1", Class: "gpu", Counters: map[string]int64{"slices": 4, "memory": 80}, Ways: map[string]api.DeviceWay{
			"whole": {Takes: map[string]int64{"slices": 4, "memory": 80}},
		}},
		{ID: "nic0", Class: "nic", Counters: map[string]int64{"slices": 3}, Ways: map[string]api.DeviceWay{"slice": {Takes: map[string]int64{"slices": 2}}}},
	}
	parts := PartsOf(func(yield func(*api.Device) bool) {
		for i := range devices {
			if !yield(&devices[i]) {
				return
			}
		}
	})
	asks := func(requests ...api.DeviceRequest) *api.Group {
		return &api.Group{Shape: api.Shape{Cores: 2}, Devices: requests}
	}
	for name, tt := range map[string]struct {
		got, want Devices
	}{
		"a whole device": {OfMember(asks(api.DeviceRequest{Class: "gpu", Way: "whole", Count: 1}), parts).Devices, Devices{"gpu/slices": 7, "gpu/memory": 80}},
		"three slices of two kinds": {
			OfMember(asks(api.DeviceRequest{Class: "gpu", Way: "slice", Count: 3}, api.DeviceRequest{Class: "nic", Way: "slice", Count: 3}), parts).Devices,
			Devices{"gpu/slices": 3, "nic/slices": 6},
		},
		"a class that is not there":      {OfMember(asks(api.DeviceRequest{Class: "fpga", Way: "whole", Count: 1}), parts).Devices, nil},
		"two members and a spare":        {OfGroup(asks(api.DeviceRequest{Class: "gpu", Way: "slice", Count: 1}), 2, 1, parts).Devices, Devices{"gpu/slices": 2}},
		"all that the devices have":      {OfDevices(devices), Devices{"gpu/slices": 11, "gpu/memory": 120, "nic/slices": 3}},
		"an assignment of a part of one": {OfAssignment(&api.Assignment{Devices: []api.DeviceClaim{{Class: "gpu", Takes: map[string]int64{"slices": 2}}, {Class: "gpu", Takes: map[string]int64{"slices": 1}}}}).Devices, Devices{"gpu/slices": 3}},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if got := OfGroup(asks(), 2, 1, parts).Vector; got != (Vector{Members: 3, Cores: 6}) {
		t.Errorf("two members and a spare are %v", got)
	}
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
	if v := OfMember(&api.Group{Shape: api.Shape{Cores: -1, Memory: -1}}, nil); v.Vector != (Vector{Members: 1}) || v.Devices != nil {
		t.Errorf("a negative shape is %v, want one member", v)
	}
}

func TestUseIsExactBeyond64Bits(t *testing.T) {
	t.Parallel()
	var use Use
	century := 100 * 365 * 24 * time.Hour
	for range 10 {
		use.Add(Amounts{Vector{Memory: 1 << 40, Cores: 1}, Devices{"gpu/memory": 1 << 40}}, century)
	}
	want := new(big.Int).Mul(big.NewInt(10<<40), big.NewInt(int64(century)))
	if got := use.Of(Memory).Over(big.NewInt(1)); use.Devices()["gpu/memory"] != use.Of(Memory) || got.Cmp(new(big.Rat).SetInt(want)) != 0 {
		t.Errorf("got %s byte-nanoseconds, want %s", got, want)
	}
	if got := use.Of(Cores).Seconds(); got != 10*century.Seconds() {
		t.Errorf("got %g core-seconds, want %g", got, 10*century.Seconds())
	}
}

func TestALimitStopsOnlyWhatAddsToIt(t *testing.T) {
	t.Parallel()
	limit := Limit{Vector{Members: 4, Cores: 8}, Devices{"gpu/slices": 7, "gpu/memory": 80}}
	classes := func(v Vector) Amounts { return Amounts{Vector: v} }
	devices := func(d Devices) Amounts { return Amounts{Devices: d} }
	for _, tt := range []struct {
		name      string
		used, add Amounts
		want      []string
	}{
		{"exactly full", classes(Vector{Members: 3, Cores: 6}), classes(Vector{Members: 1, Cores: 2}), nil},
		{"one too many of both", classes(Vector{Members: 4, Cores: 8}), classes(Vector{Members: 1, Cores: 1}), []string{"members", "cores"}},
		{"over already, adding nothing to it", classes(Vector{Cores: 20}), classes(Vector{Members: 1}), nil},
		{"a class without a limit", classes(Vector{}), classes(Vector{Memory: 1 << 60, Clusters: 9}), nil},
		{"a sum that overflows", classes(Vector{Cores: math.MaxInt64}), classes(Vector{Cores: math.MaxInt64}), []string{"cores"}},
		{"exactly full of devices", devices(Devices{"gpu/slices": 3}), devices(Devices{"gpu/slices": 4}), nil},
		{"one slice too many", devices(Devices{"gpu/slices": 4}), devices(Devices{"gpu/slices": 4, "gpu/memory": 80}), []string{"gpu/slices"}},
		{"too much of both counters", devices(Devices{"gpu/slices": 4}), devices(Devices{"gpu/slices": 4, "gpu/memory": 81}), []string{"gpu/memory", "gpu/slices"}},
		{"too many devices already, adding none", devices(Devices{"gpu/slices": 20}), devices(Devices{"gpu/memory": 1}), nil},
		{"a counter without a limit", classes(Vector{}), devices(Devices{"nic/vf": 1 << 60}), nil},
		{"a sum of devices that overflows", devices(Devices{"gpu/slices": math.MaxInt64}), devices(Devices{"gpu/slices": math.MaxInt64}), []string{"gpu/slices"}},
		{"a class and a counter", classes(Vector{Cores: 8}), Amounts{Vector{Cores: 1}, Devices{"gpu/slices": 8}}, []string{"cores", "gpu/slices"}},
	} {
		var names []string
		for _, u := range limit.Exceeded(tt.used, tt.add) {
			names = append(names, u.String())
		}
		if diff := cmp.Diff(tt.want, names); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestAmountsReadAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	v := Vector{Memory: 3 << 29, Cores: 8, Members: 1}
	for got, want := range map[string]string{
		v.String(): "1 member, 8 cores, 1536MiB of memory", Vector{}.String(): "nothing", Cores.Text(1): "1 core", Cores.Number(8): "8",
		Unit{class: Memory}.Text(1 << 30): "1GiB of memory", Unit{counter: "gpu/slices"}.Text(3): "3 gpu/slices", Unit{counter: "gpu/slices"}.Number(3): "3",
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
	q := api.Quota{Clusters: 1, Members: 2, Cores: 3, Memory: 4, Devices: map[string]int64{"gpu/slices": 5}}
	if diff := cmp.Diff(q, OfQuota(q).Quota()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
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
	if got, want := OfAssignment(&member).Plus(OfAssignment(&part)), (Amounts{Vector: Vector{Members: 1, Cores: 2, Memory: 12}}); !got.Equal(want) {
		t.Errorf("a member with a part holds %v, want %v", got, want)
	}
}
