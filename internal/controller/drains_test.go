package controller

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// readings are sensors that a test sets.
type readings map[string]*api.MachineSensors

func (readings) Run(ctx context.Context) error            { <-ctx.Done(); return nil }
func (readings) Set([]sensors.Machine)                    {}
func (readings) News() map[string]sensors.News            { return nil }
func (readings) Changed() <-chan struct{}                 { return nil }
func (r readings) Sensors(uid string) *api.MachineSensors { return r[uid] }

func reasons(l *led, log string) (out []string) {
	l.t.Helper()
	events, err := l.repo.Events(l.t.Context(), log, 0, 100)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, e := range events {
		out = append(out, e.Reason)
	}
	return out
}

func TestAMachineThatDegradesIsDrainedAndItsTenantKeepsIt(t *testing.T) {
	l := newLed(t, memory.New())
	l.provisions()
	read := readings{}
	l.lead.cfg.Provisioning.Sensors, l.lead.cfg.DrainOn = read, []api.DrainCause{api.DrainCriticalSensor, api.DrainDiskFailing}
	l.view(l.repo.CreateMachine(t.Context(), api.MachineIntent{Name: "n1", UID: "u1", Spec: api.MachineSpec{MACs: []string{"52:54:00:00:00:01"}}}))
	control := func() *api.NodeControl {
		t.Helper()
		l.mustPass()
		return l.mustPass().Node("n1").Control
	}
	if got := control(); got != nil {
		t.Fatalf("a machine of which nothing was read: %+v", got)
	}
	hot := 95.0
	read["u1"] = &api.MachineSensors{State: api.SensorCritical, Sensors: []api.Sensor{{Name: "CPU", Unit: api.UnitCelsius, Value: &hot, State: api.SensorCritical}}}
	got := control()
	if got == nil || !got.Drained || !got.Stay || got.By != api.DrainPolicy || got.Reason != "CPU 95 °C (critical)" {
		t.Fatalf("a machine with a critical sensor: %+v", got)
	}
	l.view(l.repo.Undrain(t.Context(), "n1"))
	if got := control(); got.Drained {
		t.Error("a machine that an operator undrained was drained again for the same")
	}
	read["u1"] = &api.MachineSensors{State: api.SensorUnavailable, Sensors: read["u1"].Sensors}
	if got := control(); got.Drained || len(got.Findings) != 1 {
		t.Errorf("a BMC that fell silent: %+v", got)
	}
	if got := reasons(l, state.NodeLog("n1")); !slices.Equal(slices.DeleteFunc(got, func(r string) bool { return r != api.ReasonNodeDrained }), []string{api.ReasonNodeDrained}) {
		t.Errorf("the events are %q", got)
	}
}

func TestWhatATenantSaysOfItsMachineDrainsNothing(t *testing.T) {
	l := newLed(t, memory.New())
	l.lead.cfg.DrainOn = api.DrainCauses()
	l.view(l.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1"}))
	l.agents.faults = map[string]api.HardwareFaults{"n1": {Boot: "b", Disks: []api.DiskFaults{{Name: "sda", Failing: "it has become read-only"}}}}
	p := l.lead.newPass(l.mustPass())
	n := *p.view.Node("n1")
	n.Control, n.Identity = nil, &api.NodeIdentity{Node: "n1", Member: "c.m-0.1"}
	if found, unheard := p.findings(&n); len(found) > 0 || !unheard[api.DrainDiskFailing] {
		t.Errorf("found %+v, unheard %v", found, unheard)
	}
	n.Identity.Member = ""
	if found, unheard := p.findings(&n); len(found) != 1 || unheard[api.DrainDiskFailing] {
		t.Errorf("of the site's own agent: found %+v, unheard %v", found, unheard)
	}
}

func TestANodeIsDrainedForItsMaintenanceAndUndrainedAfterwards(t *testing.T) {
	l := newLed(t, memory.New())
	l.view(l.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1"}))
	_, revision, err := l.repo.ChangeControl(t.Context(), "n1", func(c api.NodeControl) (*api.NodeControl, error) {
		c.Windows = []api.MaintenanceWindow{{ID: "w1", From: l.now.Add(time.Hour), To: l.now.Add(2 * time.Hour), Reason: "new firmware", By: "ada"}}
		return &c, nil
	})
	l.view(revision, err)
	if view := l.mustPass(); view.Node("n1").Drained() || !l.lead.wakeAt.Equal(l.now.Add(time.Hour)) {
		t.Errorf("before: drained %v, the next pass at %s", view.Node("n1").Drained(), l.lead.wakeAt)
	}
	l.now = l.now.Add(time.Hour)
	l.mustPass()
	if view := l.mustPass(); !view.Node("n1").Drained() || view.Node("n1").Control.Reason != "maintenance: new firmware" {
		t.Errorf("at its beginning: %+v", view.Node("n1").Control)
	}
	l.now = l.now.Add(time.Hour)
	l.mustPass()
	if view := l.mustPass(); view.Node("n1").Control != nil {
		t.Errorf("at its end: %+v", view.Node("n1").Control)
	}
	if got := reasons(l, state.NodeLog("n1")); !slices.Equal(got, []string{api.ReasonMaintenanceBegins, api.ReasonMaintenanceEnds}) {
		t.Errorf("the events are %q", got)
	}
}
