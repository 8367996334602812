package device

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var (
	plain = &Kind{Name: "root"}
	// gpu is one that can be handed out whole, in MIG slices or shared; a slice of memory and one of multiprocessors make the smallest profile.
	gpu = &Kind{Name: "gpu", Has: Counters{"memory_slices": 8, "multiprocessors": 7}, Ways: map[string]Way{
		"whole":  {Mode: "whole", Takes: Counters{"memory_slices": 8, "multiprocessors": 7}},
		"1g":     {Mode: "mig", Takes: Counters{"memory_slices": 1, "multiprocessors": 1}},
		"1g-2m":  {Mode: "mig", Takes: Counters{"memory_slices": 2, "multiprocessors": 1}},
		"3g":     {Mode: "mig", Takes: Counters{"memory_slices": 4, "multiprocessors": 3}},
		"shared": {Mode: "shared", Takes: Counters{"memory_slices": 1}},
	}}
	// hca is an adapter whose functions share the bandwidth of the switch above them.
	hca = &Kind{Name: "hca", Has: Counters{"vf": 7}, Ways: map[string]Way{
		"pf": {Takes: Counters{"vf": 7, "bandwidth": 4}}, "vf": {Takes: Counters{"vf": 1, "bandwidth": 1}},
	}}
	pciSwitch = &Kind{Name: "switch", Has: Counters{"bandwidth": 10}}
)

