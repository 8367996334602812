package agentstream

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestBothDirectionsFlowAtOnceOverHTTP2(t *testing.T) {
	got := make(chan Up, 1)
	server := httptest.NewUnstartedServer(Handler(func(_ context.Context, c *ServerConn) {
		// The server speaks first: a half-duplex transport would deadlock here, since the agent waits for it.
		if err := c.Send(Down{Desired: &Desired{Term: 7}}); err != nil {
			t.Error(err)
		}
		up, err := c.Receive()
		if err != nil {
			t.Error(err)
		}
		got <- up
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()

	c, err := Dial(t.Context(), server.Client(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	down, err := c.Receive()
	if err != nil || down.Desired == nil || down.Desired.Term != 7 {
		t.Fatalf("got %+v, %v; want the desired state of term 7", down, err)
	}
	if err := c.Send(Up{Observed: &Observed{Term: 7, Clean: []string{"a"}}}); err != nil {
		t.Fatal(err)
	}
	if up := <-got; up.Observed == nil || up.Observed.Clean[0] != "a" {
		t.Fatalf("got %+v; want the observation", up)
	}
}

func TestARefusedAgentIsToldWhy(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "this token is not an agent's", http.StatusForbidden)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	_, err := Dial(t.Context(), server.Client(), server.URL)
	if err == nil || !strings.Contains(err.Error(), "this token is not an agent's") {
		t.Fatalf("got %v; want the server's reason", err)
	}
}
