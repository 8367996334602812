package apiserver_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestGroupsOfAnotherSystemsDiskAreRefusedWhatNeedsAnAgent(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.VLANs = api.VLANPool{First: 100, Last: 100} })
	s.AddDisk("other")
	check := api.Check{Name: "disk", Command: []string{"true"}}
	for want, req := range map[string]api.ClusterRequest{
		"boots in virtual machines only": {Name: "c1", Environment: "other"},
		"nobody tells that system which": {Name: "c1", Environment: "other", Stack: api.StackVM, Interface: api.InterfaceVF, Standby: true},
		"no node sees the traffic of a":  {Name: "c1", Environment: "other", Stack: api.StackVM, Interface: api.InterfaceVF},
		"without an agent to run":        {Name: "c1", Environment: "other", Stack: api.StackVM, Checks: []api.Check{check}},
		`to mount volume "data"; omit`:   {Name: "c1", Environment: "other", Stack: api.StackVM, Volumes: []api.VolumeAttachment{{Name: "home", Path: "/home"}, {Name: "data"}}},
	} {
		if _, err := s.Client().CreateCluster(t.Context(), req); !client.HasCode(err, "invalid_cluster") || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	makeVolume(t, s.Client(), api.VolumeRequest{Name: "disk", Size: gib, Kind: api.VolumeBlock})
	with := api.ClusterRequest{Name: "c1", Environment: "other", Stack: api.StackVM, Volumes: []api.VolumeAttachment{{Name: "disk"}}}
	if _, err := s.Client().CreateCluster(t.Context(), with); err != nil {
		t.Error(err)
	}
}

func TestMembersOfAnotherSystemAreNotSaved(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddDisk("other")
	if _, err := s.Client().CreateCluster(t.Context(), api.ClusterRequest{Name: "c1", Environment: "other", Stack: api.StackVM}); err != nil {
		t.Fatal(err)
	}
	s.AddNode("n1", 2)
	s.Place("c1")
	s.MakeReady("c1")
	if _, err := s.Client().SaveCluster(t.Context(), "c1"); !client.HasCode(err, "cant_save") || !strings.Contains(err.Error(), "the disk of another system") {
		t.Errorf("error %v", err)
	}
}

func TestAnUploadIsStoredWhenItIsWhatItsDigestSays(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	content := []byte("a disk image")
	digest := image.DigestOf(content)
	c := s.Client()
	if err := c.Upload(t.Context(), string(digest), int64(len(content)), bytes.NewReader([]byte("another one!"))); !client.HasCode(err, "digest_mismatch") {
		t.Errorf("another content: %v", err)
	}
	for range 2 { // the second one is not read
		if err := c.Upload(t.Context(), string(digest), int64(len(content)), bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	for _, role := range []api.Role{api.RoleMember, api.RoleViewer} {
		if err := s.ClientAs("mallory", "", role).Upload(t.Context(), string(digest), int64(len(content)), bytes.NewReader(content)); !client.HasCode(err, "forbidden") {
			t.Errorf("a %s may upload: %v", role, err)
		}
	}
}
