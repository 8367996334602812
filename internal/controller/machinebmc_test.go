package controller

import (
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/provisioner"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
	"github.com/nearmetal/nearmetal/internal/state"
)

// asked are sensors that remember which machines are read.
type asked struct {
	readings
	machines []sensors.Machine
}

func (a *asked) Set(machines []sensors.Machine) { a.machines = machines }

func TestWhileABMCsPasswordIsChangedItIsAskedForNoSensors(t *testing.T) {
	l := newTelling(t, 2)
	read := &asked{}
	l.lead.cfg.Provisioning.Sensors = read
	l.tell("both have a password", 1, 2)
	l.change(1, func(m *state.Machine) {
		m.Record.BMC = &api.MachineBMC{Duties: 4, Duty: &api.BMCDuty{Kind: api.BMCRenew, Number: 4}, Next: []byte("next")}
	})
	l.tell("one gets another", 0, 1)
	if len(read.machines) != 1 || read.machines[0].UID != l.all[0].UID() {
		t.Errorf("%d machines are read: %+v", len(read.machines), read.machines)
	}
	at := slices.IndexFunc(l.orders.desired.Machines, func(m provisioner.Machine) bool { return m.UID == l.all[1].UID() })
	m := l.orders.desired.Machines[at]
	if c := m.Target.Credentials; c.Password != "u1 first" || c.Next != "u1 next" || m.Guard.Duty != api.BMCRenew || m.Guard.Number != 4 {
		t.Errorf("the provisioner gets the passwords %q and %q, and %+v", c.Password, c.Next, m.Guard)
	}
}
