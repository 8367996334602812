package apiserver_test

import (
	"errors"
	"io"
	"net"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func TestABackupIsReadByWhoMayChangeTheVolume(t *testing.T) {
	s := twoProjects(t)
	ann, eve, vic := s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleMember), s.ClientAs("vic", "default", api.RoleViewer)
	s.Tunnels.Member = func(conn *net.TCPConn) { _, _ = io.WriteString(conn, "the archive") }
	made := makeVolume(t, ann, api.VolumeRequest{Name: "data", Size: gib})
	if _, err := ann.BackUpVolume(t.Context(), "data", ""); !client.HasCode(err, "member_unreachable") {
		t.Errorf("a volume without a node: %v", err)
	}
	s.PlaceVolume("data", "n1", gib)
	v, err := ann.CreateVolumeSnapshot(t.Context(), "data", "monday")
	if err != nil {
		t.Fatal(err)
	}
	for snapshot, want := range map[string]string{"": "n1/" + made.UID, "monday": "n1/" + made.UID + " " + v.Snapshots[0].UID} {
		tunnel, err := ann.BackUpVolume(t.Context(), "data", snapshot)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(tunnel); err != nil || string(got) != "the archive" {
			t.Errorf("read %q, %v", got, err)
		}
		_ = tunnel.Close()
		if opened := s.Tunnels.Opened(); !slices.Contains(opened, want) {
			t.Errorf("opened %q, want %q", opened, want)
		}
	}
	before := len(s.Tunnels.Opened())
	if _, err := eve.BackUpVolume(t.Context(), made.UID, ""); !client.HasCode(err, "volume_not_found") {
		t.Errorf("a member of another project: %v", err)
	}
	if _, err := vic.BackUpVolume(t.Context(), "data", ""); !client.HasCode(err, "forbidden") {
		t.Errorf("a viewer: %v", err)
	}
	if _, err := ann.BackUpVolume(t.Context(), "data", "friday"); !client.HasCode(err, "volume_snapshot_not_found") {
		t.Errorf("a snapshot that is not there: %v", err)
	}
	s.Tunnels.SetBroken(errors.New("the node is away"))
	if _, err := ann.BackUpVolume(t.Context(), "data", ""); !client.HasCode(err, "member_unreachable") {
		t.Errorf("a node that is away: %v", err)
	}
	s.Tunnels.SetBroken(nil)
	if _, err := ann.DeleteVolume(t.Context(), "data", false); err != nil {
		t.Fatal(err)
	}
	if _, err := ann.BackUpVolume(t.Context(), "data", ""); !client.HasCode(err, "volume_deleted") {
		t.Errorf("a deleted volume: %v", err)
	}
	if after := len(s.Tunnels.Opened()); after != before {
		t.Errorf("%d tunnels were opened for what was refused", after-before)
	}
}
