package apiserver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/volume"
)

const gib = 1 << 30

// ptr is a pointer to a value.
func ptr[T any](v T) *T { return &v }

func makeVolume(t *testing.T, c *client.Client, req api.VolumeRequest) api.VolumeStatus {
	t.Helper()
	v, err := c.CreateVolume(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestAVolumeBelongsToItsProjectAndIsUnknownToOthers(t *testing.T) {
	s := twoProjects(t)
	ann, eve, vic := s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleMember), s.ClientAs("vic", "default", api.RoleViewer)
	made := makeVolume(t, ann, api.VolumeRequest{Name: "data", Size: 10 * gib})
	want := api.VolumeStatus{
		Name: "data", UID: made.UID, Project: "default", User: "ann", Kind: api.VolumeFiles, Size: 10 * gib, Files: 10 * gib / api.VolumeBytesPerFile, Access: api.VolumeOneWriter,
		Retention: api.DefaultVolumeRetention, Phase: api.VolumePending, Message: "no node can keep volumes now: node n1 has no pool for volumes",
		Snapshots: []api.VolumeSnapshot{}, Clusters: []api.VolumeCluster{}, CreatedAt: made.CreatedAt,
	}
	if diff := cmp.Diff(want, made); diff != "" {
		t.Errorf("created, -want +got:\n%s", diff)
	}
	for who, c := range map[string]*client.Client{"a viewer": vic, "a member of another project": eve} {
		if _, err := c.CreateVolume(t.Context(), api.VolumeRequest{Name: "x", Project: "default", Size: gib}); !client.HasCode(err, "forbidden") {
			t.Errorf("%s creates a volume of the default project: %v", who, err)
		}
	}
	for what, do := range map[string]func(c *client.Client) error{
		"delete":   func(c *client.Client) error { _, err := c.DeleteVolume(t.Context(), made.UID, true); return err },
		"undelete": func(c *client.Client) error { _, err := c.UndeleteVolume(t.Context(), made.UID); return err },
		"change": func(c *client.Client) error {
			_, err := c.ChangeVolume(t.Context(), made.UID, api.VolumeChange{Size: ptr(api.Bytes(gib))})
			return err
		},
		"snapshot": func(c *client.Client) error { _, err := c.CreateVolumeSnapshot(t.Context(), made.UID, "s"); return err },
		"restore":  func(c *client.Client) error { _, err := c.RestoreVolume(t.Context(), made.UID, "s"); return err },
	} {
		if err := do(eve); !client.HasCode(err, "volume_not_found") {
			t.Errorf("a member of another project may %s: %v", what, err)
		}
		if err := do(vic); !client.HasCode(err, "forbidden") {
			t.Errorf("a viewer may %s: %v", what, err)
		}
	}
	if all, err := vic.Volumes(t.Context()); err != nil || len(all) != 1 || all[0].Name != "data" {
		t.Errorf("a viewer sees %+v, %v", all, err)
	}
	if all, err := eve.Volumes(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("a member of another project sees %+v, %v", all, err)
	}
	if _, err := ann.CreateVolume(t.Context(), api.VolumeRequest{Name: "data", Size: gib}); !client.HasCode(err, "volume_exists") {
		t.Errorf("two volumes of one name: %v", err)
	}
	makeVolume(t, eve, api.VolumeRequest{Name: "data", Size: gib})
	if v, err := s.Client().Volume(t.Context(), "lab.data"); err != nil || v.Project != "lab" {
		t.Errorf("an administrator sees %+v, %v", v, err)
	}
}

func TestRequestsForVolumesAreRefusedWithTheReason(t *testing.T) {
	s := twoProjects(t)
	c := s.Client()
	makeVolume(t, c, api.VolumeRequest{Name: "data", Size: 2 * gib})
	for what, test := range map[string]struct {
		req  api.VolumeRequest
		code string
		says string
	}{
		"no size":                   {api.VolumeRequest{Name: "x"}, "invalid_request", "size: is missing; give a size such as 10GiB"},
		"too small":                 {api.VolumeRequest{Name: "x", Size: 1 << 20}, "invalid_request", "1MiB is not a size of a volume; give 64MiB to 16TiB"},
		"no name":                   {api.VolumeRequest{Size: gib}, "invalid_request", "name"},
		"the name of a home":        {api.VolumeRequest{Name: "home-eve", Size: gib}, "invalid_request", "kept for homes"},
		"no such access":            {api.VolumeRequest{Name: "x", Size: gib, Access: "all"}, "invalid_request", `"all" is not a kind of access; give one-writer, many-readers, shared`},
		"too few files":             {api.VolumeRequest{Name: "x", Size: gib, Files: 1}, "invalid_request", "1 is not a number of files"},
		"kept too long":             {api.VolumeRequest{Name: "x", Size: gib, Retention: ptr(api.Duration(10000 * time.Hour))}, "invalid_request", "is not a retention; give 0 to 366d"},
		"a limit that is too low":   {api.VolumeRequest{Name: "x", Size: gib, IOLimit: 1<<20 - 1}, "invalid_request", "io_limit: 1048575 per second is not a limit of I/O; give 1MiB to 1TiB, or 0 for no limit"},
		"a limit that is too high":  {api.VolumeRequest{Name: "x", Size: gib, IOLimit: 1<<40 + 1}, "invalid_request", "is not a limit of I/O"},
		"a limit that is negative":  {api.VolumeRequest{Name: "x", Size: gib, IOLimit: -1}, "invalid_request", ""},
		"no such node":              {api.VolumeRequest{Name: "x", Size: gib, Node: "n9"}, "node_not_found", `node "n9" does not exist`},
		"no such origin":            {api.VolumeRequest{Name: "x", From: "nothing"}, "volume_not_found", `volume "nothing" does not exist`},
		"no such snapshot":          {api.VolumeRequest{Name: "x", From: "data@monday"}, "volume_snapshot_not_found", `volume "data" has no snapshot "monday"`},
		"no name of a snapshot":     {api.VolumeRequest{Name: "x", From: "data@"}, "invalid_request", "is not VOLUME or VOLUME@SNAPSHOT"},
		"a clone that is smaller":   {api.VolumeRequest{Name: "x", From: "data", Size: gib}, "invalid_request", `1GiB is less than the 2GiB of volume "data"`},
		"of a project that is none": {api.VolumeRequest{Name: "x", Project: "nobody", Size: gib}, "project_not_found", `project "nobody"`},
	} {
		if _, err := c.CreateVolume(t.Context(), test.req); !client.HasCode(err, test.code) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %s and %q", what, err, test.code, test.says)
		}
	}
	for what, change := range map[string]api.VolumeChange{"of nothing": {}, "to a limit that is too low": {IOLimit: ptr(api.Bytes(1000))}} {
		if _, err := c.ChangeVolume(t.Context(), "data", change); !client.HasCode(err, "invalid_request") {
			t.Errorf("a change %s: %v", what, err)
		}
	}
}

