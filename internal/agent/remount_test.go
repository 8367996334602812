package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/state"
	volumefake "github.com/nearmetal/nearmetal/internal/volume/fake"
)

// askVolumes changes the volumes that a cluster asks for.
func (s *site) askVolumes(name string, volumes ...api.VolumeAttachment) {
	s.t.Helper()
	_, _, err := s.repo.UpdateIntent(s.t.Context(), name, "u"+name, func(in *api.ClusterIntent) error {
		in.Spec.Volumes = volumes
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// settledWith reports whether all members of a cluster have these volumes and no others, and nothing is pending.
func settledWith(c *state.Cluster, names ...string) bool {
	for a := range c.Held() {
		var has []string
		for _, v := range a.Volumes {
			if v.Number > 0 || v.Detaching {
				return false
			}
			has = append(has, v.Name)
		}
		if !slices.Equal(has, names) {
			return false
		}
	}
	return len(c.Detaching()) == 0
}

func TestVolumesOfARunningClusterChange(t *testing.T) {
	s := newSite(t)
	n := s.newNode("n1")
	n.volumes = volumefake.NewDisk(1 << 40)
	n.start(4)
	s.createVolume(api.VolumeIntent{Name: "data", UID: "uid-data-volume", Access: api.VolumeOneWriter, Project: api.DefaultProject})
	s.createWith("c1", "ada", api.ClusterHome{})
	c := s.awaitPhase("c1", api.ClusterReady)
	var ids []string
	for a := range c.Held() {
		ids = append(ids, a.ID)
	}
	mounted := func(id string) []driver.Mount {
		m, _ := n.host.Member(id)
		return m.Mounts
	}

	data := api.VolumeAttachment{Name: "data", Path: "/ref"}
	s.askVolumes("c1", data)
	s.await("c1", "having its volume", func(c *state.Cluster) bool { return settledWith(c, "data") })
	want := []driver.Mount{{Source: n.volumes.Pool().Dir("uid-data-volume", "uc1"), Path: "/ref"}}
	for _, id := range ids {
		if got := mounted(id); !slices.Equal(got, want) {
			t.Errorf("member %s has %+v mounted, want %+v", id, got, want)
		}
	}
	if has := n.volumes.Attached("uid-data-volume")["uc1"]; has.UserIDs != c.Record.UserIDs || has.ReadOnly {
		t.Errorf("the volume is attached as %+v, want it with the cluster's IDs", has)
	}

	// A member with open files keeps it, and the volume stays in use; the other lets go.
	n.host.HoldOpen(ids[0], "/ref", true)
	s.askVolumes("c1")
	s.awaitState(ids[0], "keeping files open", func(m monitor.MemberState) bool {
		return m.Volumes == 1 && strings.Contains(m.Unmounted, "files of /ref are still open") && m.Phase == api.MemberReady
	})
	s.awaitState(ids[1], "without the volume", func(m monitor.MemberState) bool { return m.Volumes == 2 })
	if _, _, err := s.repo.RequestVolumeDelete(t.Context(), "data", "uid-data-volume", time.Now(), func(*api.VolumeIntent) time.Time { return time.Now() }); err == nil || !strings.Contains(err.Error(), "attached to cluster c1") {
		t.Errorf("the deletion of a volume that is being detached: %v", err)
	}
	if got := mounted(ids[1]); len(got) != 0 || len(n.volumes.Attached("uid-data-volume")) != 1 {
		t.Errorf("one has %+v mounted, and the node has %+v attached", got, n.volumes.Attached("uid-data-volume"))
	}

	// An agent that starts again goes on where it was.
	n.restart(4)
	s.awaitState(ids[0], "keeping files open still", func(m monitor.MemberState) bool { return m.Volumes == 1 && m.Unmounted != "" })
	n.host.HoldOpen(ids[0], "/ref", false)
	s.await("c1", "without its volume", func(c *state.Cluster) bool { return settledWith(c) })
	s.awaitReports(func() bool { return len(n.volumes.Attached("uid-data-volume")) == 0 }, func() string { return "the volume is still attached on its node" })
	for _, id := range ids {
		if got := mounted(id); len(got) != 0 {
			t.Errorf("member %s has %+v mounted, want nothing", id, got)
		}
	}
	if starts := calls(n, "Start"); starts != 2 {
		t.Errorf("members were started %d times, want 2", starts)
	}
	s.ends("c1", n)
}
