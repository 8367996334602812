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
		w.reach(w.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1", Stacks: []api.StackCheck{{Problems: []string{long}}}}))
		v := w.cache.View()
		events := w.cache.Events("c1", 0)
		for what, text := range map[string]string{
			"an event": events[len(events)-1].Message, "a quarantine": v.Quarantines[0].Reason, "a cluster": w.c1().Record.Message,
			"a lost member": w.c1().Record.Lost[0].Reason, "a build": v.Builds[0].Message, "a node": v.Node("n1").Stacks[0].Problems[0],
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
