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
