package apiserver

import (
	"encoding/json"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/offer"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// watched is a Live of which only the reading side is asked.
type watched struct {
	Live
	observed
}

func (w watched) Member(a *api.Assignment) (api.MemberPhase, string, bool) {
	return w.observed.Member(a)
}

func (watched) Volumes(string) ([]volume.State, []string, bool) { return nil, nil, true }
func (watched) Boot(*api.Assignment) string                     { return "" }
func (watched) Size(*api.Assignment) (int64, string)            { return 0, "" }
func (watched) Mounted(*api.Assignment) (int64, string)         { return 0, "" }
func (watched) Layers(*api.Assignment) int64                    { return 0 }
func (watched) Condition(*api.Assignment) (int64, string)       { return 0, "" }
func (w watched) OnMachine(a *api.Assignment) (api.MemberPhase, string, bool) {
	return w.observed.OnMachine(a)
}

func (w watched) Arriving(a *api.Assignment) (bytes, ofBytes int64) { return w.observed.Arriving(a) }

func (w watched) Node(name string) (api.NodePhase, time.Time, string) {
	phase, last, message := w.observed.Node(name)
	return phase, last.UTC(), message
}

// TestNodesAreListedInParts keeps the shape of GET /v1/nodes: a node that joined by itself, a machine that runs, and one that is off.
func TestNodesAreListedInParts(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	agent := func(name string, cores int) *api.NodeRecord {
		rec := &api.NodeRecord{
			Name: name, AgentVersion: "1", FirstSeenAt: at, Underlay: "10.0.0.1",
			Capacity: api.NodeCapacity{MemoryBytes: offer.LessReserve(8 << 30), NUMANodes: []api.NUMANode{{MemoryBytes: 8 << 30}}},
			Stacks:   []api.StackCheck{{Stack: api.StackContainer, OK: true}}, Environments: []api.EnvironmentOnNode{},
		}
		for i := range cores {
			rec.Capacity.Cores = append(rec.Capacity.Cores, api.Core{Slot: i, CPU: i})
		}
		return rec
	}
	machine := func(name string, phase api.MachinePhase, power api.PowerState) *state.Machine {
		return &state.Machine{
			Intent: api.MachineIntent{Name: name, UID: "u-" + name, CreatedAt: at, Spec: api.MachineSpec{
				MACs: []string{"52:54:00:00:00:01"}, Power: api.PowerControl{Kind: api.PowerManual}, Labels: map[string]string{"rack": "r1"},
			}},
			Record:   &api.MachineRecord{Name: name, UID: "u-" + name, Phase: phase, Power: power, ChangedAt: at},
			Hardware: &api.Hardware{CPU: api.CPU{Cores: 2, Threads: 2}, MemoryBytes: 8 << 30, NUMANodes: []api.NUMANode{{MemoryBytes: 8 << 30}}},
		}
	}
	view := &state.View{Nodes: []*state.Node{
		{Name: "n1", Agent: agent("n1", 1), Control: &api.NodeControl{Name: "n1", Drained: true, Reason: "new fans", By: "ada", Since: at}},
		{Name: "n2", Agent: agent("n2", 1), Machine: machine("n2", api.MachineReady, api.PowerOn)},
		{Name: "n3", Machine: machine("n3", api.MachineOff, api.PowerOff)},
	}}
	s := &Server{cfg: Config{Live: watched{}, Offers: offer.Site{Metal: true}, Reader: fixedView{view: view}}}
	list, err := s.listNodes(withSession(t.Context(), session{principal: tenancy.Principal{Role: api.RoleAdmin}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(list.Body, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/nodes.golden"
	if flag.Lookup("update").Value.String() == "true" { // that of errors_test.go
		if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
		t.Errorf("%s differs; look at it after go test -update (-want +got):\n%s", file, diff)
	}
}

// fixedView is a Reader of one view.
type fixedView struct {
	Reader
	view *state.View
}

func (f fixedView) View() *state.View { return f.view }
