package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/nearmetal/nearmetal/api/client"
)

// memberDisplay passes connections of VNC viewers on to a member's display until ctx ends.
func (a *app) memberDisplay(ctx context.Context, cluster, member, at string) error {
	c, err := a.client(0)
	if err != nil {
		return err
	}
	cl, err := c.Cluster(ctx, cluster)
	if err != nil {
		return err
	}
	m, err := findMember(cl, member)
	if err != nil {
		return err
	}
	// A machine without a display is refused here, before a viewer connects.
	probe, err := c.ConnectMemberDisplay(ctx, cluster, m.Name)
	if err != nil {
		return err
	}
	_ = probe.Close()
	listener, viewer, err := listenForViewers(at)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	defer func() { _ = listener.Close() }()
	fmt.Fprintf(a.Streams.Err, "the screen of %s is at %s: open it with a VNC viewer, such as: vncviewer %s\nCtrl-C ends it\n", m.Name, listener.Addr(), viewer)
	var viewers sync.WaitGroup
	defer viewers.Wait()
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return &exitError{code: ExitInterrupted}
			}
			return fmt.Errorf("listen for VNC viewers: %w", err)
		}
		viewers.Go(func() {
			if err := a.passDisplay(ctx, c, conn, cluster, m.Name); err != nil {
				fmt.Fprintf(a.Streams.Err, "a viewer was disconnected: %v\n", err)
			}
		})
	}
}

// passDisplay joins a viewer and the display until one of them ends.
func (a *app) passDisplay(ctx context.Context, c *client.Client, viewer net.Conn, cluster, member string) error {
	defer func() { _ = viewer.Close() }()
	display, err := c.ConnectMemberDisplay(ctx, cluster, member)
	if err != nil {
		return err
	}
	defer func() { _ = display.Close() }()
	defer context.AfterFunc(ctx, func() { _ = viewer.Close() })()
	ended := make(chan struct{}, 2)
	pass := func(to io.Writer, from io.Reader) {
		_, _ = io.Copy(to, from)
		ended <- struct{}{}
	}
	go pass(display, viewer)
	go pass(viewer, display)
	<-ended
	return nil
}

// listenForViewers listens at HOST:PORT or unix:PATH, and returns what a viewer is to be given.
func listenForViewers(at string) (net.Listener, string, error) {
	if path, ok := strings.CutPrefix(at, "unix:"); ok {
		before := syscall.Umask(0o077) // nobody else may connect, from the first moment on
		listener, err := net.Listen("unix", path)
		syscall.Umask(before)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, "", fmt.Errorf("%s exists already; remove it, or choose another path: %w", path, os.ErrExist)
		}
		return listener, path, err
	}
	if at == "" {
		at = "127.0.0.1:0"
	}
	host, _, err := net.SplitHostPort(at)
	if err != nil || host == "" {
		return nil, "", usage("--listen %q is neither HOST:PORT nor unix:PATH; write for example 127.0.0.1:5901", at)
	}
	listener, err := net.Listen("tcp", at)
	if err != nil {
		return nil, "", err
	}
	bound, port, _ := net.SplitHostPort(listener.Addr().String())
	return listener, bound + "::" + port, nil // by port, not by number of a display
}
