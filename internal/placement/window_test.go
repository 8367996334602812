package placement

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestNoMemberIsPlacedWhoseTimeReachesIntoMaintenance(t *testing.T) {
	noon := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	v := viewOf(t, testNode("n1", 8, 1, 64))
	v.SetWindow("n1", noon)
	short, long, endless := group("c", 1, 1, 1), group("c", 1, 1, 1), group("c", 1, 1, 1)
	short.Ends, long.Ends = noon, noon.Add(time.Second)
	for name, g := range map[string]struct {
		ends time.Time
		fits bool
	}{"short": {short.Ends, true}, "long": {long.Ends, false}, "without a limit": {endless.Ends, false}} {
		asked := group("c", 1, 1, 1)
		asked.Ends = g.ends
		_, refusal := Place(v, Request{Cluster: "c", Groups: []api.Group{asked}})
		if (refusal == nil) != g.fits {
			t.Errorf("%s: refused %v, want that it fits %v", name, refusal != nil, g.fits)
		}
		if refusal != nil && (refusal.Never || refusal.Constraint != ConstraintDown || !strings.Contains(refusal.Message, "n1 has maintenance before its members would end")) {
			t.Errorf("%s: refused for %q (never %v): %s", name, refusal.Constraint, refusal.Never, refusal.Message)
		}
		why, _ := v.Sketch().WhyNot("n1", asked)
		if (why == "") != g.fits {
			t.Errorf("%s: n1 can't have it because %q", name, why)
		}
	}
	v.SetWindow("n1", time.Time{})
	place(t, v, "c", endless)
}
