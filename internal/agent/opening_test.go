package agent

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// bounded is a context for what ends by itself, unless the test fails.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestAnOpeningThatHangsIsGivenUp(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	silent := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	silent.EnableHTTP2 = true
	silent.StartTLS()
	t.Cleanup(silent.Close)
	t.Cleanup(silent.CloseClientConnections)
	for name, test := range map[string]struct {
		server  *httptest.Server
		inspect func(context.Context) []api.EnvironmentOnNode
	}{
		"the server does not answer":                     {silent, func(context.Context) []api.EnvironmentOnNode { return nil }},
		"the first inspection of the environments hangs": {mute(t, nil), func(context.Context) []api.EnvironmentOnNode { <-hang; return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			a := newTestAgent(t)
			a.cfg.Server, a.cfg.Client, a.cfg.Inspect = test.server.URL, test.server.Client(), test.inspect
			a.opening.patience = 50 * time.Millisecond
			if taken, err := a.session(bounded(t)); !errors.Is(err, errNotOpened) || taken {
				t.Errorf("got %v, taken %t; want that the opening was given up", err, taken)
			}
		})
	}
}

func TestAnAgentReconnectsWhileItsEnvironmentsCanNotBeInspected(t *testing.T) {
	a := newTestAgent(t)
	greetings := make(chan *agentstream.Hello, 3)
	server := mute(t, func(c *agentstream.ServerConn) {
		up, err := c.Receive()
		if err != nil {
			t.Error(err)
			return
		}
		greetings <- up.Hello
		_ = c.Send(agentstream.Down{Refused: "the test has heard enough"})
	})
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	inspections := make(chan int, 10)
	a.cfg.Server, a.cfg.Client = server.URL, server.Client()
	a.cfg.Inspect = func(context.Context) []api.EnvironmentOnNode {
		inspections <- 1
		if len(inspections) > 1 {
			<-hang
		}
		return []api.EnvironmentOnNode{{Name: "local"}}
	}
	a.opening.inspectPatience = 10 * time.Millisecond
	for stream := 1; stream <= 3; stream++ {
		var refused *agentstream.Refusal
		if _, err := a.session(bounded(t)); !errors.As(err, &refused) {
			t.Fatalf("stream %d: got %v, want that the server answered", stream, err)
		}
		if hello := <-greetings; hello == nil || len(hello.Node.Environments) != 1 {
			t.Errorf("stream %d: greeted with %+v, want the environment that was found at first", stream, hello)
		}
	}
	if n := len(inspections); n != 2 {
		t.Errorf("%d inspections were begun, want 2: none beside the one that hangs", n)
	}
}
