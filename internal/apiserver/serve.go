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
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Limits of connections.
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 32 << 10
	shutdownTime   = 5 * time.Second
	// flushTime is for the last bytes of answers to leave, which HTTP/2 sends after their handlers have returned.
	flushTime = 50 * time.Millisecond
	// maxStreams is how many requests one HTTP/2 connection may have open; agents and watches hold one each.
	maxStreams = 1000
)

// ListenUnix makes the API's Unix socket, which only its owner can open. A socket left by a server that is dead is replaced;
// the caller makes sure (by the lock of the state directory) that it is dead.
func ListenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	// Bound through the open directory: the path of a Unix socket holds 107 bytes at most (sun_path, unix(7)).
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("listen on the socket %s: %w", path, err)
	}
	defer dir.Close()
	short := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err // without the short name
		}
		return nil, fmt.Errorf("listen on the socket %s: %w (is its directory writable?)", path, err)
	}
	l.SetUnlinkOnClose(false) // the short name is void once the directory is closed
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
	network, owner := s.httpServer(s.Handler()), s.httpServer(s.LocalHandler())
	group.Go(func() error { s.Run(groupCtx); return nil })
	for _, l := range tcp {
		group.Go(func() error { return served(network.Serve(tls.NewListener(l, tlsConfig))) })
	}
	if local != nil {
		group.Go(func() error { return served(owner.Serve(local)) })
	}
	group.Go(func() error {
		<-groupCtx.Done()
		s.stop()
		s.shutDown(context.WithoutCancel(ctx), network, owner)
		return nil
	})
	return group.Wait()
}

// shutDown ends the servers once the last request is answered, or time is up.
func (s *Server) shutDown(ctx context.Context, servers ...*http.Server) {
	ctx, cancel := context.WithTimeout(ctx, shutdownTime)
	defer cancel()
	var ended sync.WaitGroup
	for _, server := range servers {
		ended.Go(func() { _ = server.Shutdown(ctx) }) // what it leaves open is closed below
	}
	// Shutdown alone takes a second for every HTTP/2 connection, and five for one that was never used.
	for s.inFlight.Load() > 0 && ctx.Err() == nil {
		pause(ctx, 5*time.Millisecond)
	}
	if n := s.inFlight.Load(); n > 0 {
		s.cfg.Log.WarnContext(ctx, "requests cut off at shutdown", "requests", n)
	}
	pause(ctx, flushTime)
	for _, server := range servers {
		_ = server.Close() // the connections are being cut off anyway
	}
	ended.Wait()
}

// pause waits, at most until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
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
