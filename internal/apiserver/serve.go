package apiserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
)

// Limits of connections.
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 32 << 10
	shutdownTime   = 5 * time.Second
	// maxStreams is how many requests one HTTP/2 connection may have open; agents and watches hold one each.
	maxStreams = 1000
)

// ListenUnix makes the API's Unix socket, which only its owner can open. A socket left by a server that is dead is replaced;
// the caller makes sure (by the lock of the state directory) that it is dead.
func ListenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on the socket %s: %w (is its directory writable, and the path shorter than 108 bytes?)", path, err)
	}
	// Between the two calls the socket has the mode of the umask; the state directory around it is closed to others.
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("close the socket %s to others: %w", path, err), l.Close())
	}
	return l, nil
}

// Serve serves until ctx ends: every tcp listener by HTTPS with tokens, local (may be nil) without either. It ends all streams, lets other
// requests finish, and closes all listeners before it returns. It returns nil when ctx ended it.
func (s *Server) Serve(ctx context.Context, tcp []net.Listener, tlsConfig *tls.Config, local net.Listener) error {
	group, groupCtx := errgroup.WithContext(ctx)
	servers := []*http.Server{s.httpServer(s.Handler())}
	group.Go(func() error { s.Run(groupCtx); return nil })
	for _, l := range tcp {
		group.Go(func() error { return served(servers[0].Serve(tls.NewListener(l, tlsConfig))) })
	}
	if local != nil {
		servers = append(servers, s.httpServer(s.LocalHandler()))
		group.Go(func() error { return served(servers[1].Serve(local)) })
	}
	group.Go(func() error {
		<-groupCtx.Done()
		s.stop()
		deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		for _, server := range servers {
			if err := server.Shutdown(deadline); err != nil {
				s.cfg.Log.WarnContext(ctx, "requests cut off at shutdown", "error", err)
				_ = server.Close() // the connections are being cut off anyway
			}
		}
		return nil
	})
	return group.Wait()
}

// served makes the normal end of a server no error.
func served(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve the API: %w", err)
}

// httpServer sets the limits. There is no overall write timeout: streams live long and set deadlines of their own.
func (s *Server) httpServer(h http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		Protocols: protocols,
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
		ErrorLog:  slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}
}
