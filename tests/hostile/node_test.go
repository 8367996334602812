package hostile

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/image"
)

// A node that was taken over says in one breath what is true of its own member and what is not of another node's: once the truth has had its
// effect, the lie had its chance.
func TestANodeEndsNothingOfAnother(t *testing.T) {
	s := newAttacked(t)
	victim := s.honest(1)
	theirs := victim.cluster("theirs")
	s.isPhase("theirs", api.ClusterReady)
	job, err := s.admin.CreateJob(t.Context(), "theirs", api.JobRequest{Command: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	run := victim.wants("a job", func(d *agentstream.Desired) bool { return len(d.Jobs) == 1 }).Jobs[0].RunID()
	rogue := s.honest(2)
	code, now := 0, time.Now()
	if err := rogue.conn.Send(agentstream.Up{Log: &agentstream.Log{JobID: run, Data: []byte("not its own words")}}); err != nil {
		t.Fatal(err)
	}
	rogue.lies(func(o *agentstream.Observed) {
		o.Members = append(o.Members, agentstream.MemberObserved{ID: theirs.Assignment.ID, Generation: theirs.Assignment.Generation, Phase: api.MemberFailed})
		o.Jobs = append(o.Jobs, agentstream.JobObserved{ID: run, Phase: api.JobSucceeded, ExitCode: &code, StartedAt: &now, EndedAt: &now})
		o.Clean = append(o.Clean, theirs.Assignment.ID)
	})
	rogue.cluster("own")
	s.isPhase("own", api.ClusterReady)
	c, err := s.admin.Cluster(t.Context(), "theirs")
	if err != nil || c.Status.Phase != api.ClusterReady || c.Status.Members[0].Attempt != 0 || c.Status.Members[0].Phase != api.MemberReady {
		t.Errorf("after the lie the other node's cluster is %+v (%v), want it ready as before", c.Status, err)
	}
	s.eventually(func() (string, bool) { // that it runs is written some time after it is heard; an end would stay
		job, err = s.admin.Job(t.Context(), job.ID)
		return fmt.Sprintf("after the lie the other node's job is %s (%v), want %s", job.Phase, err, api.JobRunning), err == nil && job.Phase == api.JobRunning
	})
	var output strings.Builder
	if _, err := s.admin.JobLog(t.Context(), job.ID, 0, false, &output); err != nil || output.Len() > 0 {
		t.Errorf("the output of the other node's job is %q (%v), want none", output.String(), err)
	}
	// The victim is asked to release and has not cleaned yet.
	victim.lies(func(o *agentstream.Observed) { o.Clean = nil })
	for _, name := range []string{"theirs", "own"} {
		if _, err := s.admin.DeleteCluster(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if name == "theirs" {
			victim.wants("a release", func(d *agentstream.Desired) bool { return len(d.Members) == 1 && d.Members[0].Release })
		}
	}
	s.isGone("own")
	if c, err = s.admin.Cluster(t.Context(), "theirs"); err != nil || c.Status.Phase != api.ClusterDeleting {
		t.Errorf("on another node's word that it is clean the cluster is %s (%v), want %s", c.Status.Phase, err, api.ClusterDeleting)
	}
	victim.lies(func(*agentstream.Observed) {})
	s.isGone("theirs")
}

func TestANodeIsNobodyElse(t *testing.T) {
	s := newAttacked(t)
	victim := s.enrolled(1)
	victim.record.Capacity.Ports = []api.NodePort{{Name: "0000:3b:00.0", Fabric: "ib0", At: "0x1"}}
	victim.greets(victim.record)
	victim.isReady()
	rogue := s.enrolled(2)
	for what, tt := range map[string]struct {
		claims func(*api.NodeRecord)
		why    string
	}{
		"another node":                  {func(r *api.NodeRecord) { r.Name = "n1" }, `this identity is of node "n2" only`},
		"a boot":                        {func(r *api.NodeRecord) { r.BootGeneration = 1 }, "its agent runs in boot 1"},
		"another node's port":           {func(r *api.NodeRecord) { r.Capacity.Ports = victim.record.Capacity.Ports }, "port 0x1 of fabric ib0 is that of node n1"},
		"more memory than can be":       {func(r *api.NodeRecord) { r.Capacity.MemoryBytes = 1 << 60 }, "can't be accepted"},
		"a label that a terminal obeys": {func(r *api.NodeRecord) { r.Labels = map[string]string{"rack": "\x1b[2J"} }, "can't be accepted"},
	} {
		claimed := rogue.record
		tt.claims(&claimed)
		rogue.greets(claimed)
		select {
		case why := <-rogue.refused:
			if !strings.Contains(why, tt.why) {
				t.Errorf("a node that claims %s is told %q, want %q", what, why, tt.why)
			}
		case <-time.After(patience):
			t.Errorf("a node that claims %s is not refused", what)
		}
	}
	if n, err := s.admin.Node(t.Context(), "n1"); err != nil || n.Phase != api.NodeReady {
		t.Errorf("the node that was claimed is %s (%v), want it ready as before", n.Phase, err)
	}
	rogue.greets(rogue.record)
	rogue.isReady() // it was refused for its claims
}

func TestANodeBringsNoTunnelOfAnother(t *testing.T) {
	s := newAttacked(t)
	victim := s.honest(1)
	victim.cluster("theirs")
	s.isPhase("theirs", api.ClusterReady)
	rogue := s.honest(2)
	opened := make(chan error, 1)
	c, err := s.admin.Cluster(t.Context(), "theirs")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		tunnel, err := s.admin.ConnectMember(t.Context(), "theirs", c.Status.Members[0].Name, 22)
		if err == nil {
			err = tunnel.Close()
		}
		opened <- err
	}()
	asked := <-victim.tunnels
	stolen, err := agentstream.BringTunnel(t.Context(), &http.Client{Transport: rogue.http.Transport}, "https://"+s.address, agentstream.TunnelRequest{ID: asked.ID})
	if err == nil {
		_ = stolen.Close()
		t.Error("a node brought a tunnel that another was asked for")
	}
	own, err := agentstream.BringTunnel(t.Context(), &http.Client{Transport: victim.http.Transport}, "https://"+s.address, agentstream.TunnelRequest{ID: asked.ID})
	if err != nil {
		t.Fatalf("the node that was asked can't bring the tunnel: %v", err)
	}
	_ = own.Close()
	if err := <-opened; err != nil {
		t.Errorf("the person's end of the tunnel: %v", err)
	}
}

func TestANodeThatBuildsNothingStoresNothing(t *testing.T) {
	s := newAttacked(t)
	rogue := s.honest(1)
	content := []byte("an image of its own making")
	path := "/agent/v1/images/" + image.DigestOf(content).Hex()
	if status, text := s.send(rogue.http, http.MethodPut, path, "", content); status != http.StatusForbidden || !strings.Contains(string(text), "no build runs on this node") {
		t.Errorf("content of a node that builds nothing: %d %s, want it refused", status, text)
	}
	if status, text := s.send(rogue.http, http.MethodGet, path, "", nil); status != http.StatusNotFound {
		t.Errorf("the content that was refused: %d %s, want none", status, text)
	}
}
