package lifecycle_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

var hot = lifecycle.Finding{Cause: api.DrainCriticalSensor, Key: "critical-sensor CPU", Text: "CPU 95 °C (critical)"}

// drained plans with findings, and returns what is wanted then.
func drained(t *testing.T, control *api.NodeControl, unheard map[api.DrainCause]bool, found ...lifecycle.Finding) *api.NodeControl {
	t.Helper()
	next, _ := lifecycle.PlanDrain(lifecycle.DrainInput{
		Control: control, Causes: []api.DrainCause{api.DrainCriticalSensor, api.DrainDiskFailing}, Findings: found, Unheard: unheard, Now: time.Unix(100, 0),
	})
	if next == nil {
		return control
	}
	return next
}

func TestAFindingOfThePolicyDrainsANodeAndMovesNobody(t *testing.T) {
	got := drained(t, nil, nil, hot)
	if got == nil || !got.Drained || !got.Stay || got.By != api.DrainPolicy || got.Reason != hot.Text || !got.Since.Equal(time.Unix(100, 0)) {
		t.Errorf("got %+v; want it drained by policy, with the reason, and members that stay", got)
	}
	other := lifecycle.Finding{Cause: api.DrainECCCorrected, Key: "ecc-corrected mc0", Text: "errors"}
	if got := drained(t, nil, nil, other); got != nil {
		t.Errorf("a finding that the policy does not name: got %+v", got)
	}
}

func TestANodeThatAnOperatorUndrainsStaysUndrainedUntilTheFindingComesBack(t *testing.T) {
	control := drained(t, nil, nil, hot)
	cool := drained(t, control, nil)
	if !cool.Drained {
		t.Error("policy undrained a node")
	}
	undrained := *control
	undrained.Drained, undrained.Stay, undrained.Reason, undrained.By = false, false, "", ""
	if got := drained(t, &undrained, nil, hot); got.Drained {
		t.Error("a finding that an operator has seen drained the node again")
	}
	if got := drained(t, &undrained, map[api.DrainCause]bool{api.DrainCriticalSensor: true}); !slices.Equal(got.Findings, control.Findings) {
		t.Errorf("a BMC that is silent: the findings are %q", got.Findings)
	}
	over := drained(t, &undrained, nil)
	if len(over.Findings) > 0 {
		t.Errorf("findings that are over: %q", over.Findings)
	}
	if got := drained(t, over, nil, hot); !got.Drained {
		t.Error("a finding that came back did not drain the node")
	}
}

func TestADrainByAnOperatorStaysTheOperators(t *testing.T) {
	control := &api.NodeControl{Drained: true, By: "ada", Reason: "a loud fan"}
	got := drained(t, control, nil, hot)
	if !got.Drained || got.Stay || got.By != "ada" || got.Reason != "a loud fan" || !slices.Equal(got.Findings, []string{hot.Key}) {
		t.Errorf("got %+v", got)
	}
}

func TestAMaintenanceWindowDrainsAtItsBeginningAndUndrainsAtItsEnd(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(seconds, 0) }
	control := &api.NodeControl{Windows: []api.MaintenanceWindow{{ID: "w1", From: at(100), To: at(200), Reason: "new firmware", By: "ada"}}}
	if next, _, _, wake := lifecycle.PlanMaintenance(control, at(50)); next != nil || !wake.Equal(at(100)) || !lifecycle.WindowBegins(control).Equal(at(100)) {
		t.Errorf("before: got %+v, wake at %s", next, wake)
	}
	during, begins, _, wake := lifecycle.PlanMaintenance(control, at(100))
	if during == nil || !during.Drained || during.Stay || during.Reason != "maintenance: new firmware" || during.By != "ada" || len(begins) != 1 || !wake.Equal(at(200)) {
		t.Fatalf("at its beginning: got %+v, wake at %s", during, wake)
	}
	if again, _, _, wake := lifecycle.PlanMaintenance(during, at(150)); again != nil || !wake.Equal(at(200)) || !lifecycle.WindowBegins(during).IsZero() {
		t.Errorf("amid: got %+v, wake at %s", again, wake)
	}
	after, _, ends, wake := lifecycle.PlanMaintenance(during, at(200))
	if after == nil || after.Drained || len(after.Windows) > 0 || len(ends) != 1 || !wake.IsZero() {
		t.Errorf("at its end: got %+v, wake at %s", after, wake)
	}
	control.Drained, control.Reason, control.By = true, "a loud fan", "bob"
	during, _, _, _ = lifecycle.PlanMaintenance(control, at(100))
	after, _, _, _ = lifecycle.PlanMaintenance(during, at(200))
	if !after.Drained || after.By != "bob" || after.Reason != "a loud fan" {
		t.Errorf("a node that an operator drained before: got %+v after the window", after)
	}
	missed, begins, ends, _ := lifecycle.PlanMaintenance(&api.NodeControl{Windows: control.Windows}, at(300))
	if missed == nil || missed.Drained || len(begins) > 0 || len(ends) != 1 {
		t.Errorf("a window that nobody was there for: got %+v", missed)
	}
}
