package apiserver

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestWhoseAMachineIsIsShownToAdministratorsOnly(t *testing.T) {
	m := &state.Machine{Record: &api.MachineRecord{
		Name: "n1", Boot: &api.Boot{Purpose: api.BootMember, Member: "u1.m-0.1"}, Tenant: &api.MachineTenant{Assignment: "u1.m-0.1", Cluster: "secret", Generation: 3},
	}}
	s := &Server{}
	if r := s.joinMachine(m, true).Record; r.Tenant.Cluster != "secret" || r.Boot.Member == "" {
		t.Errorf("an administrator sees %+v, %+v", r.Tenant, r.Boot)
	}
	r := s.joinMachine(m, false).Record
	if r.Tenant == nil || *r.Tenant != (api.MachineTenant{Generation: 3}) || r.Boot.Member != "" {
		t.Errorf("others see %+v, %+v", r.Tenant, r.Boot)
	}
	if m.Record.Boot.Member == "" || m.Record.Tenant.Cluster == "" {
		t.Error("the stored record was changed")
	}
}
