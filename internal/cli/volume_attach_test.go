package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

// withVolume is a ready cluster that asks for volume data at /ref, and whose member changes its volumes.
func withVolume(asks bool, changes ...api.MemberVolumeChange) api.Cluster {
	cl := api.Cluster{
		Name: "c1", UID: "u1", Spec: api.ClusterSpec{Groups: []api.Group{{Name: "c1", Size: 1}}},
		Status: api.ClusterStatus{Phase: api.ClusterReady, TotalMembers: 1, ReadyMembers: 1, Members: []api.MemberStatus{{Name: "c1-0", Node: "n1", Phase: api.MemberReady, VolumeChanges: changes}}},
	}
	if asks {
		cl.Spec.Volumes = []api.VolumeAttachment{{Name: "data", Path: "/ref"}}
	}
	for _, c := range changes {
		if c.Change == api.VolumeDetaching {
			cl.Status.DetachingVolumes = []string{c.Name}
		}
	}
	return cl
}

func TestAVolumeIsAttachedOnceAllMembersHaveIt(t *testing.T) {
	f := newFake(t)
	attaching := api.MemberVolumeChange{Name: "data", Path: "/ref", Change: api.VolumeAttaching}
	f.fixed("POST /v1/clusters/c1/volumes", withVolume(true, attaching))
	f.watches("c1", withVolume(false), withVolume(true, attaching), withVolume(true))
	has(t, f.shell().run(t, "volume", "attach", "data:/ref", "c1"), 0, `Volume "data" is attached to cluster "c1" at /ref.`)
	has(t, f.shell().run(t, "volume", "attach", "data:/ref", "c1", "--no-wait"), 0, `Volume "data" is being attached to cluster "c1" at /ref; see 'nearmetal cluster show c1'.`)
	queued := withVolume(true)
	queued.Status.Phase, queued.Status.Members = api.ClusterQueued, nil
	f.fixed("POST /v1/clusters/q/volumes", queued)
	has(t, f.shell().run(t, "volume", "attach", "data:/ref:ro", "q", "--no-wait"), 0, `Cluster "c1" is queued; its members get volume "data" with their places, at /ref, read-only.`)
}

func TestADetachSaysWhatItWaitsFor(t *testing.T) {
	f := newFake(t)
	busy := api.MemberVolumeChange{Name: "data", Path: "/ref", Change: api.VolumeDetaching, Message: `files of /ref are still open in member c1-0 by "sleep" (PID 17)`}
	f.fixed("DELETE /v1/clusters/c1/volumes/data", withVolume(false, busy))
	f.watches("c1", withVolume(true), withVolume(false, busy), withVolume(false))
	out := f.shell().run(t, "volume", "detach", "data", "c1")
	has(t, out, 0, `Volume "data" is detached from cluster "c1".`)
	has(t, f.shell().run(t, "volume", "detach", "data", "c1", "--no-wait"), 0, `Volume "data" is being detached from cluster "c1"`)
	f.fixed("GET /v1/clusters/c1", withVolume(false, busy))
	has(t, f.shell().run(t, "cluster", "show", "c1"), 0, `detaching volume data: files of /ref are still open in member c1-0 by "sleep" (PID 17)`)
}

func TestArgumentsOfAttachAndDetachAreChecked(t *testing.T) {
	f := newFake(t)
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"name the volume and the cluster", []string{"attach", "data"}},
		{"takes one volume and one cluster", []string{"detach", "data", "c1", "c2"}},
		{"write NAME, NAME:PATH", []string{"attach", "data:a:b", "c1"}},
	} {
		has(t, f.shell().run(t, append([]string{"volume"}, tt.args...)...), cli.ExitUsage, tt.want)
	}
	f.expect()
}

func TestAnApplyWaitsForVolumesToo(t *testing.T) {
	for name, cl := range map[string]api.Cluster{
		"a member is about to have one":  withVolume(true, api.MemberVolumeChange{Name: "data", Change: api.VolumeAttaching}),
		"a member is to let go of one":   withVolume(false, api.MemberVolumeChange{Name: "data", Change: api.VolumeDetaching}),
		"all members have their volumes": withVolume(true),
	} {
		f := newFake(t)
		cl.Status.Members[0].Group = "c1"
		settled := withVolume(true)
		settled.Status.Members[0].Group = "c1"
		f.fixed("PUT /v1/clusters/c1", api.ApplyResult{Steps: []api.PlanStep{{Action: "add", Path: "volumes[data]"}}, Applied: true, Cluster: &cl})
		f.watches("c1", cl, settled)
		file := filepath.Join(t.TempDir(), "c1.yaml")
		if err := os.WriteFile(file, []byte("name: c1\nsize: 1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		out := f.shell().run(t, "cluster", "apply", "-f", file)
		has(t, out, 0, "Volumes:", "data (/ref)")
		if strings.Contains(out.out, "attaching volume") || strings.Contains(out.out, "detaching volume") {
			t.Errorf("%s: the command ended before that was done:\n%s", name, out.out)
		}
	}
}
