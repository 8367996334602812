package monitor

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// opened is what OpenTunnel returned.
type opened struct {
	conn io.ReadWriteCloser
	err  error
}

// asked opens a tunnel to a member and returns what the agent was asked for.
func asked(t *testing.T, ctx context.Context, m *Monitor, agent *agentstream.ClientConn) (*agentstream.Tunnel, <-chan opened) {
	t.Helper()
	result := make(chan opened, 1)
	go func() {
		conn, err := m.OpenTunnel(ctx, "n1", "uc1.c1-0.1", 22)
		result <- opened{conn, err}
	}()
	for {
		down, err := agent.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if down.Tunnel != nil {
			return down.Tunnel, result
		}
	}
}

func TestATunnelIsBroughtByTheAgentThatWasAsked(t *testing.T) {
	m := newTest(t)
	server := serve(t, m, nil)
	agent := greeted(t, m, server, "a1")
	want, result := asked(t, t.Context(), m, agent)
	if want.MemberID != "uc1.c1-0.1" || want.Port != 22 || len(want.ID) < 26 {
		t.Errorf("asked for %+v", want)
	}
	bring := func(id, node string) (*agentstream.TunnelConn, error) {
		client := &http.Client{Transport: of{node, server.Client().Transport}}
		return agentstream.BringTunnel(t.Context(), client, server.URL, agentstream.TunnelRequest{ID: id})
	}
	if _, err := bring(want.ID, "n2"); err == nil {
		t.Error("another agent brought the tunnel")
	}
	if _, err := bring("made-up", "n1"); err == nil {
		t.Error("a tunnel that nobody asked for was taken")
	}
	far, err := bring(want.ID, "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if _, err := bring(want.ID, "n1"); err == nil {
		t.Error("a tunnel was brought twice")
	}
	got := <-result
	if got.err != nil {
		t.Fatal(got.err)
	}
	go func() {
		_, _ = io.Copy(far, far)
		_ = far.CloseWrite()
	}()
	if _, err := got.conn.Write([]byte("SSH-2.0-x")); err != nil {
		t.Fatal(err)
	}
	if err := got.conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(got.conn); err != nil || string(text) != "SSH-2.0-x" {
		t.Errorf("got %q, %v back", text, err)
	}
	if err := got.conn.Close(); err != nil {
		t.Error(err)
	}
	if len(m.tunnels) != 0 {
		t.Errorf("left waiting: %v", m.tunnels)
	}
}

func TestWhyAMemberCannotBeReachedIsTold(t *testing.T) {
	m := newTest(t)
	server := serve(t, m, nil)
	want, result := asked(t, t.Context(), m, greeted(t, m, server, "a1"))
	err := agentstream.RefuseTunnel(t.Context(), server.Client(), server.URL,
		agentstream.TunnelRequest{ID: want.ID, Failure: "connection refused"})
	if err != nil {
		t.Fatal(err)
	}
	if got := <-result; got.err == nil || got.err.Error() != "connection refused" {
		t.Errorf("got %v, want the agent's reason", got.err)
	}
}

func TestATunnelThatIsNotBroughtIsNotWaitedForForEver(t *testing.T) {
	m := newTest(t)
	server := serve(t, m, nil)
	agent := greeted(t, m, server, "a1")
	ctx, cancel := context.WithCancel(t.Context())
	want, result := asked(t, ctx, m, agent)
	cancel()
	if got := <-result; !errors.Is(got.err, context.Canceled) || len(m.tunnels) != 0 {
		t.Errorf("got %v, left %v; want that it gives up and leaves nothing", got.err, m.tunnels)
	}
	_, err := agentstream.BringTunnel(t.Context(), server.Client(), server.URL, agentstream.TunnelRequest{ID: want.ID})
	if err == nil || !strings.Contains(err.Error(), errNotAsked.Error()) {
		t.Errorf("brought too late: %v, want it refused", err)
	}
}

func TestATunnelToANodeThatIsNotConnectedFailsAtOnce(t *testing.T) {
	m := newTest(t)
	began := time.Now()
	if _, err := m.OpenTunnel(t.Context(), "n1", "x", 22); err == nil || time.Since(began) > tunnelPatience/2 {
		t.Errorf("got %v after %v", err, time.Since(began))
	}
	if _, err := m.OpenTunnel(t.Context(), "n1", "x", 65536); err == nil {
		t.Error("port 65536 was taken")
	}
}
