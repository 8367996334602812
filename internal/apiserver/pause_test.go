package apiserver_test

import (
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/image"
)

// pauseWithout asks for a pause of a cluster whose members send something else than their files.
func pauseWithout(t *testing.T, sent string) *http.Response {
	t.Helper()
	s := savingSite(t, nil)
	wholeCluster(t, s, "m1")
	s.Tunnels.Member = sends([]byte(sent))
	return send(t, s, request{method: "POST", path: "/v1/clusters/m1/pause"})
}

func TestAPauseOfWholeMachinesSavesTheFilesOfAllMembersFirst(t *testing.T) {
	s := savingSite(t, nil)
	wholeCluster(t, s, "m1")
	data := filesOf(t, map[string]string{"opt/solver": "x", "home/hpc/key": aKey, "var/log/solver": "x", "var/tmp/scratch": "x"})
	s.Tunnels.Member = sends(data)
	c, err := s.ClientAs("ann", "default", api.RoleMember).PauseCluster(t.Context(), "m1")
	if err != nil || !c.Status.Paused {
		t.Fatalf("paused: %v, %v", c.Status.Paused, err)
	}
	stored, intent := image.DigestOf(data), s.Cache.View().Cluster("m1").Intent
	if !s.MemberFiles.Touch(stored) || s.Images.Touch(stored) {
		t.Errorf("stored among the members' files: %v, among images, which anybody on the provisioning network may read: %v", s.MemberFiles.Touch(stored), s.Images.Touch(stored))
	}
	for i, f := range intent.PausedFiles {
		member := []string{"m1-0", "m1-1"}[i]
		if f.Member != member || f.Assignment != intent.UID+"."+member+".1" || f.Digest != string(stored) || f.Bytes != int64(len(data)) || f.SavedAt.IsZero() {
			t.Errorf("the files of member %d are %+v", i, f)
		}
	}
	opened := s.Tunnels.Opened()
	if len(intent.PausedFiles) != 2 || len(opened) != 2 || slices.ContainsFunc(opened, func(o string) bool { return !strings.HasSuffix(o, " files member") }) {
		t.Errorf("saved %d, by %q", len(intent.PausedFiles), opened)
	}
	if c, err = s.Client().ResumeCluster(t.Context(), "m1"); client.HasCode(err, "wrong_phase") {
		t.Fatal(err)
	}
	if intent := s.Cache.View().Cluster("m1").Intent; intent.Paused || intent.PausedFiles != nil {
		t.Errorf("after a resume it asks for %+v", intent)
	}
}

func TestAPauseOfWholeMachinesIsRefusedIfOneOfThemCantBeSaved(t *testing.T) {
	s := savingSite(t, func(c *apiserver.Config) {
		c.ClusterKeys = func(api.ClusterIntent, api.Assignment) ([][]byte, error) {
			return [][]byte{[]byte("the cluster's own key")}, nil
		}
	})
	wholeCluster(t, s, "m1")
	good, own := filesOf(t, map[string]string{"opt/solver": "x"}), filesOf(t, map[string]string{"opt/taken": "the cluster's own key"})
	c, uid := s.Client(), s.Cache.View().Cluster("m1").UID()
	refused := func(what, code string, words ...string) {
		t.Helper()
		_, err := c.PauseCluster(t.Context(), "m1")
		if !client.HasCode(err, code) || slices.ContainsFunc(append(words, "was not paused"), func(w string) bool { return !strings.Contains(err.Error(), w) }) {
			t.Errorf("%s: %v, want %s with %q", what, err, code, words)
		}
		if intent := s.Cache.View().Cluster("m1").Intent; intent.Paused || intent.PausedFiles != nil {
			t.Errorf("%s: paused: %v, with %+v", what, intent.Paused, intent.PausedFiles)
		}
	}
	var asked atomic.Int32
	s.Tunnels.Member = func(conn *net.TCPConn) {
		data := good
		if asked.Add(1) == 2 {
			data = good[:len(good)-10]
		}
		_, _ = conn.Write(data)
	}
	refused("one ends amid it", "cant_pause", "did not come whole")
	s.Tunnels.Member = sends(own)
	refused("a key of the cluster", "keys_found", "/opt/taken")
	s.Tunnels.Member = sends(filesOf(t, map[string]string{"etc/nearmetal/key": "x"}))
	refused("what is never saved", "cant_pause", "never saved")
	s.Tunnels.Member = sends(good)
	s.MemberFiles.SetFull(errors.New("the disk is full"))
	refused("a full disk", "cant_pause", "full")
	s.MemberFiles.SetFull(nil)
	s.Live.SetMember("n1", uid+".m1-1.1", api.MemberUnhealthy, "its SSH is away")
	refused("a member that is not ready", "cluster_not_ready", "m1-1", "unhealthy")
	s.Live.SetMember("n1", uid+".m1-1.1", api.MemberReady, "")
	if _, err := c.PauseCluster(t.Context(), "m1"); err != nil {
		t.Errorf("with all files: %v", err)
	}
	// It is taken up, and asked for again.
	before := len(s.Tunnels.Opened())
	s.SetPhase("m1", api.ClusterPausing, "")
	if _, err := c.PauseCluster(t.Context(), "m1"); err != nil || len(s.Tunnels.Opened()) != before {
		t.Errorf("asked for again: %v, with %d saves more", err, len(s.Tunnels.Opened())-before)
	}
}

// A member was replaced before the leader took the pause up.
func TestAPauseThatCameToNothingIsAskedForAgain(t *testing.T) {
	s := savingSite(t, nil)
	wholeCluster(t, s, "m1")
	s.Tunnels.Member = sends(filesOf(t, map[string]string{"opt/solver": "x"}))
	for want := range 2 {
		if _, err := s.Client().PauseCluster(t.Context(), "m1"); err != nil || len(s.Tunnels.Opened()) != 2*(want+1) {
			t.Errorf("%v, and %d saves", err, len(s.Tunnels.Opened()))
		}
	}
}
