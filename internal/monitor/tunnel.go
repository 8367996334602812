package monitor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/changedfiles/choice"
)

// tunnelPatience is how long an agent is waited for to bring a tunnel.
const tunnelPatience = 5 * time.Second

// tunnel is one that an agent was asked for.
type tunnel struct {
	// node is the only one whose agent may bring it.
	node string
	// brought gets the tunnel, or why there is none; it has room for it.
	brought chan broughtTunnel
}

type broughtTunnel struct {
	conn *agentstream.TunnelConn
	err  error
}

// OpenTunnel connects to a TCP port of a member through its node's agent. What it returns has CloseWrite, for one way; Close ends both.
func (m *Monitor) OpenTunnel(ctx context.Context, nodeName, memberID string, port int) (io.ReadWriteCloser, error) {
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("port %d is not valid; use a number from 1 to 65535", port)
	}
	return m.openTunnel(ctx, nodeName, agentstream.Tunnel{MemberID: memberID, Target: agentstream.TargetPort, Port: port})
}

// OpenConsole attaches to the serial console of a member through its node's agent; what it returns is like OpenTunnel's. An agentstream.ErrInUse
// refuses to let two type at once.
func (m *Monitor) OpenConsole(ctx context.Context, nodeName, memberID string, r api.ConsoleRequest) (io.ReadWriteCloser, error) {
	return m.openTunnel(ctx, nodeName, agentstream.Tunnel{MemberID: memberID, Target: agentstream.TargetConsole, Console: &r})
}

// OpenDisplay connects to the display of a member through its node's agent; what it returns is like OpenTunnel's.
func (m *Monitor) OpenDisplay(ctx context.Context, nodeName, memberID string) (io.ReadWriteCloser, error) {
	return m.openTunnel(ctx, nodeName, agentstream.Tunnel{MemberID: memberID, Target: agentstream.TargetDisplay})
}

// OpenVolume begins to read a backup of a volume through the agent of its node: an archive, and then the end of the stream. Close ends it early.
func (m *Monitor) OpenVolume(ctx context.Context, nodeName string, v agentstream.VolumeCopy) (io.ReadWriteCloser, error) {
	return m.openTunnel(ctx, nodeName, agentstream.Tunnel{Target: agentstream.TargetVolume, Volume: &v})
}

// OpenContent begins to make a volume of a backup through the agent of its node. What is written to it is the backup, an archive; what is read from it
// is the trailer of an archive, which tells how it went.
func (m *Monitor) OpenContent(ctx context.Context, nodeName, volumeUID string) (io.ReadWriteCloser, error) {
	return m.openTunnel(ctx, nodeName, agentstream.Tunnel{Target: agentstream.TargetContent, Volume: &agentstream.VolumeCopy{UID: volumeUID}})
}

// OpenFiles begins to read the files that a member changed through the agent of its node: an archive, and then the end of the stream. Close ends it early.
func (m *Monitor) OpenFiles(ctx context.Context, nodeName, memberID string, use choice.Use) (io.ReadWriteCloser, error) {
	return m.openTunnel(ctx, nodeName, agentstream.Tunnel{MemberID: memberID, Target: agentstream.TargetFiles, FilesFor: use})
}

func (m *Monitor) openTunnel(ctx context.Context, nodeName string, asked agentstream.Tunnel) (io.ReadWriteCloser, error) {
	id, t, err := m.askForTunnel(nodeName, asked)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, tunnelPatience)
	defer cancel()
	select {
	case b := <-t.brought:
		return b.result()
	case <-ctx.Done():
	}
	if m.takeTunnel(id, t.node) != nil {
		return nil, fmt.Errorf("the agent of node %q did not open the tunnel in time: %w", nodeName, ctx.Err())
	}
	// It was brought at this very moment.
	return (<-t.brought).result()
}

func (b broughtTunnel) result() (io.ReadWriteCloser, error) {
	if b.err != nil {
		return nil, b.err
	}
	return b.conn, nil
}

// askForTunnel asks a node's agent for a tunnel. Its ID can't be guessed: it is what the agent shows to have been asked.
func (m *Monitor) askForTunnel(nodeName string, asked agentstream.Tunnel) (string, *tunnel, error) {
	s, err := m.streamTo(nodeName)
	if err != nil {
		return "", nil, err
	}
	t := &tunnel{node: nodeName, brought: make(chan broughtTunnel, 1)}
	asked.ID = rand.Text()
	m.mu.Lock()
	m.tunnels[asked.ID] = t
	m.mu.Unlock()
	s.tunnel(asked)
	return asked.ID, t, nil
}

// takeTunnel returns the tunnel that was asked for, once, and only for the node that was asked; nil when there is none.
func (m *Monitor) takeTunnel(id, node string) *tunnel {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tunnels[id]
	if t == nil || t.node != node {
		return nil
	}
	delete(m.tunnels, id)
	return t
}

var errNotAsked = errors.New("this tunnel was not requested from this agent, or its request has expired")

// ServeTunnel handles the requests by which agents bring tunnels, at agentstream.TunnelPath. Whose they are is for the caller to tell
// (agentstream.ForNode).
func (m *Monitor) ServeTunnel() http.Handler {
	return agentstream.TunnelHandler(func(request agentstream.TunnelRequest, conn *agentstream.TunnelConn) error {
		t := m.takeTunnel(request.ID, request.Node)
		switch {
		case t == nil:
			return errNotAsked
		case conn == nil:
			t.brought <- broughtTunnel{err: request.Err()}
		default:
			t.brought <- broughtTunnel{conn: conn}
		}
		return nil
	})
}
