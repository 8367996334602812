package apiserver_test

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/volume"
)

func TestABackupIsSentByWhoMayChangeTheVolume(t *testing.T) {
	s := twoProjects(t)
	ann, eve, vic := s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleMember), s.ClientAs("vic", "default", api.RoleViewer)
	heard := make(chan string, 1)
	s.Tunnels.Member = func(conn *net.TCPConn) {
		text, _ := io.ReadAll(conn)
		heard <- string(text)
		_, _ = io.WriteString(conn, "the answer")
	}
	made := makeVolume(t, ann, api.VolumeRequest{Name: "data", Size: gib, FromBackup: true})
	if !made.FromBackup || made.From != "" || made.Phase != api.VolumePending {
		t.Errorf("the new volume is %+v", made)
	}
	if _, err := ann.SendVolumeContent(t.Context(), "data"); !client.HasCode(err, "member_unreachable") {
		t.Errorf("a volume without a node: %v", err)
	}
	s.AwaitBackup("data", "n1", volume.ImportState{Receiving: true, ReceivedBytes: gib / 2})
	v, err := ann.Volume(t.Context(), "data")
	if err != nil || v.Phase != api.VolumeImporting || v.Message != "512MiB received" || v.Resizing || v.Used != nil || v.Import == nil || *v.Import != (api.VolumeImport{Receiving: true, Received: gib / 2}) {
		t.Errorf("meanwhile it is %+v, %v", v, err)
	}
	stream, err := ann.SendVolumeContent(t.Context(), "data")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(stream, "the archive"); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(stream); err != nil || string(got) != "the answer" {
		t.Errorf("read %q, %v", got, err)
	}
	_ = stream.Close()
	if got := <-heard; got != "the archive" {
		t.Errorf("the node heard %q", got)
	}
	if opened, want := s.Tunnels.Opened(), []string{"n1/" + made.UID + " content"}; !slices.Equal(opened, want) {
		t.Errorf("opened %q, want %q", opened, want)
	}
	for who, test := range map[string]struct {
		c    *client.Client
		code string
	}{"a member of another project": {eve, "volume_not_found"}, "a viewer": {vic, "forbidden"}} {
		if _, err := test.c.SendVolumeContent(t.Context(), made.UID); !client.HasCode(err, test.code) {
			t.Errorf("%s sends: %v", who, err)
		}
		if _, err := test.c.GiveUpVolumeImport(t.Context(), made.UID); !client.HasCode(err, test.code) {
			t.Errorf("%s gives it up: %v", who, err)
		}
	}
	s.Tunnels.SetBroken(errors.New("the node is away"))
	if _, err := ann.SendVolumeContent(t.Context(), "data"); !client.HasCode(err, "member_unreachable") || !strings.Contains(err.Error(), "the node is away") {
		t.Errorf("a node that is away: %v", err)
	}
	s.PlaceVolume("data", "n1", gib)
	if _, err := ann.SendVolumeContent(t.Context(), "data"); !client.HasCode(err, "volume_not_importing") {
		t.Errorf("a second backup: %v", err)
	}
	if _, err := ann.GiveUpVolumeImport(t.Context(), "data"); !client.HasCode(err, "volume_not_importing") {
		t.Errorf("giving up a volume that is whole: %v", err)
	}
	if v, err := ann.Volume(t.Context(), "data"); err != nil || v.Phase != api.VolumeReady || v.Import != nil || v.DeletedAt != nil {
		t.Errorf("then it is %+v, %v", v, err)
	}
}

func TestAVolumeThatWaitsForItsBackupIsUsedForNothing(t *testing.T) {
	s := twoProjects(t)
	ann := s.ClientAs("ann", "default", api.RoleMember)
	if _, err := ann.CreateVolume(t.Context(), api.VolumeRequest{Name: "both", Size: gib, FromBackup: true, From: "data"}); !client.HasCode(err, "invalid_request") {
		t.Errorf("a volume of a backup and of another: %v", err)
	}
	if _, err := ann.CreateVolume(t.Context(), api.VolumeRequest{Name: "none", FromBackup: true}); !client.HasCode(err, "invalid_request") {
		t.Errorf("a volume of a backup without a size: %v", err)
	}
	makeVolume(t, ann, api.VolumeRequest{Name: "data", Size: gib, FromBackup: true})
	for _, place := range []func(){func() {}, func() { s.AwaitBackup("data", "n1", volume.ImportState{}) }} {
		place()
		for what, do := range map[string]func() error{
			"clone": func() error {
				_, err := ann.CreateVolume(t.Context(), api.VolumeRequest{Name: "c", From: "data"})
				return err
			},
			"snapshot": func() error { _, err := ann.CreateVolumeSnapshot(t.Context(), "data", "s"); return err },
			"backup":   func() error { _, err := ann.BackUpVolume(t.Context(), "data", ""); return err },
			"cluster": func() error {
				_, err := ann.CreateCluster(t.Context(), api.ClusterRequest{Name: "c1", Volumes: []api.VolumeAttachment{{Name: "data"}}})
				return err
			},
		} {
			if err := do(); !client.HasCode(err, "volume_importing") {
				t.Errorf("%s of a volume that waits for its backup: %v", what, err)
			}
		}
	}
	v, err := ann.GiveUpVolumeImport(t.Context(), "data")
	if err != nil || v.DeletedAt == nil || v.PurgeAt == nil || !v.PurgeAt.Equal(*v.DeletedAt) {
		t.Errorf("given up it is %+v, %v", v, err)
	}
	if _, err := ann.SendVolumeContent(t.Context(), "data"); !client.HasCode(err, "volume_deleted") {
		t.Errorf("a backup of a deleted volume is sent: %v", err)
	}
}
