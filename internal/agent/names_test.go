package agent_test

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/responder"
)

// served hands on what a responder is given.
type served chan []responder.Network

func (s served) Serve(networks []responder.Network) { s <- networks }

// next returns what the responder is given next.
func (s served) next(t *testing.T) []responder.Network {
	t.Helper()
	select {
	case networks := <-s:
		return networks
	case <-time.After(time.Minute):
		t.Fatal("the responder is given nothing")
		return nil
	}
}

func TestTheResponderIsGivenTheNetworksInForceWithTheirNames(t *testing.T) {
	s := newSite(t)
	n := s.newNode("n1")
	given := make(served, 100)
	n.responder = given
	n.start(2)
	s.create("c1", 2, 1)
	s.awaitPhase("c1", api.ClusterReady)
	networks := given.next(t)
	for len(networks) == 0 {
		networks = given.next(t)
	}
	if len(networks) != 1 || len(networks[0].Ports) != 2 {
		t.Fatalf("got %+v, want one network with two ports", networks)
	}
	names := map[string]bool{}
	for _, port := range networks[0].Ports {
		m := networks[0].Members[port.ID]
		names[m.Name] = true
		if m.Names == nil || m.Names.Search()[0] != "c1.nearmetal.internal" {
			t.Errorf("port %s has the names %+v, want those of cluster c1", port.ID, m.Names)
		}
	}
	if !names["c1-0"] || !names["c1-1"] {
		t.Errorf("members %v, want c1-0 and c1-1", names)
	}
	s.ends("c1", n)
	for len(networks) > 0 {
		networks = given.next(t)
	}
}
