package monitor

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/volume"
)

func TestAMachineThatIsAMemberIsBelievedAboutTheMemberAlone(t *testing.T) {
	m, _ := clocked(t)
	m.cfg.IsMember = func(node string) bool { return node == "n1" }
	s := connected(t, m, "first")
	m.observe("n1", s, agentstream.Observed{
		Members: []agentstream.MemberObserved{{ID: "c.m-0.1", Phase: api.MemberReady}}, Clean: []string{"c.m-0.1"},
		Images: []agentstream.ImageObserved{{Digest: image.DigestOf([]byte("x")), Whole: true}}, PeerURL: "http://10.0.0.1:1",
		Builds: []agentstream.BuildObserved{{ID: "b"}}, Volumes: []volume.State{{UID: "v"}}, PurgedVolumes: []string{"w"},
	})
	if phase, _, ok := m.Member("n1", "c.m-0.1"); !ok || phase != api.MemberReady {
		t.Errorf("the member is %q (%v), want ready", phase, ok)
	}
	if clean := m.Clean("n1"); len(clean) > 0 {
		t.Errorf("its own users say that it is clean of %v", clean)
	}
	volumes, purged, _ := m.Volumes("n1")
	if whole, _ := m.Holders(image.DigestOf([]byte("x"))); len(whole)+len(volumes)+len(purged)+len(m.Builds()["n1"]) > 0 {
		t.Errorf("it is believed about images %v, volumes %v, %v or builds %v", whole, volumes, purged, m.Builds())
	}
}
