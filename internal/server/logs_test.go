package server

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestTheOwnerOfALogIsFoundByItsName(t *testing.T) {
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ended := created.Add(time.Hour)
	view := &state.View{
		Jobs: []*api.Job{
			{ID: "j1", Cluster: "c1", Phase: api.JobRunning, Attempt: 2, CreatedAt: created},
			{ID: "j2", Cluster: "physics.c1", Phase: api.JobSucceeded, CreatedAt: created, EndedAt: &ended},
		},
		Builds: []*api.Build{{ID: "b1", Attempt: 2, Phase: api.BuildFailed, CreatedAt: created, EndedAt: &ended}},
	}
	for name, want := range map[string]monitor.Run{
		"j1":         {Project: api.DefaultProject, Ended: true, EndedAt: created},
		"j1.2":       {Project: api.DefaultProject},
		"j2":         {Project: "physics", Ended: true, EndedAt: ended},
		"build.b1.1": {Ended: true, EndedAt: created},
		"build.b1.2": {Ended: true, EndedAt: ended},
	} {
		if got, ok := runOf(view, name); !ok || got != want {
			t.Errorf("%s: got %+v, %t; want %+v", name, got, ok, want)
		}
	}
	for _, name := range []string{"j3", "j3.1", "build.b2.1", "j1.x", "removed", "", "."} {
		if got, ok := runOf(view, name); ok {
			t.Errorf("%q is taken for %+v", name, got)
		}
	}
}
