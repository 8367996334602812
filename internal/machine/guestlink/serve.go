package guestlink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Handler is what a guest does as it is asked.
type Handler interface {
	// Setup brings the machine to s. It may be called again, with other files.
	Setup(ctx context.Context, s Setup) error
	// Volumes mounts and unmounts until the machine has these volumes and no others. It returns ErrBusy while files of one that goes are open,
	// and then the others are as they should be.
	Volumes(ctx context.Context, v Volumes) error
	// Dial connects to a TCP port of the machine.
	Dial(ctx context.Context, port int) (net.Conn, error)
}

// Serve answers the host's requests until ctx ends. Accept of the listener returns the host's next connection.
func Serve(ctx context.Context, listener net.Listener, h Handler) error {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT "+setupPath, func(w http.ResponseWriter, r *http.Request) { serveChange(ctx, w, r, h.Setup) })
	mux.HandleFunc("PUT "+volumesPath, func(w http.ResponseWriter, r *http.Request) { serveChange(ctx, w, r, h.Volumes) })
	mux.HandleFunc("POST "+dialPath, func(w http.ResponseWriter, r *http.Request) { serveDial(w, r, h) })
	server := &http.Server{Handler: mux, Protocols: onlyHTTP2(), ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	err := server.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		return ctx.Err()
	}
	return err
}

// serveChange brings the machine to what a request has.
func serveChange[T any](ctx context.Context, w http.ResponseWriter, r *http.Request, change func(context.Context, T) error) {
	var to T
	err := json.NewDecoder(io.LimitReader(r.Body, maxSetupBytes)).Decode(&to)
	if err == nil {
		err = change(ctx, to)
	}
	switch {
	case errors.Is(err, ErrBusy):
		http.Error(w, err.Error(), http.StatusConflict)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func onlyHTTP2() *http.Protocols {
	p := &http.Protocols{}
	p.SetUnencryptedHTTP2(true)
	return p
}

// serveDial passes bytes on between a request and a TCP port: the request's body to the port, what comes from the port as the answer. Once
// the port's end is reached, both ways end: an answer can't end before its request does.
func serveDial(w http.ResponseWriter, r *http.Request, h Handler) {
	port, err := strconv.Atoi(r.URL.Query().Get("port"))
	if err != nil || port < 1 || port > 65535 {
		http.Error(w, fmt.Sprintf("%q is not a port", r.URL.Query().Get("port")), http.StatusBadRequest)
		return
	}
	conn, err := h.Dial(r.Context(), port)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = conn.Close() }()
	flush := http.NewResponseController(w)
	if err := flush.Flush(); err != nil {
		return
	}
	go func() {
		_, err := io.Copy(conn, r.Body)
		if half, ok := conn.(interface{ CloseWrite() error }); ok && err == nil {
			_ = half.CloseWrite()
			return
		}
		_ = conn.Close()
	}()
	_, _ = io.Copy(flushing{w, flush}, conn)
}

// flushing sends each piece as it comes.
type flushing struct {
	to    io.Writer
	flush *http.ResponseController
}

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.to.Write(p)
	return n, errors.Join(err, f.flush.Flush())
}
