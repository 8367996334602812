package device

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestPartsThatTogetherNeedMoreThanIsFreeAreRefusedWithoutASearch(t *testing.T) {
	t.Parallel()
	kind := func(name string, slots int64) *Kind {
		return &Kind{Name: name, Has: Counters{"slots": slots}, Ways: map[string]Way{"three": {Takes: Counters{"slots": 3}}, "six": {Takes: Counters{"slots": 6}}}}
	}
	// Each of 17 requests suits all devices but one, of which no two are alike.
	unlike, asked := unlikeDevices(t, 16, 17)
	// 8, 7 and 8 slots hold 6 for parts of 3 and 6, and so do not serve 7 parts of 3.
	odd := newTree(t, plain, &Device{ID: "a", Kind: kind("a", 8)}, &Device{ID: "b", Kind: kind("b", 7)}, &Device{ID: "c", Kind: kind("c", 8)})
	for name, s := range map[string]*search{
		"a device too few":             newSearch(unlike, asked),
		"a remainder that serves none": newSearch(odd, []Request{{Way: "six", Count: 2}, {Way: "three", Count: 3}}),
	} {
		if s.run() || s.steps > 0 {
			t.Errorf("%s: want a refusal after no step, not after %d", name, s.steps)
		}
	}
	if s := newSearch(odd, []Request{{Way: "six", Count: 2}, {Way: "three", Count: 2}}); !s.run() {
		t.Error("two parts of 6 and two of 3 fit three devices of 8, 7 and 8 slots")
	}
}

// A bound never refuses what a search without bounds places.
func TestBoundsRefuseNothingThatFits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		devices := make([]*Device, rapid.IntRange(1, 4).Draw(t, "devices"))
		for i := range devices {
			kind := &Kind{Name: fmt.Sprint("k", i), Has: Counters{}, Ways: map[string]Way{}}
			for c := range 2 {
				kind.Has[fmt.Sprint("c", c)] = int64(rapid.IntRange(0, 12).Draw(t, "has"))
			}
			for w := range 3 {
				takes := Counters{}
				for c := range 2 {
					if n := rapid.IntRange(0, 6).Draw(t, "takes"); n > 0 {
						takes[fmt.Sprint("c", c)] = int64(n)
					}
				}
				if len(takes) > 0 {
					kind.Ways[fmt.Sprint("w", w)] = Way{Takes: takes}
				}
			}
			devices[i] = &Device{ID: fmt.Sprint("d", i), Kind: kind}
		}
		tree, err := NewTree(&Device{ID: "machine", Kind: plain, Children: devices})
		if err != nil {
			t.Fatal(err)
		}
		requests := make([]Request, rapid.IntRange(1, 5).Draw(t, "requests"))
		for i := range requests {
			requests[i] = Request{Way: fmt.Sprint("w", rapid.IntRange(0, 2).Draw(t, "way")), Count: rapid.IntRange(1, 2).Draw(t, "count")}
		}
		with, without := newSearch(tree, requests), newSearch(tree, requests)
		without.bounds = nil
		if a, b := with.run(), without.run(); a != b {
			t.Fatalf("with bounds: fits %t; without: %t", a, b)
		}
	})
}
