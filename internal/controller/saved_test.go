package controller

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// wantSaved asks for a cluster to be saved, or to be restored.
func (l *led) wantSaved(name string, saved bool) {
	l.t.Helper()
	l.now = l.now.Add(time.Second)
	now := l.now
	_, revision, err := l.repo.UpdateIntent(l.t.Context(), name, "", func(in *api.ClusterIntent) error {
		in.Saved, in.SaveAskedAt = saved, &now
		return nil
	})
	l.view(revision, err)
}

// passes makes as many passes as a decision and the telling of it take.
func (l *led) passes() {
	l.t.Helper()
	for range 3 {
		l.mustPass()
	}
}

// toldOf returns what a node is told of an assignment, and whether it may have its port.
func (l *led) toldOf(node, id string) (m agentstream.Member, port bool) {
	d := l.agents.desired[node]
	for _, each := range d.Members {
		if each.Assignment.ID == id {
			m = each
		}
	}
	for _, n := range d.Networks {
		for _, p := range n.Ports {
			port = port || p.ID == id
		}
	}
	return m, port
}

func TestASavedMemberHasNoPortAndAWithdrawnSuccessorIsCutOff(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	l.want("a")
	l.passes()
	l.report(api.MemberReady)
	l.passes()
	id := only(t, l.mustPass().Cluster("a")).ID
	l.wantSaved("a", true)
	l.passes()
	if m, port := l.toldOf("n1", id); !m.Save || !port {
		t.Errorf("a member that is being saved: save %t, port %t; want both", m.Save, port)
	}
	l.report(api.MemberSaved)
	l.passes()
	if m, port := l.toldOf("n1", id); !m.Save || port {
		t.Errorf("a saved member: save %t, port %t; want it saved without a port", m.Save, port)
	}
	l.wantSaved("a", false)
	l.passes()
	next := ""
	for a := range l.mustPass().Cluster("a").Held() {
		if a.From == id {
			next = a.ID
		}
	}
	if m, port := l.toldOf("n1", next); !m.Assignment.IsSuccessor() || m.Release || !port {
		t.Fatalf("where it is to go on: %+v, port %t; want a successor with the port", m, port)
	}
	if m, _ := l.toldOf("n1", id); !m.Save || m.Release {
		t.Errorf("a member that is being restored: save %t, release %t; want it to stay saved", m.Save, m.Release)
	}
	l.agents.members[next] = monitor.MemberState{Phase: api.MemberFailed, Message: "x", Since: l.now}
	l.passes()
	if m, port := l.toldOf("n1", next); !m.Release || m.GraceSeconds != 0 || port {
		t.Errorf("a successor that was withdrawn: release %t within %v s, port %t; want it gone at once and cut off", m.Release, m.GraceSeconds, port)
	}
	if c := l.mustPass().Cluster("a"); c.Record.Phase != api.ClusterSaved || c.Record.GaveUp == nil {
		t.Errorf("the cluster is %s, given up %+v", c.Record.Phase, c.Record.GaveUp)
	}
}
