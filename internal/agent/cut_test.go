package agent

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
)

// cable is a network of one server, in memory. Once it was cut, what is sent on the connections from before is lost without a word.
type cable struct {
	accepted chan net.Conn
	closed   chan struct{}
	made     atomic.Int64
	// up and down are how many connections were made before the cut of that direction.
	up, down atomic.Int64
}

func (c *cable) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	number := c.made.Add(1)
	c.accepted <- &cabled{far, &c.down, number}
	return &cabled{near, &c.up, number}, nil
}

func (c *cable) Accept() (net.Conn, error) {
	select {
	case conn := <-c.accepted:
		return conn, nil
	case <-c.closed:
		return nil, net.ErrClosed
	}
}

func (c *cable) Close() error   { return nil }
func (c *cable) Addr() net.Addr { return &net.TCPAddr{} }

type cabled struct {
	net.Conn
	cut    *atomic.Int64
	number int64
}

func (c *cabled) Write(p []byte) (int, error) {
	if c.number <= c.cut.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func TestAnAgentLeavesAConnectionThatDiedWithoutAWord(t *testing.T) {
	source := httptest.NewTLSServer(nil)
	certificates := source.TLS.Certificates
	source.Close()
	for name, cut := range map[string]func(*cable){
		"in both directions": func(c *cable) { c.up.Store(c.made.Load()); c.down.Store(c.made.Load()) },
		"towards the server": func(c *cable) { c.up.Store(c.made.Load()) },
		"towards the agent":  func(c *cable) { c.down.Store(c.made.Load()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testACutConnection(t, certificates, cut) })
		})
	}
}

// testACutConnection runs an agent and the server's monitor of it in a bubble of synctest, and cuts their connection.
func testACutConnection(t *testing.T, certificates []tls.Certificate, cut func(*cable)) {
	wire := &cable{accepted: make(chan net.Conn, 10), closed: make(chan struct{})}
	site := monitor.New(monitor.Config{
		LogDir: t.TempDir(), DeathTimer: lifecycle.DefaultDeathTimer, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Register: func(context.Context, api.NodeRecord) error { return nil },
	})
	streams := agentstream.Handler(site.Serve)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		streams.ServeHTTP(w, r.WithContext(agentstream.ForNode(r.Context(), "n1")))
	})}
	go func() {
		_ = server.Serve(tls.NewListener(wire, &tls.Config{Certificates: certificates, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}))
	}()
	a := newTestAgent(t)
	a.hearing.patience = lifecycle.DefaultDeathTimer
	a.cfg.Node.Name = "n1"
	transport := streamTransport(&tls.Config{InsecureSkipVerify: true})
	transport.DialContext = wire.dial
	a.cfg.Server, a.cfg.Client = "https://192.0.2.1:1", &http.Client{Transport: transport}
	a.cfg.Inspect = func(context.Context) []api.EnvironmentOnNode { return nil }
	ctx, cancel := context.WithCancel(t.Context())
	connecting := make(chan struct{})
	go func() {
		defer close(connecting)
		a.connect(ctx)
	}()
	want := func(after time.Duration, when string) {
		t.Helper()
		select {
		case <-time.After(after):
		case <-connecting:
			t.Fatal("the agent gave up")
		}
		if phase, _, message := site.Node("n1"); phase != api.NodeReady || wire.made.Load() > 2 {
			t.Errorf("%s the node is %s (%s) after %d connections, want it ready", when, phase, message, wire.made.Load())
		}
	}
	want(10*time.Second, "at first")
	cut(wire)
	want(15*time.Second, "15 s after its connection died")
	cancel()
	<-connecting
	close(wire.closed)
	_ = server.Close()
	transport.CloseIdleConnections()
}