func TestTheQuotaBoundsWhatVolumesAndSnapshotsHold(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddPool("n1", 100*gib)
	s.Project("lab", api.Quota{Storage: 10 * gib})
	eve := s.ClientAs("eve", "lab", api.RoleMember)
	makeVolume(t, eve, api.VolumeRequest{Name: "a", Size: 4 * gib})
	makeVolume(t, eve, api.VolumeRequest{Name: "b", Size: 4 * gib})
	over := func(what string, err error, says string) {
		t.Helper()
		if !client.HasCode(err, "over_quota") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want over_quota and %q", what, err, says)
		}
	}
	_, err := eve.CreateVolume(t.Context(), api.VolumeRequest{Name: "c", Size: 4 * gib})
	over("a third volume", err, "it needs 4GiB storage, but the project uses 8GiB of its quota of 10GiB")
	_, err = eve.CreateVolume(t.Context(), api.VolumeRequest{Name: "c", Size: 40 * gib})
	over("a volume larger than the quota", err, "it needs 40GiB storage, but the project's quota is 10GiB")
	_, err = eve.ChangeVolume(t.Context(), "a", api.VolumeChange{Size: ptr(api.Bytes(7 * gib))})
	over("growth", err, "it needs 3GiB storage, but the project uses 8GiB of its quota of 10GiB")
	if v, err := eve.ChangeVolume(t.Context(), "a", api.VolumeChange{Size: ptr(api.Bytes(6 * gib))}); err != nil || v.Size != 6*gib || v.Files != 6*gib/api.VolumeBytesPerFile {
		t.Errorf("growth up to the quota: %+v, %v", v, err)
	}
	if _, err := eve.ChangeVolume(t.Context(), "a", api.VolumeChange{Size: ptr(api.Bytes(4 * gib))}); err != nil {
		t.Errorf("shrinking: %v", err)
	}
	s.PlaceVolume("lab.b", "n1", gib, volume.SnapshotState{UID: "s", HeldBytes: gib})
	if p, err := eve.Project(t.Context(), "lab"); err != nil || p.Used.Storage != 9*gib {
		t.Errorf("with a snapshot of 1GiB the project uses %s, %v", p.Used.Storage, err)
	}
	_, err = eve.CreateVolume(t.Context(), api.VolumeRequest{Name: "c", Size: 2 * gib})
	over("beside a snapshot", err, "the project uses 9GiB")
	if _, err := eve.DeleteVolume(t.Context(), "a", false); err != nil {
		t.Fatal(err)
	}
	_, err = eve.CreateVolume(t.Context(), api.VolumeRequest{Name: "c", Size: 2 * gib})
	over("beside what is deleted and kept", err, "the project uses 9GiB")
	if _, err := s.Client().PatchProject(t.Context(), "lab", api.MergePatch{"quota": api.MergePatch{"storage": "5GiB"}}); !client.HasCode(err, "quota_in_use") || !strings.Contains(err.Error(), "quota.storage") {
		t.Errorf("a quota below what is used: %v", err)
	}
}

