package site

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

func TestAPortIsCleanOnlyWhenItWasReadBackAsAbsent(t *testing.T) {
	left := lifecycle.Epoch{Term: 2, Revision: 7}
	inForce := Observation{Epoch: left, Networks: []Network{{Number: 5, Ports: []Port{{At: "b"}}}, {Number: 6, Ports: []Port{{At: "a"}}}}}
	change := func(c func(o *Observation)) Observation {
		o := inForce
		c(&o)
		return o
	}
	for _, tt := range []struct {
		name string
		seen Observation
		want string // part of the error, "" for clean
	}{
		{"the network was read as gone from the place", inForce, ""},
		{"it was read after a later desired state", change(func(o *Observation) { o.Epoch.Revision = 8 }), ""},
		{"it was read after the desired state of a later leader", change(func(o *Observation) { o.Epoch = lifecycle.Epoch{Term: 3, Revision: 1} }), ""},
		{"it was read while an earlier desired state was in force", change(func(o *Observation) { o.Epoch.Revision = 6 }), "not yet carried out"},
		{"it was read under a former leader", change(func(o *Observation) { o.Epoch = lifecycle.Epoch{Term: 1, Revision: 9} }), "not yet carried out"},
		{"nothing was ever in force", change(func(o *Observation) { o.Epoch = lifecycle.Epoch{} }), "not yet carried out"},
		{"the place could not be read", change(func(o *Observation) { o.Unknown = map[string]string{"a": "the switch is off"} }), "can't be read: the switch is off"},
		{"another place could not be read", change(func(o *Observation) { o.Unknown = map[string]string{"c": "the switch is off"} }), ""},
		{"the network is there", change(func(o *Observation) { o.Networks = []Network{{Number: 5, Ports: []Port{{At: "a", Limited: true}}}} }), "still on port a"},
	} {
		err := tt.seen.Clean(left, 5, "a")
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
	if err := (Observation{}).Clean(lifecycle.Epoch{}, 5, "a"); err == nil {
		t.Error("an observation of nothing proves that a port is clean")
	}
}
