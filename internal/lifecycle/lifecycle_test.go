package lifecycle

import (
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

var update = flag.Bool("update", false, "write docs/lifecycle.md anew")

func TestTheDocumentIsGeneratedFromTheTables(t *testing.T) {
	const path = "../../docs/lifecycle.md"
	if *update {
		if err := os.WriteFile(path, []byte(Document()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Document(), string(got)); diff != "" {
		t.Errorf("docs/lifecycle.md is stale; run: go test ./internal/lifecycle -update\n(-tables +page)\n%s", diff)
	}
}

func TestEveryMachineIsWhole(t *testing.T) {
	whole(t, Clusters(), []api.ClusterPhase{
		api.ClusterPending, api.ClusterQueued, api.ClusterRefused, api.ClusterStarting, api.ClusterReady, api.ClusterScaling, api.ClusterDegraded,
		api.ClusterPausing, api.ClusterPaused, api.ClusterResuming, api.ClusterSnapshotting, api.ClusterSaving, api.ClusterSaved, api.ClusterRestoring, api.ClusterFailed, api.ClusterDeleting,
	})
	whole(t, Members(), []api.MemberPhase{
		api.MemberAssigned, api.MemberPreparing, api.MemberStarting, api.MemberReady, api.MemberUnhealthy, api.MemberPaused, api.MemberSaved, api.MemberFailed,
		api.MemberLost, api.MemberWaiting, api.MemberSpare, api.MemberUnknown, api.MemberReleasing,
	})
	whole(t, Nodes(), []api.NodePhase{api.NodeUnknown, api.NodeReady, api.NodeDown})
	whole(t, Jobs(), []api.JobPhase{api.JobPending, api.JobRunning, api.JobSucceeded, api.JobFailed, api.JobCancelled, api.JobLost})
	whole(t, Builds(), []api.BuildPhase{api.BuildPending, api.BuildRunning, api.BuildSucceeded, api.BuildFailed, api.BuildCancelled})
}

// whole checks that a machine has all phases, each with an owner, each reachable and each with a way to its end, that phases without a timer
// are those a user owns, and that no transition is there twice.
func whole[P ~string](t *testing.T, m Machine[P], phases []P) {
	t.Helper()
	var listed []P
	for _, p := range m.Phases {
		listed = append(listed, p.Phase)
		if p.Owner == "" {
			t.Errorf("%s: phase %q has no owner", m.Name, p.Phase)
		}
		if p.Timer == "" && !strings.HasPrefix(p.Owner, "user") && !strings.HasPrefix(p.Owner, "operator") {
			t.Errorf("%s: phase %q has neither a timer nor a person who owns it: it may last for ever", m.Name, p.Phase)
		}
	}
	slices.Sort(listed)
	if want := slices.Sorted(slices.Values(phases)); !slices.Equal(listed, want) {
		t.Errorf("%s: want phases %v, got %v", m.Name, want, listed)
	}
	seen := map[[2]P]bool{}
	next, before := map[P][]P{}, map[P][]P{}
	for _, tr := range m.Transitions {
		for _, from := range tr.From {
			if seen[[2]P{from, tr.To}] || from == tr.To {
				t.Errorf("%s: transition %q -> %q is there twice or leads nowhere", m.Name, from, tr.To)
			}
			seen[[2]P{from, tr.To}] = true
			next[from], before[tr.To] = append(next[from], tr.To), append(before[tr.To], from)
		}
		if tr.On == "" || tr.Why == "" {
			t.Errorf("%s: transition to %q lacks its cause or its reason", m.Name, tr.To)
		}
	}
	for _, p := range phases {
		if !reaches(next, "", p) {
			t.Errorf("%s: phase %q can't be reached", m.Name, p)
		}
		if !reaches(before, "", p) {
			t.Errorf("%s: phase %q has no way to its end", m.Name, p)
		}
	}
}

func reaches[P ~string](edges map[P][]P, from, to P) bool {
	seen, todo := map[P]bool{}, []P{from}
	for len(todo) > 0 {
		p := todo[0]
		todo = todo[1:]
		for _, n := range edges[p] {
			if n == to {
				return true
			}
			if !seen[n] {
				seen[n] = true
				todo = append(todo, n)
			}
		}
	}
	return false
}

func TestATransitionThatTheTableDoesNotHaveIsRefused(t *testing.T) {
	if err := Clusters().Check(api.ClusterStarting, api.ClusterReady); err != nil {
		t.Errorf("starting -> ready: %v", err)
	}
	err := Clusters().Check(api.ClusterDeleting, api.ClusterReady)
	var illegal *IllegalTransition
	if !errors.As(err, &illegal) || illegal.From != "deleting" || illegal.To != "ready" {
		t.Errorf("deleting -> ready: want an IllegalTransition, got %v", err)
	}
	if want := `a cluster can't go from phase "deleting" to "ready": no such transition; see docs/lifecycle.md`; err == nil || err.Error() != want {
		t.Errorf("want %q, got %v", want, err)
	}
}

func TestAPhaseThatStaysIsNoTransition(t *testing.T) {
	if err := Jobs().CheckChange(api.JobRunning, api.JobRunning); err != nil {
		t.Errorf("running -> running: %v", err)
	}
	if err := Jobs().CheckChange(api.JobLost, api.JobRunning); err == nil {
		t.Error("lost -> running is legal, want it refused")
	}
}
