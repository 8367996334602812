package bootapi

import (
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Everybody on the provisioning network can connect: these bound what one that says nothing holds, and how many;
// turns.go bounds what one that says much costs.
const (
	headerTimeout  = 10 * time.Second
	bodyTimeout    = 30 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
	maxConnections = 8192
)

// HTTPServer serves the boot API within those bounds.
func HTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: inTurn(inTime(h)), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), ConnState: atMost(maxConnections),
	}
}

// inTime bounds how long a body may take, also of a request that nobody reads the body of: the server does that before it answers.
func inTime(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout)) // a connection without deadlines has none to miss
		}
		h.ServeHTTP(w, r)
	})
}

// atMost closes connections that are one too many.
func atMost(most int64) func(net.Conn, http.ConnState) {
	var open atomic.Int64
	return func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if open.Add(1) > most {
				_ = c.Close()
			}
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		default:
		}
	}
}
