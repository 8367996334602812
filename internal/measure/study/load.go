package study

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// loadAt is where loaders load from, and loadBytes what they load at once.
var loadAt = netip.AddrPortFrom(farEnd.Addr(), 8080)

const loadBytes = 64 << 20

// load starts loaders that load by HTTP from the far end, one file after the other, and returns once all of them receive. The function that it returns
// ends them.
func (w *world) load(ctx context.Context, n int) (unload func() error, err error) {
	if n == 0 {
		return func() error { return nil }, nil
	}
	var listener net.Listener
	if err := w.far.Do(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", loadAt.String())
		return err
	}); err != nil {
		return nil, err
	}
	server := &http.Server{Handler: http.HandlerFunc(serveZeros), ReadHeaderTimeout: time.Minute}
	ctx, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) }) // it ends with an error in any case
	began, failed := make(chan struct{}, n), make(chan error, n)
	for range n {
		running.Go(func() {
			if err := w.loadUntil(ctx, began); ctx.Err() == nil {
				failed <- err
			}
		})
	}
	unload = func() error {
		end()
		err := server.Close()
		running.Wait()
		select {
		case broken := <-failed:
			return errors.Join(broken, err)
		default:
			return err
		}
	}
	for range n {
		select {
		case <-began:
		case err := <-failed:
			return nil, errors.Join(fmt.Errorf("loading beside the job: %w", err), unload())
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), unload())
		}
	}
	return unload, nil
}

// loadUntil loads until its context ends, and says when it has received something.
func (w *world) loadUntil(ctx context.Context, began chan<- struct{}) error {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		doing := w.near.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, doing
	}}}
	defer client.CloseIdleConnections()
	for told := false; ; {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+loadAt.String()+"/", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		if !told {
			began <- struct{}{}
			told = true
		}
		if _, err = io.Copy(io.Discard, response.Body); err == nil {
			err = response.Body.Close()
		}
		if err != nil {
			return err
		}
	}
}

// serveZeros answers with loadBytes of zeros.
func serveZeros(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", fmt.Sprint(loadBytes))
	zeros := make([]byte, 1<<16)
	for sent := 0; sent < loadBytes; sent += len(zeros) {
		if _, err := w.Write(zeros); err != nil {
			return // the loader has gone
		}
	}
}
