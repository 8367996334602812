package diskspace

import "testing"

const mib = 1 << 20

func TestOutputIsRefusedBeforeRequestsAndRequestsBeforeTheStoreSuffers(t *testing.T) {
	l := levelsOf(100 << 30)
	for _, c := range []struct {
		name             string
		free             int64
		held             int64
		output, requests bool
	}{
		{"plenty is free, the reserve is whole", 10 << 30, l.held, true, true},
		{"less is free than output must leave", 200 * mib, l.held, false, true},
		{"less is free than requests must leave", 100 * mib, l.held, false, false},
		{"what is free was given back by the reserve", 256 * mib, 0, false, false},
		{"half of what is free was given back by the reserve", 300 * mib, l.held - 150*mib, false, true},
	} {
		if got := c.free >= l.kept(Output, c.held); got != c.output {
			t.Errorf("%s: output is allowed: %t, want %t", c.name, got, c.output)
		}
		if got := c.free >= l.kept(Requests, c.held); got != c.requests {
			t.Errorf("%s: requests are allowed: %t, want %t", c.name, got, c.requests)
		}
	}
}

func TestTheReserveGivesWhatIsNeededAndTakesWhatIsPlentiful(t *testing.T) {
	l := levelsOf(100 << 30)
	for _, c := range []struct {
		name       string
		free, held int64
		need       int64
		want       int64
	}{
		{"a new disk", 50 << 30, 0, l.low, 256 * mib},
		{"a whole reserve stays", 50 << 30, 256 * mib, l.low, 256 * mib},
		{"little is free, but enough", 40 * mib, 256 * mib, l.low, 256 * mib},
		{"too little is free", 10 * mib, 256 * mib, l.low, 256*mib - 54*mib},
		{"nothing is free at a start", 0, 256 * mib, roomToStart, 128 * mib},
		{"nothing is free and little is left", 0, 10 * mib, l.low, 0},
		{"what was given back is not taken from the store", 128 * mib, 128 * mib, l.low, 128 * mib},
		{"what others freed is taken", 200 * mib, 128 * mib, l.low, 168 * mib},
	} {
		d := disk{total: 100 << 30, free: c.free}
		got := l.reserve(d, c.held, c.need)
		if got != c.want {
			t.Errorf("%s: %d MiB, want %d", c.name, got>>20, c.want>>20)
		}
		// What it takes or gives must not make it give or take at the next look.
		after := disk{total: d.total, free: c.free + c.held - got}
		if again := l.reserve(after, got, l.low); again != got {
			t.Errorf("%s: it swings from %d to %d MiB", c.name, got>>20, again>>20)
		}
	}
}

func TestSmallDisksKeepLess(t *testing.T) {
	if l := levelsOf(512 * mib); l.held != 64*mib || l.requests != 32*mib {
		t.Errorf("of 512 MiB: %+v", l)
	}
}
