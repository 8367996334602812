package cpumodel

import (
	"slices"
	"testing"
)

func TestNamesAreSortedAndUnique(t *testing.T) {
	t.Parallel()
	names := Names()
	if !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("not sorted, or twice: %q", names)
	}
	for _, name := range names {
		if !Known(name) {
			t.Errorf("%q is not known", name)
		}
	}
	if Known(Host) || Known("") || Known("Haswel") {
		t.Error("names that are no models are known")
	}
}