func newTree(t interface{ Fatal(...any) }, kind *Kind, children ...*Device) *Tree {
	tree, err := NewTree(&Device{ID: "machine", Kind: kind, Children: children})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func many(kind *Kind, n int) []*Device {
	all := make([]*Device, n)
	for i := range all {
		all[i] = &Device{ID: fmt.Sprint(kind.Name, i), Kind: kind}
	}
	return all
}

func named(ids ...string) func(*Device) bool {
	return func(d *Device) bool { return slices.Contains(ids, d.ID) }
}

func TestRequestsGetDevicesOrTheCounterThatBinds(t *testing.T) {
	t.Parallel()
	gpus := newTree(t, plain, many(gpu, 2)...)
	taken := newTree(t, plain, many(gpu, 2)...)
	take(t, taken, Part{Device: "gpu0", Way: "1g"}, Part{Device: "gpu1", Way: "shared"})
	adapters := newTree(t, pciSwitch, many(hca, 2)...)
	port := &Kind{Name: "port", Ways: map[string]Way{"port": {Takes: Counters{"bandwidth": 2}}}}
	disk := &Kind{Name: "disk", Ways: map[string]Way{"disk": {Takes: Counters{"bandwidth": 3}}}}
	narrow, wide := &Kind{Name: "narrow", Has: Counters{"bandwidth": 3}}, &Kind{Name: "wide", Has: Counters{"bandwidth": 4}}
	unlike := newTree(t, plain,
		&Device{ID: "narrow", Kind: narrow, Children: append(many(disk, 3), &Device{ID: "port0", Kind: port})},
		&Device{ID: "wide", Kind: wide, Children: []*Device{{ID: "port1", Kind: port}}})
	tests := []struct {
		name     string
		tree     *Tree
		requests []Request
		want     string
	}{
		{"equal ports under unlike switches", unlike, []Request{{Way: "port", Count: 1}, {Way: "disk", Count: 1}}, "port1/port | disk0/disk"},
		{"two whole devices", gpus, []Request{{Way: "whole", Count: 2}}, "gpu0/whole gpu1/whole"},
		{
			"a third is refused", gpus,
			[]Request{{Way: "whole", Count: 2}, {Way: "whole", Count: 1}},
			"1 memory_slices multiprocessors",
		},
		{
			"slices leave the other device whole", gpus,
			[]Request{{Way: "1g", Count: 3}, {Way: "whole", Count: 1}},
			"gpu1/1g gpu1/1g gpu1/1g | gpu0/whole",
		},
		{"uneven slices", gpus, []Request{{Way: "3g", Count: 5}}, "0 memory_slices multiprocessors"},
		{
			"the seventh slice has no memory left beside larger ones", newTree(t, plain, many(gpu, 1)...),
			[]Request{{Way: "1g-2m", Count: 3}, {Way: "1g", Count: 3}},
			"1 memory_slices",
		},
		{"slices go beside slices, not beside shares", taken, []Request{{Way: "1g", Count: 2}}, "gpu0/1g gpu0/1g"},
		{"shares go beside shares", taken, []Request{{Way: "shared", Count: 1}}, "gpu1/shared"},
		{"only the mode stands against it", taken, []Request{{Way: "1g", Count: 1, Suits: named("gpu1")}}, "0 mode"},
		{
			"functions share the switch above them", adapters,
			[]Request{{Way: "vf", Count: 6}, {Way: "pf", Count: 1}},
			"hca1/vf hca1/vf hca1/vf hca1/vf hca1/vf hca1/vf | hca0/pf",
		},
		{"too many functions for the switch", adapters, []Request{{Way: "vf", Count: 11}}, "0 bandwidth"},
		{"the eighth function of one adapter", adapters, []Request{{Way: "vf", Count: 8, Suits: named("hca0")}}, "0 vf"},
		{"nothing has the way", adapters, []Request{{Way: "vf", Count: 1}, {Way: "whole", Count: 1}}, "1 "},
		{"nothing is asked for", adapters, nil, ""},
		{"no parts are asked for", adapters, []Request{{Way: "vf"}}, ""},
	}
	for _, tt := range tests {
		before := slices.Clone(tt.tree.free)
		parts, refusal := tt.tree.Place(tt.requests)
		if got := textOf(parts, refusal); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		if diff := cmp.Diff(before, tt.tree.free); diff != "" {
			t.Errorf("%s: the tree has changed:\n%s", tt.name, diff)
		}
	}
}

// textOf writes an answer: the devices by request, or the request and the counter of the refusal.
func textOf(parts [][]Part, r *Refusal) string {
	if r != nil {
		return fmt.Sprintf("%d %s", r.Request, strings.Join(r.Counters, " "))
	}
	lists := make([]string, len(parts))
	for i, list := range parts {
		texts := make([]string, len(list))
		for k, p := range list {
			texts[k] = p.Device + "/" + p.Way
		}
		lists[i] = strings.Join(texts, " ")
	}
	return strings.Join(lists, " | ")
}

func TestARefusalNamesTheDevicesAndWhatIsFree(t *testing.T) {
	t.Parallel()
	gpus := newTree(t, plain, many(gpu, 2)...)
	take(t, gpus, Part{Device: "gpu0", Way: "3g"}, Part{Device: "gpu1", Way: "3g"})
	_, r := gpus.Place([]Request{{Way: "whole", Count: 1}})
	want := `1 part "whole": too little is free of gpu0, gpu1: 8 of 16 memory_slices, 8 of 14 multiprocessors, their mode is another`
	if r == nil || r.Message != want {
		t.Errorf("got %v, want %q", r, want)
	}
	_, r = gpus.Place([]Request{{Way: "3g", Count: 1}, {Way: "1g", Count: 5, Suits: named("gpu1")}})
	if want := `5 parts "1g": too little is free of gpu1: 8 of 16 memory_slices, 8 of 14 multiprocessors`; r == nil || r.Error() != want {
		t.Errorf("got %v, want %q", r, want)
	}
}

func take(t interface{ Fatal(...any) }, tree *Tree, parts ...Part) {
	for _, p := range parts {
		if err := tree.Take(p); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatIsTakenIsGivenBackOnceAndNothingElse(t *testing.T) {
	t.Parallel()
	tree := newTree(t, pciSwitch, many(hca, 1)...)
	take(t, tree, Part{Device: "hca0", Way: "vf"})
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"the whole port beside a function", tree.Take(Part{Device: "hca0", Way: "pf"}), `device hca0 can't be handed out as "pf": 6 of vf are free, not 7`},
		{"an unknown device", tree.Take(Part{Device: "hca9", Way: "vf"}), "device hca9 is not in the machine's tree"},
		{"an unknown way", tree.Give(Part{Device: "hca0", Way: "mig"}), `device hca0 can't be handed out as "mig"`},
		{"a way that is not held", tree.Give(Part{Device: "hca0", Way: "pf"}), `nothing of device hca0 is held as "pf"`},
		{"what is held", tree.Give(Part{Device: "hca0", Way: "vf"}), ""},
		{"the same again", tree.Give(Part{Device: "hca0", Way: "vf"}), `nothing of device hca0 is held as "vf"`},
	} {
		if got := fmt.Sprint(tt.err); tt.want == "" && tt.err != nil || tt.want != "" && got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
	if n, ok := tree.Free("machine", "bandwidth"); !ok || n != 10 {
		t.Errorf("bandwidth of the switch: got %d, %t, want 10", n, ok)
	}
	if _, ok := tree.Free("hca0", "bandwidth"); ok {
		t.Error("the adapter has no bandwidth of its own")
	}
}

func TestATreeThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	for want, children := range map[string][]*Device{
		"device gpu0 appears twice in the machine's tree":                                                   append(many(gpu, 1), many(gpu, 1)...),
		`device hca0 can't be handed out as "pf": neither it nor a device above it has counter "bandwidth"`: many(hca, 1),
		`device x0 has -1 of counter "vf"`:                                                                  many(&Kind{Name: "x", Has: Counters{"vf": -1}}, 1),
		`device x0 can't be handed out as "w": a part would take 0 of counter "vf"`:                         many(&Kind{Name: "x", Has: Counters{"vf": 1}, Ways: map[string]Way{"w": {Takes: Counters{"vf": 0}}}}, 1),
	} {
		if _, err := NewTree(&Device{ID: "machine", Kind: plain, Children: children}); err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// drawTree draws a machine of up to two switches with up to two devices each, and one device beside them.
func drawTree(t *rapid.T) *Tree {
	number := func(low, high int, what string) int64 { return int64(rapid.IntRange(low, high).Draw(t, what)) }
	kinds := make([]*Kind, 2)
	for i := range kinds {
		kinds[i] = &Kind{Name: fmt.Sprint("k", i), Has: Counters{"a": number(1, 4, "a"), "b": number(0, 3, "b")}, Ways: map[string]Way{}}
		for _, name := range []string{"x", "y"} {
			way := Way{Mode: rapid.SampledFrom([]string{"", "", "m"}).Draw(t, "mode"), Takes: Counters{"a": number(1, 2, "takes a")}}
			if rapid.Bool().Draw(t, "takes b too") {
				way.Takes["b"] = number(1, 2, "takes b")
			}
			if rapid.Bool().Draw(t, "takes shared") {
				way.Takes["shared"] = number(1, 2, "takes shared")
			}
			kinds[i].Ways[name] = way
		}
	}
	machine := &Kind{Name: "machine", Has: Counters{"shared": number(1, 6, "shared of the machine")}}
	n := 0
	devices := func(most int) []*Device {
		all := make([]*Device, rapid.IntRange(0, most).Draw(t, "devices"))
		for i := range all {
			all[i] = &Device{ID: fmt.Sprint("d", n), Kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
			n++
		}
		return all
	}
	children := devices(1)
	for i := range rapid.IntRange(1, 2).Draw(t, "switches") {
		upper := &Kind{Name: "switch", Has: Counters{"shared": number(1, 4, "shared of a switch")}}
		children = append(children, &Device{ID: fmt.Sprint("s", i), Kind: upper, Children: devices(2)})
	}
	tree := newTree(t, machine, children...)
	for range rapid.IntRange(0, 2).Draw(t, "held") {
		if n > 0 {
			_ = tree.Take(Part{Device: fmt.Sprint("d", rapid.IntRange(0, n-1).Draw(t, "held device")), Way: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "held way"), Times: rapid.Int64Range(0, 2).Draw(t, "held times")})
		}
	}
	return tree
}

// byBruteForce tries every choice of a device for each part, and reports whether one fits. What it ignores never runs out.
func byBruteForce(tree *Tree, requests []Request, ignore ...string) bool {
	var ways []Request
	for _, r := range requests {
		for range r.Count {
			ways = append(ways, r)
		}
	}
	endless := map[int]int64{}
	for i, s := range tree.slots {
		if slices.Contains(ignore, s.counter) {
			endless[i] = tree.free[i]
			tree.free[i] = 1 << 20
		}
	}
	defer func() {
		for i, n := range endless {
			tree.free[i] = n
		}
	}()
	var try func(i int) bool
	try = func(i int) bool {
		if i == len(ways) {
			return true
		}
		for id := range tree.nodes {
			n := &tree.nodes[id]
			if _, has := n.device.Kind.Ways[ways[i].Way]; !has || ways[i].Suits != nil && !ways[i].Suits(n.device) {
				continue
			}
			mode := n.mode
			if slices.Contains(ignore, Mode) {
				n.mode = n.device.Kind.Ways[ways[i].Way].Mode
			}
			p := Part{n.device.ID, ways[i].Way, ways[i].Times}
			if tree.Take(p) == nil {
				ok := try(i + 1)
				if err := tree.Give(p); err != nil {
					panic(err)
				}
				n.mode = mode
				if ok {
					return true
				}
			}
			n.mode = mode
		}
		return false
	}
	return try(0)
}

func TestEveryAnswerIsThatOfBruteForce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tree := drawTree(t)
		requests := make([]Request, rapid.IntRange(1, 3).Draw(t, "requests"))
		for i := range requests {
			requests[i] = Request{Way: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "way"), Count: rapid.IntRange(0, 2).Draw(t, "count")}
			if rapid.IntRange(0, 2).Draw(t, "named") == 0 {
				requests[i].Suits = named("d0", fmt.Sprint("d", rapid.IntRange(1, 4).Draw(t, "which")))
			}
		}
		parts, refusal := tree.Place(requests)
		if possible := byBruteForce(tree, requests); possible != (refusal == nil) {
			t.Fatalf("possible: %t, got %s", possible, textOf(parts, refusal))
		}
		if refusal == nil {
			checkParts(t, tree, requests, parts)
			return
		}
		if !byBruteForce(tree, requests[:refusal.Request]) || byBruteForce(tree, requests[:refusal.Request+1]) {
			t.Fatalf("request %d is not the first that does not fit", refusal.Request)
		}
		up, counters := requests[:refusal.Request+1], refusal.Counters
		if len(refusal.Suitable) > 0 && !byBruteForce(tree, up, counters...) {
			t.Fatalf("%q do not bind: without them nothing fits either", counters)
		}
		for i := range counters {
			if byBruteForce(tree, up, slices.Delete(slices.Clone(counters), i, i+1)...) {
				t.Fatalf("%q bind without %q", counters, counters[i])
			}
		}
		for _, counter := range []string{"a", "b", "shared", Mode} {
			if len(counters) != 1 && byBruteForce(tree, up, counter) {
				t.Fatalf("%q binds alone, got %q", counter, counters)
			}
		}
	})
}

