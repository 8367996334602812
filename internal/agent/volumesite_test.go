package agent_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/volume"
	volumefake "github.com/nearmetal/nearmetal/internal/volume/fake"
)

func (s *site) createVolume(in api.VolumeIntent) {
	s.t.Helper()
	in.SizeBytes, in.MaxFiles, in.CreatedAt = 1<<30, 1<<16, time.Now()
	if _, err := s.repo.CreateVolume(s.t.Context(), in, func([]api.VolumeIntent) error { return nil }); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) createWith(name, user string, home api.ClusterHome, volumes ...api.VolumeAttachment) {
	s.t.Helper()
	_, err := s.repo.CreateCluster(s.t.Context(), api.ClusterIntent{
		Name: name, UID: "u" + name, User: user, CreatedAt: time.Now(), Spec: api.ClusterSpec{Home: home, Volumes: volumes, Groups: []api.Group{{
			Name: name, Size: 2, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
		}}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// started are the members that a node's driver was asked to start.
type started struct {
	driver.Driver
	members chan driver.Member
}

func (d started) Start(ctx context.Context, m driver.Member) error {
	d.members <- m
	return d.Driver.Start(ctx, m)
}

func TestAClusterGetsItsVolumesAndLeavesThemAttachedToNobody(t *testing.T) {
	s := newSite(t)
	s.node("n1", 4)
	s.createVolume(api.VolumeIntent{Name: "data", UID: "uid-data-volume", Access: api.VolumeOneWriter, Project: api.DefaultProject})
	s.createVolume(api.VolumeIntent{Name: api.HomeVolumeName("ada"), UID: "uid-home-volume", Access: api.VolumeShared, Project: api.DefaultProject, Home: true, User: "ada"})
	s.createWith("c1", "ada", api.ClusterHome{Kind: api.HomeOfUser}, api.VolumeAttachment{Name: "data"})
	c := s.awaitPhase("c1", api.ClusterQueued) // no node has room for volumes
	if want := "waits for room (volume); 'explain' shows what it waits for"; c.Record.Message != want {
		t.Errorf("message: got %q, want %q", c.Record.Message, want)
	}
	n := s.newNode("n2")
	n.volumes = volumefake.NewDisk(1 << 40)
	members := make(chan driver.Member, 8)
	n.wrap = func(d driver.Driver) driver.Driver { return started{d, members} }
	n.start(2)
	c = s.awaitPhase("c1", api.ClusterReady)
	for a := range c.Held() {
		want := []api.VolumeClaim{
			{UID: "uid-home-volume", Name: "home-ada", Path: "/home", Node: "n2"}, {UID: "uid-data-volume", Name: "data", Path: "/volumes/data", Node: "n2"},
		}
		if a.Node != "n2" || !slices.Equal(a.Volumes, want) {
			t.Errorf("member %s is on %s with %+v, want it on n2 with %+v", a.Member, a.Node, a.Volumes, want)
		}
	}
	pool := n.volumes.Pool()
	for range 2 {
		m := <-members
		if m.HomeDir != pool.Dir("uid-home-volume", "uc1") || !slices.Equal(m.Mounts, []driver.Mount{{Source: pool.Dir("uid-data-volume", "uc1"), Path: "/volumes/data"}}) {
			t.Errorf("member %s was started with the home %s and %+v", m.Assignment.Member, m.HomeDir, m.Mounts)
		}
	}
	if has := n.volumes.Attached("uid-data-volume")["uc1"]; has.UserIDs != c.Record.UserIDs || has.ReadOnly {
		t.Errorf("the volume is attached as %+v, want it with the cluster's IDs %+v", has, c.Record.UserIDs)
	}
	s.delete("c1")
	s.awaitGone("c1")
	s.awaitReports(func() bool {
		return len(n.volumes.Attached("uid-data-volume"))+len(n.volumes.Attached("uid-home-volume")) == 0
	}, func() string { return "the volumes of a cluster that is gone are still attached" })
	if calls(n, "Clean") == 0 {
		t.Error("no member was cleaned")
	}
}

func TestAClusterWithoutAHomeTellsItsMembersSo(t *testing.T) {
	s := newSite(t)
	n := s.newNode("n1")
	members := make(chan driver.Member, 8)
	n.wrap = func(d driver.Driver) driver.Driver { return started{d, members} }
	n.start(2)
	s.createWith("c1", "ada", api.ClusterHome{Kind: api.HomeNone})
	s.awaitPhase("c1", api.ClusterReady)
	if m := <-members; m.HomeDir != "" {
		t.Errorf("home: got %q, want a private one", m.HomeDir)
	}
	s.ends("c1", n)
}

func TestAVolumeIsMadeOfABackupThatIsSent(t *testing.T) {
	s := newSite(t)
	n := s.newNode("n1")
	n.volumes = volumefake.NewDisk(1 << 40)
	n.start(2)
	s.createVolume(api.VolumeIntent{Name: "data", UID: "uid-data-volume", Access: api.VolumeOneWriter, Project: api.DefaultProject, Origin: &api.VolumeOrigin{Upload: true}})
	seen := func() *volume.State {
		all, _, _ := s.agent.Volumes("n1")
		for i := range all {
			if all[i].UID == "uid-data-volume" {
				return &all[i]
			}
		}
		return nil
	}
	record := func() *api.VolumeRecord { return s.cache.View().Volume("uid-data-volume").Record }
	s.awaitReports(func() bool { v := seen(); return v != nil && v.Import != nil }, func() string { return "the node does not wait for the backup" })
	source := volumefake.NewDisk(1 << 40)
	v := volume.Volume{UID: "v", SizeBytes: 1 << 30, MaxFiles: 1 << 16}
	var backup bytes.Buffer
	if err := errors.Join(source.Pool().Apply(t.Context(), v), source.Use("v", 1<<20, 7), source.Pool().Export(t.Context(), "v", "", &backup)); err != nil {
		t.Fatal(err)
	}
	for _, sent := range [][]byte{backup.Bytes()[:backup.Len()-1], backup.Bytes()} {
		whole := len(sent) == backup.Len()
		stream, err := s.agent.OpenContent(t.Context(), "n1", "uid-data-volume")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Write(sent); err != nil {
			t.Fatal(err)
		}
		if err := stream.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		var answer archive.Tail
		if _, err := io.Copy(&answer, stream); err != nil {
			t.Fatal(err)
		}
		if _, err := answer.Trailer(); (err == nil) != whole {
			t.Fatalf("of %d bytes of %d: the answer is %v", len(sent), backup.Len(), err)
		}
		if !whole && record().Made {
			t.Error("a cut backup is noted as made")
		}
		_ = stream.Close()
	}
	s.awaitReports(func() bool { v := seen(); return v != nil && v.Ready && v.UsedFiles == 7 }, func() string { return "the volume is not ready" })
	s.awaitReports(func() bool { return record().Made }, func() string { return "the volume is not noted as made" })
}
