package apiserver_test

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// machine asks for a cluster of virtual machines with a block volume.
func machine(name string, size int, volumes ...api.VolumeAttachment) api.ClusterRequest {
	return api.ClusterRequest{Name: name, Stack: api.StackVM, Size: size, Volumes: volumes}
}

func TestABlockVolumeIsTheDiskOfOneMachine(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	c := s.Client()
	disk := makeVolume(t, c, api.VolumeRequest{Name: "disk", Size: gib, Kind: api.VolumeBlock})
	if disk.Kind != api.VolumeBlock || disk.Files != 0 {
		t.Errorf("it is %+v", disk)
	}
	makeVolume(t, c, api.VolumeRequest{Name: "read", Size: gib, Kind: api.VolumeBlock, Access: api.VolumeManyReaders})
	for what, req := range map[string]api.VolumeRequest{
		"a kind that does not exist": {Name: "x", Size: gib, Kind: "tape"},
		"a number of files":          {Name: "x", Size: gib, Kind: api.VolumeBlock, Files: 100},
		"many writers":               {Name: "x", Size: gib, Kind: api.VolumeBlock, Access: api.VolumeShared},
		"a backup":                   {Name: "x", Size: gib, Kind: api.VolumeBlock, FromBackup: true},
		"the kind of another origin": {Name: "x", Size: gib, Kind: api.VolumeFiles, From: "disk"},
		"files of a clone":           {Name: "x", Files: 100, From: "disk"},
		"many writers of a clone":    {Name: "x", Access: api.VolumeShared, From: "disk"},
	} {
		if _, err := c.CreateVolume(t.Context(), req); !client.HasCode(err, "invalid_request") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if clone := makeVolume(t, c, api.VolumeRequest{Name: "clone", From: "disk"}); clone.Kind != api.VolumeBlock || clone.Files != 0 {
		t.Errorf("the clone is %+v", clone)
	}
	files, shared, smaller, larger := int64(100), api.VolumeShared, api.Bytes(gib/2), api.Bytes(2*gib)
	for what, change := range map[string]api.VolumeChange{"files": {Files: &files}, "many writers": {Access: &shared}, "less": {Size: &smaller}} {
		if _, err := c.ChangeVolume(t.Context(), "disk", change); !client.HasCode(err, "invalid_request") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if v, err := c.ChangeVolume(t.Context(), "disk", api.VolumeChange{Size: &larger}); err != nil || v.Files != 0 || v.Size != larger {
		t.Errorf("it grew to %+v, %v", v, err)
	}

	asked := api.VolumeAttachment{Name: "disk"}
	for what, req := range map[string]api.ClusterRequest{
		"a container":      {Name: "c", Stack: api.StackContainer, Size: 1, Volumes: []api.VolumeAttachment{asked}},
		"two machines":     machine("c", 2, asked),
		"a home":           machine("c", 1, api.VolumeAttachment{Name: "disk", Path: "/home"}),
		"two groups":       {Name: "c", Groups: []api.Group{{Name: "a", Stack: api.StackVM, Size: 1}, {Name: "b", Stack: api.StackVM, Size: 1}}, Volumes: []api.VolumeAttachment{asked}},
		"a spare":          {Name: "c", Groups: []api.Group{{Name: "a", Stack: api.StackVM, Size: 1, Spares: 1}}, Volumes: []api.VolumeAttachment{asked}},
		"a container, too": {Name: "c", Groups: []api.Group{{Name: "a", Stack: api.StackContainer, Size: 1}}, Volumes: []api.VolumeAttachment{asked}},
	} {
		if _, err := c.CreateCluster(t.Context(), req); !client.HasCode(err, "cant_attach") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := c.CreateCluster(t.Context(), machine("one", 1, asked, api.VolumeAttachment{Name: "read", ReadOnly: true}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateCluster(t.Context(), machine("two", 1, asked)); !client.HasCode(err, "volume_in_use") {
		t.Errorf("a second machine writes: %v", err)
	}
	if _, err := c.CreateCluster(t.Context(), machine("two", 1, api.VolumeAttachment{Name: "disk", ReadOnly: true})); !client.HasCode(err, "volume_in_use") {
		t.Errorf("a second machine reads what another writes: %v", err)
	}
	if _, err := c.CreateCluster(t.Context(), machine("two", 1, api.VolumeAttachment{Name: "read", ReadOnly: true})); err != nil {
		t.Errorf("two machines can't read: %v", err)
	}
	if _, err := c.ScaleCluster(t.Context(), "one", api.ScaleRequest{Size: 2}); !client.HasCode(err, "cant_attach") {
		t.Errorf("it gets a second machine: %v", err)
	}
	for what, try := range map[string]func() error{
		"attached to a machine that runs": func() error {
			_, err := c.AttachVolume(t.Context(), "one", api.VolumeAttachment{Name: "clone"})
			return err
		},
		"detached from a machine that runs": func() error { _, err := c.DetachVolume(t.Context(), "one", "disk"); return err },
	} {
		if err := try(); !client.HasCode(err, "cant_attach") {
			t.Errorf("it is %s: %v", what, err)
		}
	}
	if _, err := c.BackUpVolume(t.Context(), "disk", ""); !client.HasCode(err, "volume_is_block") {
		t.Errorf("it is backed up: %v", err)
	}
	if _, err := c.CreateSnapshot(t.Context(), "one", "s"); !client.HasCode(err, "cant_save") {
		t.Errorf("the cluster has a snapshot: %v", err)
	}
}
