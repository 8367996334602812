package energy

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func sumOf(p Parts) int64 {
	sum := p.Idle + p.Unattributed
	for _, part := range p.Members {
		sum += part
	}
	return sum
}

func TestPartsAddUpToTheEnergyWhateverTheClocksSay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.OneOf(rapid.Int64Range(-10, 1e12), rapid.Int64Range(0, math.MaxInt64/64), rapid.SampledFrom([]int64{0, 1, -1}))
		u := Use{Capacity: some.Draw(t, "capacity"), Busy: some.Draw(t, "busy"), Members: map[string]int64{}}
		for n := range rapid.IntRange(0, 20).Draw(t, "members") {
			u.Members[fmt.Sprint("m", n)] = some.Draw(t, "worked")
		}
		energy := rapid.OneOf(rapid.Int64Range(0, 1e9), rapid.Int64Range(0, math.MaxInt64)).Draw(t, "energy")
		parts := Split(energy, u)
		if got := sumOf(parts); got != energy {
			t.Fatalf("the parts of %d uJ by %+v add up to %d: %+v", energy, u, got, parts)
		}
		for id, part := range parts.Members {
			if part < 0 {
				t.Fatalf("member %s has %d uJ", id, part)
			}
		}
		if parts.Idle < 0 || parts.Unattributed < 0 {
			t.Fatalf("a part is negative: %+v", parts)
		}
	})
}

func TestAMemberGetsThePartOfTheCapacityThatItWorked(t *testing.T) {
	t.Parallel()
	parts := Split(1000, Use{Capacity: 100, Busy: 60, Members: map[string]int64{"busy": 50, "idle": 0}})
	if parts.Members["busy"] != 500 || parts.Members["idle"] != 0 || parts.Idle != 400 || parts.Unattributed != 100 {
		t.Errorf("got %+v; want half for the busy member, 400 idle, and 100 for what worked for nobody", parts)
	}
}

func TestMembersThatWorkedMoreThanThereIsRoomForShareAll(t *testing.T) {
	t.Parallel()
	parts := Split(900, Use{Capacity: 100, Busy: 90, Members: map[string]int64{"a": 100, "b": 200}})
	if parts.Members["a"] != 300 || parts.Members["b"] != 600 || parts.Idle != 0 || parts.Unattributed != 0 {
		t.Errorf("got %+v; want 300 and 600", parts)
	}
}

func TestWhatIsDividedAmongJobsAddsUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		amount, n := rapid.Int64Range(0, math.MaxInt64).Draw(t, "amount"), rapid.IntRange(1, 50).Draw(t, "jobs")
		left := amount
		for _, part := range evenly(amount, n) {
			if part < 0 || part-amount/int64(n) > 1 {
				t.Fatalf("a part of %d among %d is %d", amount, n, part)
			}
			left -= part
		}
		if left != 0 {
			t.Fatalf("%d of %d is lost among %d jobs", left, amount, n)
		}
	})
}

func BenchmarkSplit(b *testing.B) {
	u := Use{Capacity: 128 * 5e9, Busy: 100 * 5e9, Members: map[string]int64{}}
	for n := range 64 {
		u.Members[fmt.Sprint("m", n)] = int64(n) * 1e9
	}
	for b.Loop() {
		Split(3e9, u)
	}
}