func TestADeletedVolumeIsKeptAndCanBeUndeleted(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddPool("n1", 100*gib)
	c := s.Client()
	makeVolume(t, c, api.VolumeRequest{Name: "data", Size: 4 * gib, Retention: ptr(api.Duration(time.Hour))})
	s.PlaceVolume("data", "n1", gib)
	v, err := c.Volume(t.Context(), "data")
	if err != nil || v.Phase != api.VolumeReady || v.Node != "n1" || v.Held != 4*gib || v.Used == nil || *v.Used != gib || *v.UsedFiles != 3 {
		t.Fatalf("the volume is %+v, %v", v, err)
	}
	gone, err := c.DeleteVolume(t.Context(), "data", false)
	if err != nil || gone.Phase != api.VolumeDeleted || gone.PurgeAt == nil || gone.PurgeAt.Sub(*gone.DeletedAt) != time.Hour {
		t.Fatalf("deleted: %+v, %v", gone, err)
	}
	if _, err := c.CreateVolume(t.Context(), api.VolumeRequest{Name: "data", Size: gib}); !client.HasCode(err, "volume_exists") || !strings.Contains(err.Error(), "nearmetal volume undelete data") {
		t.Errorf("its name is given away: %v", err)
	}
	for what, err := range map[string]error{
		"changed":     second(c.ChangeVolume(t.Context(), "data", api.VolumeChange{Size: ptr(api.Bytes(5 * gib))})),
		"cloned":      second(c.CreateVolume(t.Context(), api.VolumeRequest{Name: "copy", From: "data"})),
		"snapshotted": second(c.CreateVolumeSnapshot(t.Context(), "data", "s")),
	} {
		if !client.HasCode(err, "volume_deleted") {
			t.Errorf("a deleted volume is %s: %v", what, err)
		}
	}
	if v, err := c.UndeleteVolume(t.Context(), "data"); err != nil || v.Phase != api.VolumeReady || v.PurgeAt != nil {
		t.Errorf("undeleted: %+v, %v", v, err)
	}
	if v, err := c.DeleteVolume(t.Context(), "data", true); err != nil || v.Phase != api.VolumeDeleted || v.Message != "purged now" {
		t.Errorf("deleted now: %+v, %v", v, err)
	}
	stored := s.Cache.View().VolumeNamed("data")
	rec := *stored.Record
	rec.Generation, rec.Purging = 2, true
	if _, err := s.Leader.CommitVolume(t.Context(), stored, rec, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.UndeleteVolume(t.Context(), "data"); !client.HasCode(err, "volume_purging") {
		t.Errorf("undeleted while it is purged: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestSnapshotsOfAVolumeAreMadeShownRestoredAndCloned(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddPool("n1", 100*gib)
	s.AddPool("n2", 100*gib)
	c := s.Client()
	makeVolume(t, c, api.VolumeRequest{Name: "data", Size: 4 * gib})
	v, err := c.CreateVolumeSnapshot(t.Context(), "data", "monday")
	if err != nil || len(v.Snapshots) != 1 || v.Snapshots[0].Ready {
		t.Fatalf("a new snapshot: %+v, %v", v.Snapshots, err)
	}
	s.PlaceVolume("data", "n1", gib, volume.SnapshotState{UID: v.Snapshots[0].UID, HeldBytes: gib / 2})
	if all, err := c.VolumeSnapshots(t.Context(), "data"); err != nil || len(all) != 1 || !all[0].Ready || all[0].Bytes != gib/2 {
		t.Errorf("the snapshots are %+v, %v", all, err)
	}
	if _, err := c.CreateVolumeSnapshot(t.Context(), "data", "monday"); !client.HasCode(err, "volume_snapshot_exists") {
		t.Errorf("two snapshots of one name: %v", err)
	}
	if _, err := c.CreateVolumeSnapshot(t.Context(), "data", "Monday!"); !client.HasCode(err, "invalid_request") {
		t.Errorf("a snapshot with no name: %v", err)
	}
	clone := makeVolume(t, c, api.VolumeRequest{Name: "copy", From: "data@monday"})
	if clone.From != "data@monday" || clone.Size != 4*gib || clone.Files != v.Files {
		t.Errorf("a clone of a snapshot is %+v", clone)
	}
	if now := makeVolume(t, c, api.VolumeRequest{Name: "copy-now", From: "data", Size: 8 * gib}); now.From != "data" || now.Size != 8*gib {
		t.Errorf("a clone of a volume is %+v", now)
	}
	if _, err := c.CreateVolume(t.Context(), api.VolumeRequest{Name: "far", From: "data", Node: "n2"}); !client.HasCode(err, "invalid_request") || !strings.Contains(err.Error(), "is on node n1") {
		t.Errorf("a clone on another node: %v", err)
	}
	if _, err := c.RestoreVolume(t.Context(), "data", "sunday"); !client.HasCode(err, "volume_snapshot_not_found") {
		t.Errorf("a restore of nothing: %v", err)
	}
	v, err = c.RestoreVolume(t.Context(), "data", "monday")
	if err != nil || v.Restore == nil || v.Restore.Snapshot != "monday" || v.Restore.Done || v.Phase != api.VolumeUnavailable {
		t.Errorf("a restore: %+v, %v", v, err)
	}
	if _, err := c.DeleteVolumeSnapshot(t.Context(), "data", "monday"); !client.HasCode(err, "volume_restoring") {
		t.Errorf("a snapshot is deleted that is being restored: %v", err)
	}
	s.Live.SetVolumes("n1", volume.State{UID: v.UID, Ready: true, SizeBytes: 4 * gib, UsedBytes: gib, Restored: 1, Snapshots: []volume.SnapshotState{{UID: v.Snapshots[0].UID}}})
	if v, err := c.DeleteVolumeSnapshot(t.Context(), "data", "monday"); err != nil || len(v.Snapshots) != 0 || !v.Restore.Done || v.Phase != api.VolumeReady {
		t.Errorf("after the restore: %+v, %v", v, err)
	}
	if _, err := c.DeleteVolumeSnapshot(t.Context(), "data", "monday"); !client.HasCode(err, "volume_snapshot_not_found") {
		t.Errorf("a snapshot is deleted twice: %v", err)
	}
	if _, err := c.ChangeVolume(t.Context(), "data", api.VolumeChange{Size: ptr(api.Bytes(gib / 2))}); !client.HasCode(err, "volume_too_full") || !strings.Contains(err.Error(), "holds 1GiB and can't shrink to 512MiB") {
		t.Errorf("a volume shrinks below what it holds: %v", err)
	}
}

func TestAVolumeThatAClusterAsksForStays(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddPool("n1", 100*gib)
	c := s.Client()
	made := makeVolume(t, c, api.VolumeRequest{Name: "data", Size: 4 * gib})
	in := api.ClusterIntent{Name: "c1", UID: "uid-c1", Project: "default", CreatedAt: made.CreatedAt, Spec: api.ClusterSpec{
		Groups: []api.Group{{Name: "c1", Size: 1}}, Volumes: []api.VolumeAttachment{{Name: "data", ReadOnly: true}},
	}}
	if _, err := s.Repo.CreateCluster(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteVolume(t.Context(), "data", true); !client.HasCode(err, "volume_in_use") || !strings.Contains(err.Error(), "attached to cluster c1") {
		t.Errorf("an attached volume is deleted: %v", err)
	}
	if _, err := c.CreateVolumeSnapshot(t.Context(), "data", "s"); err != nil {
		t.Error(err)
	}
	if _, err := c.RestoreVolume(t.Context(), "data", "s"); !client.HasCode(err, "volume_in_use") {
		t.Errorf("an attached volume is restored: %v", err)
	}
	v, err := c.Volume(t.Context(), "data")
	if err != nil || len(v.Clusters) != 1 || v.Clusters[0] != (api.VolumeCluster{Cluster: "c1", ReadOnly: true}) {
		t.Errorf("its clusters are %+v, %v", v.Clusters, err)
	}
	limited := s.ClientOf(s.TokenWith(api.TokenInfo{User: "ann", Role: api.RoleMember, Project: "default", Limits: api.Limits{Clusters: []string{"x"}}}))
	if v, err := limited.Volume(t.Context(), "data"); err != nil || len(v.Clusters) != 0 {
		t.Errorf("a token for another cluster sees %+v, %v", v.Clusters, err)
	}
	if _, err := limited.DeleteVolume(t.Context(), "data", false); !client.HasCode(err, "forbidden") {
		t.Errorf("a token for another cluster deletes it: %v", err)
	}
}

func TestALimitOfIOIsShownChangedAndLifted(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddPool("n1", 100*gib)
	c := s.Client()
	shows := func(v api.VolumeStatus, err error, want api.Bytes) {
		t.Helper()
		now, showErr := c.Volume(t.Context(), "data")
		if err != nil || showErr != nil || v.IOLimit != want || now.IOLimit != want {
			t.Errorf("the limit is %s and then %s (%v, %v), want %s", v.IOLimit, now.IOLimit, err, showErr, want)
		}
	}
	v, err := c.CreateVolume(t.Context(), api.VolumeRequest{Name: "data", Size: gib, IOLimit: 200 << 20})
	shows(v, err, 200<<20)
	v, err = c.ChangeVolume(t.Context(), "data", api.VolumeChange{Access: ptr(api.VolumeShared)})
	shows(v, err, 200<<20)
	v, err = c.ChangeVolume(t.Context(), "data", api.VolumeChange{IOLimit: ptr(api.Bytes(1 << 20))})
	shows(v, err, 1<<20)
	v, err = c.ChangeVolume(t.Context(), "data", api.VolumeChange{IOLimit: ptr(api.Bytes(0))})
	shows(v, err, 0)
	disk := makeVolume(t, c, api.VolumeRequest{Name: "disk", Size: gib, Kind: api.VolumeBlock, IOLimit: 1 << 20})
	changed, err := c.ChangeVolume(t.Context(), "disk", api.VolumeChange{IOLimit: ptr(api.Bytes(2 << 20))})
	if err != nil || disk.IOLimit != 1<<20 || changed.IOLimit != 2<<20 || changed.IOUnlimited != "" {
		t.Errorf("a block volume has the limit %v and then %v (%q), %v", disk.IOLimit, changed.IOLimit, changed.IOUnlimited, err)
	}
}

func TestANodeIsShownWithItsPool(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddPool("n1", 100*gib)
	makeVolume(t, s.Client(), api.VolumeRequest{Name: "data", Size: 4 * gib})
	s.PlaceVolume("data", "n1", gib)
	n, err := s.Client().Node(t.Context(), "n1")
	if err != nil || n.Agent.VolumePool == nil || n.Agent.VolumePool.CapacityBytes != 100*gib || n.Agent.VolumeBytes != 4*gib {
		t.Errorf("the node is %+v, %v", n.Agent, err)
	}
}
