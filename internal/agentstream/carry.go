package agentstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// CarryPath begins the path at which an agent asks for a member of another node that one of its own members succeeds. The target (TargetState or
// TargetMove) and the successor's ID follow.
const CarryPath = "/agent/v1/carry/"

// ErrOver reports that the requested data is not there, and that a retry would not change that.
var ErrOver = errors.New("it is over")

// CarryRequest is an agent's request for a member of another node.
type CarryRequest struct {
	// Target is TargetState or TargetMove.
	Target Target
	// Successor is the assignment that goes on, Node whose agent asks, which the connection tells.
	Successor, Node string
}

// CarryHandler serves the requests of agents at CarryPath. take connects the tunnel with what was asked for, and may take a while; its error is the
// answer. Once it has returned nil, the tunnel is in the hands of whoever it gave it to, until its Close or the request's end.
func CarryHandler(take func(ctx context.Context, request CarryRequest, c *TunnelConn) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target, successor, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, CarryPath), "/")
		request := CarryRequest{Target: Target(target), Successor: successor, Node: nodeOf(r)}
		if request.Target != TargetState && request.Target != TargetMove {
			http.Error(w, fmt.Sprintf("nothing of a member is called %q", target), http.StatusNotFound)
			return
		}
		serveTunnel(w, r, func(c *TunnelConn) error { return take(r.Context(), request, c) })
	})
}

// FetchCarried asks the server for what another node has of the member that successor goes on from. It ends with ctx. An error that is an ErrOver
// is for good. The client must speak HTTP/2.
func FetchCarried(ctx context.Context, client *http.Client, server string, target Target, successor string) (*TunnelConn, error) {
	return dialTunnel(ctx, func(ctx context.Context, body io.Reader) (*http.Response, error) {
		return sendTunnel(ctx, client, server, CarryPath+string(target)+"/"+successor, nil, body)
	})
}

// Splice passes bytes on both ways, each until it is closed, and all until something breaks off or ctx ends. It closes both ends.
func Splice(ctx context.Context, a, b io.ReadWriteCloser) {
	end := func() {
		_ = a.Close()
		_ = b.Close()
	}
	stop := context.AfterFunc(ctx, end)
	defer stop()
	back := make(chan struct{})
	go func() {
		defer close(back)
		if pass(b, a) != nil {
			end()
		}
	}()
	if pass(a, b) != nil {
		end()
	}
	<-back
	end()
}

// pass copies until from ends, and passes its end on.
func pass(to io.WriteCloser, from io.Reader) error {
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return to.Close()
}