// checkParts takes what was chosen and gives it back.
func checkParts(t *rapid.T, tree *Tree, requests []Request, parts [][]Part) {
	before := slices.Clone(tree.free)
	for i, r := range requests {
		if len(parts[i]) != r.Count {
			t.Fatalf("request %d: got %d parts, want %d", i, len(parts[i]), r.Count)
		}
		for _, p := range parts[i] {
			if p.Way != r.Way || r.Suits != nil && !r.Suits(tree.nodes[tree.ids[p.Device]].device) {
				t.Fatalf("request %d: %v does not suit", i, p)
			}
			if err := tree.Take(p); err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
		}
	}
	for _, p := range slices.Concat(parts...) {
		if err := tree.Give(p); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(before, tree.free) {
		t.Fatalf("free: %v before, %v after all is given back", before, tree.free)
	}
}

// unlikeDevices are devices that differ, and requests for one each; the i-th device does not suit the i-th request.
func unlikeDevices(t interface{ Fatal(...any) }, n, asked int) (*Tree, []Request) {
	devices := make([]*Device, n)
	for i := range devices {
		kind := &Kind{Name: fmt.Sprint("k", i), Has: Counters{"slots": 1}, Ways: map[string]Way{"whole": {Takes: Counters{"slots": 1}}}}
		devices[i] = &Device{ID: fmt.Sprint("d", i), Kind: kind}
	}
	requests := make([]Request, asked)
	for i := range requests {
		requests[i] = Request{Way: "whole", Count: 1, Suits: func(d *Device) bool { return d.ID != fmt.Sprint("d", i) }}
	}
	return newTree(t, plain, devices...), requests
}

func TestCombinationsAreNotEnumerated(t *testing.T) {
	t.Parallel()
	unlike, fitting := unlikeDevices(t, 8, 8)
	short, refused := unlikeDevices(t, 7, 8)
	alike := newTree(t, plain, many(gpu, 8)...)
	for _, tt := range []struct {
		name     string
		tree     *Tree
		requests []Request
		fits     bool
		most     int
	}{
		{"8 parts of 8 devices that are alike", alike, []Request{{Way: "whole", Count: 8}}, true, 8},
		{"8 requests over 8 devices that are alike", alike, slices.Repeat([]Request{{Way: "whole", Count: 1}}, 8), true, 8},
		{"8 requests over 8 unlike devices", unlike, fitting, true, 8},
		// Without the memory of states that failed these are 3,705 steps.
		{"8 requests over 7 unlike devices", short, refused, false, 1 << 7},
	} {
		s := newSearch(tt.tree, tt.requests)
		if fits := s.run(); fits != tt.fits || s.steps > tt.most {
			t.Errorf("%s: fits %t after %d steps, want %t after at most %d", tt.name, fits, s.steps, tt.fits, tt.most)
		}
	}
}

func TestASearchThatTakesTooLongIsGivenUp(t *testing.T) {
	t.Parallel()
	// No counter is one that each part takes, so none is short in all.
	devices := make([]*Device, 16)
	for i := range devices {
		counter := fmt.Sprint("slots", i%2)
		kind := &Kind{Name: fmt.Sprint("k", i), Has: Counters{counter: 1}, Ways: map[string]Way{"whole": {Takes: Counters{counter: 1}}}}
		devices[i] = &Device{ID: fmt.Sprint("d", i), Kind: kind}
	}
	_, requests := unlikeDevices(t, 16, 17)
	tree := newTree(t, plain, devices...)
	_, r := tree.Place(requests)
	if r == nil || !r.Undecided || len(r.Counters) > 0 || !strings.Contains(r.Message, "no arrangement was found") {
		t.Errorf("got %+v, want a search that was given up", r)
	}
}

// BenchmarkPlace places 8 requests on 8 devices. Each is to stay below 1 ms.
func BenchmarkPlace(b *testing.B) {
	alike := make([]Request, 8)
	for i := range alike {
		alike[i] = Request{Way: "whole", Count: 1}
	}
	mig := []Request{
		{Way: "whole", Count: 1},
		{Way: "3g", Count: 1},
		{Way: "1g", Count: 5},
		{Way: "1g-2m", Count: 2},
		{Way: "shared", Count: 4},
		{Way: "3g", Count: 3},
		{Way: "whole", Count: 2},
		{Way: "1g", Count: 1},
	}
	different, differing := unlikeDevices(b, 8, 8)
	short, refused := unlikeDevices(b, 7, 8)
	for _, bb := range []struct {
		name     string
		tree     *Tree
		requests []Request
		fits     bool
	}{
		{"alike", newTree(b, plain, many(gpu, 8)...), alike, true},
		{"nine-of-eight", newTree(b, plain, many(gpu, 8)...), append(slices.Clone(alike), alike[0]), false},
		{"slices", newTree(b, plain, many(gpu, 8)...), mig, true},
		{"different", different, differing, true},
		{"different-refused", short, refused, false},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, refusal := bb.tree.Place(bb.requests); (refusal == nil) != bb.fits {
					b.Fatal(refusal)
				}
			}
		})
	}
}
