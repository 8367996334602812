package agent

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// An end that gets little CPU time takes seconds for a handshake.
func TestASlowHandshakeIsWaitedFor(t *testing.T) {
	source := httptest.NewTLSServer(nil)
	certificates := source.TLS.Certificates
	source.Close()
	synctest.Test(t, func(t *testing.T) {
		transport := streamTransport(&tls.Config{InsecureSkipVerify: true})
		handshake := make(chan error, 1)
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				<-time.After(8 * time.Second)
				conn := tls.Server(far, &tls.Config{Certificates: certificates, MinVersion: tls.VersionTLS13})
				handshake <- conn.HandshakeContext(t.Context())
			}()
			return near, nil
		}
		client := &http.Client{Transport: transport}
		_, err := agentstream.Dial(t.Context(), client, "https://192.0.2.1:1")
		if err == nil || strings.Contains(err.Error(), "handshake timeout") {
			t.Errorf("got %v; want an error of the connection that the server closes, and none of the handshake", err)
		}
		if err := <-handshake; err != nil {
			t.Errorf("the handshake failed at the server: %v", err)
		}
	})
}
