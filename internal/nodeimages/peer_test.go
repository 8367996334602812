package nodeimages_test

import (
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/internal/nodeimages"
)

// pipes is a listener whose connections are in memory, so that time is pretended.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func TestWhoSendsNoBodyHoldsNoConnectionOfANode(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		synctest.Test(t, func(t *testing.T) {
			connections := make(pipes, 1)
			peer := nodeimages.NewPeerServer(nil, connections, nodeimages.PeerConfig{})
			ended := make(chan struct{})
			go func() { _ = peer.Serve(t.Context()); close(ended) }()
			ours, theirs := net.Pipe()
			connections <- theirs
			if _, err := ours.Write([]byte(method + " /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = ours.Close() }()
			begun := time.Now()
			_ = ours.SetReadDeadline(begun.Add(time.Hour))
			_, _ = io.Copy(io.Discard, ours)
			if took := time.Since(begun); took > 3*time.Minute {
				t.Errorf("%s: the connection was held for %s", method, took)
			}
			close(connections)
			<-ended
		})
	}
}
