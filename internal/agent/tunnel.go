package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/serialconsole"
)

const (
	// maxTunnels bounds how many tunnels there are at once.
	maxTunnels = 256
	// dialTime bounds how long a member's port is waited for; the server's patience is a little longer.
	dialTime = 4 * time.Second
)

// tunnel connects the server to a port of a member, as asked, until either end closes it.
func (a *Agent) tunnel(ctx context.Context, asked agentstream.Tunnel) {
	request := agentstream.TunnelRequest{ID: asked.ID}
	client, done := a.tunnelClient()
	defer done()
	conn, err := a.reach(ctx, asked)
	if err != nil {
		a.cfg.Log.InfoContext(ctx, "a tunnel to a member can't be opened", "member", asked.MemberID, "target", asked.Target, "port", asked.Port, "error", err)
		var busy *serialconsole.BusyError
		request.Failure, request.InUse, request.Over = err.Error(), errors.As(err, &busy), errors.Is(err, agentstream.ErrOver)
		bounded, cancel := context.WithTimeout(ctx, dialTime)
		defer cancel()
		if err := agentstream.RefuseTunnel(bounded, client, a.cfg.Server, request); err != nil {
			a.cfg.Log.WarnContext(ctx, "the failure of a tunnel can't be reported to the server", "error", err)
		}
		return
	}
	defer func() { <-a.tunnels }()
	defer func() { _ = conn.Close() }()
	brought, err := agentstream.BringTunnel(ctx, client, a.cfg.Server, request)
	if err != nil {
		a.cfg.Log.WarnContext(ctx, "a tunnel can't be connected to the server", "member", asked.MemberID, "error", err)
		return
	}
	agentstream.Splice(ctx, conn, brought)
}

// tunnelClient is a client with a connection of its own: what is sent through a tunnel whose other end does not read fills the window that
// all requests of a connection share, and the stream's answers would wait for it.
func (a *Agent) tunnelClient() (*http.Client, func()) {
	shared, ok := a.cfg.Client.Transport.(interface{ Own() *http.Client })
	if !ok {
		return a.cfg.Client, func() {}
	}
	own := shared.Own()
	return own, own.CloseIdleConnections
}

// reach connects to a member's port, to its console or to its display, or to a volume, and takes one of the places for tunnels.
func (a *Agent) reach(ctx context.Context, asked agentstream.Tunnel) (io.ReadWriteCloser, error) {
	life := ctx
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if asked.Target == agentstream.TargetVolume || asked.Target == agentstream.TargetContent {
		return a.placed(ctx, func(ctx context.Context) (io.ReadWriteCloser, error) { return a.reachVolume(ctx, life, asked) })
	}
	found := make(chan driver.Driver, 1)
	a.post(ctx, func() {
		var d driver.Driver
		if m := a.members[asked.MemberID]; m != nil && m.want != nil && !m.want.Release {
			d = m.driver
		}
		found <- d
	})
	var d driver.Driver
	select {
	case d = <-found:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if d == nil {
		return nil, errNoMember
	}
	connect, err := a.connector(life, d, asked)
	if err != nil {
		return nil, err
	}
	return a.placed(ctx, connect)
}

// placed connects, and takes one of the places for tunnels.
func (a *Agent) placed(ctx context.Context, connect func(context.Context) (io.ReadWriteCloser, error)) (io.ReadWriteCloser, error) {
	select {
	case a.tunnels <- struct{}{}:
	default:
		return nil, fmt.Errorf("this node already has %d tunnels, which is its limit; close some", maxTunnels)
	}
	conn, err := connect(ctx)
	if err != nil {
		<-a.tunnels
	}
	return conn, err
}

// connector returns what connects to the part of a member that was asked for. life is that of the connection.
func (a *Agent) connector(life context.Context, d driver.Driver, asked agentstream.Tunnel) (func(context.Context) (io.ReadWriteCloser, error), error) {
	switch asked.Target {
	case agentstream.TargetPort:
		dialer, ok := d.(driver.Dialer)
		if !ok {
			return nil, fmt.Errorf("members of stack %q can't be reached from their host", d.Stack())
		}
		return func(ctx context.Context) (io.ReadWriteCloser, error) {
			return dialer.Dial(ctx, asked.MemberID, asked.Port)
		}, nil
	case agentstream.TargetConsole:
		sharer, ok := d.(driver.ConsoleSharer)
		if !ok || asked.Console == nil {
			return nil, fmt.Errorf("members of stack %q have no serial console", d.Stack())
		}
		return func(ctx context.Context) (io.ReadWriteCloser, error) {
			return sharer.Console(ctx, asked.MemberID, *asked.Console)
		}, nil
	case agentstream.TargetDisplay:
		sharer, ok := d.(driver.DisplaySharer)
		if !ok {
			return nil, fmt.Errorf("members of stack %q have no display", d.Stack())
		}
		return func(ctx context.Context) (io.ReadWriteCloser, error) { return sharer.Display(ctx, asked.MemberID) }, nil
	case agentstream.TargetFiles:
		saver, ok := d.(driver.FileSaver)
		if !ok {
			return nil, fmt.Errorf("members of stack %q have no changed files to save", d.Stack())
		}
		if err := asked.FilesFor.Check(); err != nil {
			return nil, err
		}
		return func(context.Context) (io.ReadWriteCloser, error) {
			return a.giveFiles(life, saver, asked.MemberID, asked.FilesFor), nil
		}, nil
	case agentstream.TargetState, agentstream.TargetMove:
		return func(ctx context.Context) (io.ReadWriteCloser, error) { return a.offer(ctx, life, asked) }, nil
	default:
		return nil, fmt.Errorf("this version of the agent can't connect to %q of a member", asked.Target)
	}
}
