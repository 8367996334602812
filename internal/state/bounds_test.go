package state_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

func TestWhatOthersWordedIsStoredInBounds(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		as := w.first(2)
		long := "begin " + strings.Repeat("x", 40<<10) + " end"
		rec := w.generation(2, api.ClusterDeleting)
		rec.Message, rec.Lost = long, []api.LostMember{{Member: "c1-1", Reason: long}}
		w.reach(w.leader.Commit(t.Context(), w.c1(), state.Write{Record: rec, Quarantines: []api.Quarantine{{Assignment: as[0], Reason: long, Since: now}}}))
		w.reach(w.repo.AppendEvents(t.Context(), api.Event{Cluster: "c1", Message: long}))
		w.reach(w.repo.CreateBuild(t.Context(), api.Build{ID: "b1", Message: long}))
		w.reach(w.repo.CreateMachine(t.Context(), machine("n2", mac2)))
		tried := record("n2", 0, api.MachineFailed)
		tried.Message, tried.PowerMessage = long, long
		w.reach(w.leader.CommitMachine(t.Context(), w.machine("n2"), state.MachineWrite{Record: tried}))
		w.reach(w.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1", Stacks: []api.StackCheck{{Problems: []string{long}}}}))
		v := w.cache.View()
		events := eventsOf(t, w.cache, "c1")
		for what, text := range map[string]string{
			"an event": events[len(events)-1].Message, "a quarantine": v.Quarantines[0].Reason, "a cluster": w.c1().Record.Message,
			"a lost member": w.c1().Record.Lost[0].Reason, "a build": v.Builds[0].Message, "a node": v.Agent("n1").Stacks[0].Problems[0],
			"a machine": v.Machine("n2").Record.Message, "a machine's power": v.Machine("n2").Record.PowerMessage,
		} {
			if len(text) > api.MaxMessageBytes || !strings.HasPrefix(text, "begin") || !strings.HasSuffix(text, "end") {
				t.Errorf("%s has a text of %d bytes: %.100q", what, len(text), text)
			}
		}
		if rec.Lost[0].Reason != long {
			t.Error("the caller's record was changed")
		}
	})
}

func TestTextIsStoredWithoutTheEscapesOfHTML(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		w.first(1)
		job := api.Job{ID: "j1", Cluster: "c1", ClusterUID: w.c1().UID(), JobRequest: api.JobRequest{Command: []string{strings.Repeat("<&>", 1000)}}}
		w.reach(w.repo.CreateJob(t.Context(), job))
		snapshot, err := s.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range snapshot.Entries {
			if len(e.Value) > 4000 {
				t.Errorf("%s is stored in %d bytes, though its text has 3000", e.Key, len(e.Value))
			}
		}
		if got := w.cache.View().Job("j1").Command; got[0] != job.Command[0] {
			t.Errorf("read back as %.50q", got)
		}
	})
}
