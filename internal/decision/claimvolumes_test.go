package decision

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

func TestAVolumeIsClaimedUntilItsMemberHasLetGo(t *testing.T) {
	t.Parallel()
	const id = "u1.c-1.1"
	c := running()
	data, more := api.VolumeClaim{UID: "v1", Name: "data", Path: "/data", Node: "n1"}, api.VolumeClaim{UID: "v2", Name: "more", Path: "/more", Node: "n1"}
	claims := func(all ...api.VolumeClaim) lifecycle.ClaimVolumes {
		return lifecycle.ClaimVolumes{Assignment: id, Volumes: all}
	}
	at := func(v api.VolumeClaim, number int64, detaching bool) api.VolumeClaim {
		v.Number, v.Detaching = number, detaching
		return v
	}
	generation := c.Record.Generation
	c = then(c, apply(t, c, time.Hour, claims(at(data, 1, false), at(more, 1, false))))
	if a := member(t, c, id); a.VolumesNumber != 1 || len(a.Volumes) != 2 || c.Record.Generation != generation+1 {
		t.Errorf("it claims %+v of number %d, in generation %d", a.Volumes, a.VolumesNumber, c.Record.Generation)
	}
	refused := func(op lifecycle.ClusterOperation, want string) {
		t.Helper()
		if _, err := Apply(c, []lifecycle.ClusterOperation{op}, t0.Add(2*time.Hour)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", op, err, want)
		}
	}
	refused(claims(at(data, 2, true)), `would give volume "more" up before its node has`)
	refused(claims(at(data, 2, true), at(more, 1, false), at(more, 1, false)), `would claim volume "more" twice`)
	refused(lifecycle.VolumesClaimed{Assignment: id, Number: 2}, "has volumes of number 1, not 2")
	c = then(c, apply(t, c, 2*time.Hour, claims(at(data, 2, true), at(more, 1, false))))
	gone := []api.VolumeDetach{{UID: "v1", Number: 7, VolumeAttachment: api.VolumeAttachment{Name: "data"}}}
	refused(lifecycle.NoteDetached{Detached: gone}, `volume "data" is still claimed by assignment `+id)
	c = then(c, apply(t, c, 3*time.Hour, lifecycle.VolumesClaimed{Assignment: id, Number: 2}))
	if a := member(t, c, id); len(a.Volumes) != 1 || a.Volumes[0] != more || a.VolumesNumber != 2 {
		t.Errorf("after its node has reported, it claims %+v of number %d", a.Volumes, a.VolumesNumber)
	}
	c = then(c, apply(t, c, 4*time.Hour, lifecycle.NoteDetached{Detached: gone}))
	if len(c.Record.Detached) != 1 || !c.Record.Detached[0].Same(gone[0]) {
		t.Errorf("the record has %+v detached", c.Record.Detached)
	}
	refused(lifecycle.ClaimVolumes{Assignment: "u1.c-77.1"}, "does not belong to the cluster")
}
