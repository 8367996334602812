package controller

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// collecting is a store of members' files that notes what is in use.
type collecting struct {
	inUse []image.Digest
	grace time.Duration
}

func (c *collecting) CollectContent(inUse []image.Digest, grace time.Duration) ([]image.Blob, error) {
	c.inUse, c.grace = inUse, grace
	return nil, errors.New("which is logged, and keeps nothing from being decided")
}

func TestFilesOfMembersStayAsLongAsAPauseHasThemOrIsToHaveThem(t *testing.T) {
	l := newLed(t, memory.New())
	store := &collecting{}
	l.lead.cfg.MemberFiles = store
	p := l.lead.newPass(&state.View{Clusters: []*state.Cluster{
		{Intent: api.ClusterIntent{PausedFiles: []api.MemberFiles{{SavedFiles: api.SavedFiles{Digest: "sha256:asked"}}}}},
		{Record: &api.ClusterRecord{Files: []api.MemberFiles{{SavedFiles: api.SavedFiles{Digest: "sha256:noted"}}}}},
		{Record: &api.ClusterRecord{}},
	}})
	p.dropMemberFiles(t.Context())
	if want := []image.Digest{"sha256:asked", "sha256:noted"}; !slices.Equal(store.inUse, want) || store.grace < 2*time.Hour {
		t.Errorf("in use are %v for %s, want %v for longer than the longest save", store.inUse, store.grace, want)
	}
}

// A whole machine is not frozen but goes off with its member, and only for a pause.
func TestAWholeMachineIsNotFrozenInAPause(t *testing.T) {
	for _, whole := range []bool{false, true} {
		s := newStored(t)
		d := newDesired()
		view := s.cluster("a", 1, "n1")
		if whole {
			for a := range view.Cluster("a").Held() {
				a.Whole, a.CleanBy = true, []api.Prover{{By: api.ExecutorProvisioner, At: "n1"}}
			}
		}
		view.Cluster("a").Record.Phase = api.ClusterPaused
		d.update(1, someday, view)
		if m := d.assemble("n1", 1, view.Revision).Members; len(m) != 1 || m[0].Paused == whole {
			t.Errorf("whole: %v: got %+v", whole, m)
		}
	}
	for name, tc := range map[string]struct {
		tenant *api.MachineTenant
		want   bool
	}{
		"nobody's": {nil, false}, "after a member": {&api.MachineTenant{}, false}, "in a pause": {&api.MachineTenant{Paused: true}, true},
	} {
		if got := pauses(&api.MachineRecord{Tenant: tc.tenant}); got != tc.want {
			t.Errorf("%s: it goes off with its member: %v", name, got)
		}
	}
}
