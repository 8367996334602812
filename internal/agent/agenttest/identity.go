package agenttest

import (
	"net/http"

	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// nodeHeader stands for a node's certificate in tests whose server has no authority.
const nodeHeader = "Test-Node"

// transport speaks in the name of a node.
type transport struct {
	node string
	*http.Transport
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(nodeHeader, t.node)
	return t.Transport.RoundTrip(r)
}

// Own is a client with connections of its own.
func (t transport) Own() *http.Client {
	return &http.Client{Transport: transport{t.node, t.Transport.Clone()}}
}

// Client is a client in the name of a node, for a server behind Identified. by is a client of that server.
func Client(node string, by *http.Client) *http.Client {
	return &http.Client{Transport: transport{node, by.Transport.(*http.Transport)}}
}

// Identified tells a handler of agents' requests who makes them, by what Client says.
func Identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(agentstream.ForNode(r.Context(), r.Header.Get(nodeHeader))))
	})
}
