package agent

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// cable is a network of one server, in memory. What is sent on a connection from before its last cut is lost without a word.
type cable struct {
	accepted chan net.Conn
	cuts     atomic.Int64
	closed   chan struct{}
}

func (c *cable) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	cuts := c.cuts.Load()
	c.accepted <- &cabled{far, c, cuts}
	return &cabled{near, c, cuts}, nil
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
	cable *cable
	cuts  int64 // there were when it was made
}

func (c *cabled) Write(p []byte) (int, error) {
	if c.cable.cuts.Load() > c.cuts {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func TestAnAgentLeavesAConnectionThatDiedWithoutAWord(t *testing.T) {
	source := httptest.NewTLSServer(nil)
	certificates := source.TLS.Certificates
	source.Close()
	synctest.Test(t, func(t *testing.T) {
		wire := &cable{accepted: make(chan net.Conn, 10), closed: make(chan struct{})}
		greetings := make(chan *agentstream.Hello, 10)
		server := &http.Server{Handler: agentstream.Handler(func(ctx context.Context, c *agentstream.ServerConn) {
			up, err := c.Receive()
			if err != nil {
				return
			}
			greetings <- up.Hello
			for seq := int64(1); ctx.Err() == nil && c.Send(agentstream.Down{Ping: &agentstream.Ping{Seq: seq}}) == nil; seq++ {
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		})}
		go func() {
			_ = server.Serve(tls.NewListener(wire, &tls.Config{Certificates: certificates, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}))
		}()
		a := newTestAgent(t)
		a.hearing.patience = 5 * time.Second
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
		<-greetings
		time.Sleep(10 * time.Second)
		wire.cuts.Add(1)
		select {
		case <-greetings:
		case <-time.After(10 * time.Second):
			t.Error("10 s after its connection died, the agent has not reconnected")
		}
		cancel()
		<-connecting
		close(wire.closed)
		_ = server.Close()
		transport.CloseIdleConnections()
	})
}
