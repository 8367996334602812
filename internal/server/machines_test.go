package server

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/bootapi"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

func TestOnlyTheAgentThatAMachineWasGivenSpeaksForIt(t *testing.T) {
	secret := bytes.Repeat([]byte{7}, trust.SecretBytes)
	repo := state.New(memory.New())
	if _, err := repo.CreateMachine(t.Context(), api.MachineIntent{Name: "n1", UID: "u1", Spec: api.MachineSpec{MACs: []string{"52:54:00:00:00:01"}}}); err != nil {
		t.Fatal(err)
	}
	cache, err := repo.OpenCache(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, agent string
		taken       bool
	}{
		{"n1", bootapi.AgentID(secret, "u1"), true},
		{"n1", "made by hand", false},
		{"n1", bootapi.AgentID(secret, "u0"), false}, // of an earlier machine of that name
		{"n2", "made by hand", true},
	} {
		err := ownAgent(cache.View(), secret, api.NodeRecord{Name: tc.name, AgentID: tc.agent})
		if (err == nil) != tc.taken || err != nil && !strings.Contains(err.Error(), "another --name") {
			t.Errorf("agent %q as %s: %v", tc.agent, tc.name, err)
		}
	}
}

func TestANodeDoesNotGetThePlaceOfAnotherOnAFabric(t *testing.T) {
	port := func(at string) api.NodeCapacity {
		return api.NodeCapacity{Ports: []api.NodePort{{Name: "p0", Fabric: "ib0", At: at}}}
	}
	view := &state.View{Nodes: []*state.Node{{Name: "n1", Agent: &api.NodeRecord{Name: "n1", Capacity: port("0x1")}}}}
	for name, tt := range map[string]struct {
		node, at string
		refused  bool
	}{"its own": {"n1", "0x1", false}, "a free one": {"n2", "0x2", false}, "another's": {"n2", "0x1", true}} {
		err := ownPorts(view, &api.NodeRecord{Name: tt.node, Capacity: port(tt.at)})
		if (err != nil) != tt.refused || tt.refused && !strings.Contains(err.Error(), "node forget n1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
