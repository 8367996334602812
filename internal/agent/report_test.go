package agent

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

func TestAReleasedMemberIsCleanOnlyWhenItsNetworkIsGoneFromTheNode(t *testing.T) {
	network := api.Network{Index: 3}
	released := &agentstream.Member{Release: true, Member: driver.Member{Networks: []api.Network{network}}}
	staying := &agentstream.Member{Member: driver.Member{Networks: []api.Network{network}}}
	applied := networks{ok: true, applied: []fabric.Network{{Network: network}}}
	for _, tt := range []struct {
		name     string
		networks networks
		other    *memberState
		clean    bool
	}{
		{name: "its network is still there", networks: applied},
		{name: "its network is being removed", networks: networks{ok: true, busy: true}},
		{name: "what is there is not known", networks: networks{}},
		{name: "its network is gone", networks: networks{ok: true}, clean: true},
		{name: "another member here needs the network", networks: applied, other: &memberState{id: "b", want: staying}, clean: true},
		{name: "the other one is clean too", networks: applied, other: &memberState{id: "b", want: released, cleaned: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := &Agent{
				networks: tt.networks, outbox: outbox{changed: make(chan struct{}, 1)},
				members: map[string]*memberState{"a": {id: "a", want: released, cleaned: true, phase: api.MemberReleasing}},
			}
			if tt.other != nil {
				a.members["b"] = tt.other
			}
			a.report()
			clean := len(a.outbox.newest.Clean) > 0 && a.outbox.newest.Clean[0] == "a"
			if clean != tt.clean {
				t.Errorf("reported clean: %v, want %v", clean, tt.clean)
			}
		})
	}
}
