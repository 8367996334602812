package agentstream

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestAChangeOfATextMakesTheTextThatItWasMadeOf(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	some := func() string {
		var b strings.Builder
		for range random.IntN(12) {
			b.WriteString([]string{"a ", "b\n", "c ", "d", "\n", " ", "e "}[random.IntN(7)])
		}
		return b.String()
	}
	for range 20_000 {
		before, after := some(), some()
		steps := difference(before, after)
		if got, err := spliced(before, steps); err != nil || got != after {
			t.Fatalf("from %q to %q by %+v: got %q, %v", before, after, steps, got, err)
		}
	}
}

func TestAChangeOfAListOfMembersIsAsSmallAsWhatChanged(t *testing.T) {
	hosts := func(addresses map[int]int) string {
		var b strings.Builder
		for i := range 1000 {
			if at, ok := addresses[i]; !ok {
				fmt.Fprintf(&b, "10.64.0.%d\tc1-%d\nc1-%d slots=1\n", i, i, i)
			} else if at > 0 {
				fmt.Fprintf(&b, "10.64.9.%d\tc1-%d\nc1-%d slots=1\n", at, i, i)
			}
		}
		return b.String()
	}
	for name, c := range map[string]struct {
		before, after map[int]int
		steps         int
	}{
		"a member is gone":             {nil, map[int]int{400: 0}, 1},
		"a member has come":            {map[int]int{400: 0}, nil, 1},
		"a member has another place":   {nil, map[int]int{400: 1}, 1},
		"three have another place":     {nil, map[int]int{1: 1, 500: 2, 999: 3}, 3},
		"one is gone and one came":     {map[int]int{10: 0}, map[int]int{800: 0}, 2},
		"nothing is other than it was": {nil, nil, 0},
	} {
		before, after := hosts(c.before), hosts(c.after)
		steps := difference(before, after)
		if got, err := spliced(before, steps); err != nil || got != after {
			t.Errorf("%s: the change makes another text of it, %v", name, err)
		}
		if len(steps) != c.steps {
			t.Errorf("%s: %d steps, want %d: %+v", name, len(steps), c.steps, steps)
		}
	}
}

func TestAChangeThatDoesNotFitItsTextIsRefused(t *testing.T) {
	for _, step := range []splice{{Keep: 3}, {Drop: 3}, {Keep: 2, Drop: 1}, {Keep: -1}, {Keep: 1, Drop: -1}} {
		if _, err := spliced("a b", []splice{step}); !errors.Is(err, errSplice) {
			t.Errorf("%+v: got %v, want %v", step, err, errSplice)
		}
	}
}
