// Package silencetest measures, in pretended time, how long a server holds the connection of a silent client. Start with Held.
package silencetest

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// Listener accepts in-memory connections, so that time can be pretended. Each connection sent is accepted; closing the channel ends it.
type Listener chan net.Conn

// Accept is net.Listener's.
func (l Listener) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

// Close does nothing; the owner closes the channel.
func (Listener) Close() error { return nil }

// Addr returns an empty address.
func (Listener) Addr() net.Addr { return &net.TCPAddr{} }

// NoLimit is the duration that Held returns for a connection that is never dropped.
const NoLimit = time.Hour

// Held returns how long the server keeps a connection whose client sends said and nothing more, at most NoLimit. serve runs in a synctest bubble until its listener
// ends, and closes everything it opened.
func Held(t *testing.T, said string, serve func(*testing.T, net.Listener)) (took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		connections, ended := make(Listener, 1), make(chan struct{})
		go func() { defer close(ended); serve(t, connections) }()
		ours, theirs := net.Pipe()
		connections <- theirs
		if _, err := ours.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		_ = ours.SetReadDeadline(begun.Add(NoLimit))
		_, _ = io.Copy(io.Discard, ours)
		took = time.Since(begun)
		_ = ours.Close()
		close(connections)
		<-ended
	})
	return took
}
