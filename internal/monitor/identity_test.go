package monitor

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

func TestAnIdentityOfOneNodeSpeaksForNoOther(t *testing.T) {
	m := newTest(t)
	m.cfg.Register = func(context.Context, api.NodeRecord) error { return nil }
	handler := agentstream.Handler(m.Serve)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r.WithContext(agentstream.ForNode(r.Context(), "n1")))
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections) // first
	m.SetDesired("n1", agentstream.Desired{Term: 7})
	m.SetDesired("n2", agentstream.Desired{Term: 7})
	greet := func(node string) agentstream.Down {
		c, err := agentstream.Dial(t.Context(), server.Client(), server.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		if err := c.Send(agentstream.Up{Hello: &agentstream.Hello{Run: "a1", Node: api.NodeRecord{Name: node}}}); err != nil {
			t.Fatal(err)
		}
		down, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		return down
	}
	if down := greet("n2"); !strings.Contains(down.Refused, `of node "n1" only`) {
		t.Errorf("an agent that claims another node is told %+v", down)
	}
	if down := greet("n1"); down.Desired == nil {
		t.Errorf("the node's own agent is told %+v", down)
	}
}
