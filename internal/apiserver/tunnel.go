package apiserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/changedfiles"
	"github.com/nearmetal/nearmetal/internal/state"
)

const (
	// tunnelProtocol is what a connection is upgraded to: plain bytes both ways.
	tunnelProtocol = "nearmetal-tunnel"
	// tunnelPort is the only port of a member that is reached: its SSH server, which asks who it is.
	tunnelPort = 22
)

// Tunnels opens byte streams to members and volumes through the agents of their nodes. One that has CloseWrite is closed one way at a time.
type Tunnels interface {
	OpenTunnel(ctx context.Context, node, memberID string, port int) (io.ReadWriteCloser, error)
	// OpenConsole attaches to a member's serial console. An agentstream.ErrInUse refuses to let two type at once.
	OpenConsole(ctx context.Context, node, memberID string, r api.ConsoleRequest) (io.ReadWriteCloser, error)
	// OpenDisplay connects to a member's display.
	OpenDisplay(ctx context.Context, node, memberID string) (io.ReadWriteCloser, error)
	// OpenVolume begins to read a backup of a volume.
	OpenVolume(ctx context.Context, node string, v agentstream.VolumeCopy) (io.ReadWriteCloser, error)
	// OpenFiles begins to read an archive of the files that a member changed.
	OpenFiles(ctx context.Context, node, memberID string, use changedfiles.Use) (io.ReadWriteCloser, error)
	// OpenContent begins to make a volume of the backup that is written.
	OpenContent(ctx context.Context, node, volumeUID string) (io.ReadWriteCloser, error)
}

// connectMember makes the request's connection a byte stream to a port of a member.
func (s *Server) connectMember(w http.ResponseWriter, r *http.Request) {
	c, err := s.findCluster(r.Context(), r.PathValue("name"))
	if err != nil {
		failureOf(err).write(w)
		return
	}
	member := r.PathValue("member")
	port, f := portParameter(r)
	if f == nil {
		f = s.upgradable(w, r)
	}
	if f != nil {
		f.write(w)
		return
	}
	a, err := s.heldMember(r.Context(), c, member)
	if err != nil {
		failureOf(err).write(w)
		return
	}
	opening, stop := context.WithTimeout(r.Context(), s.cfg.RequestTimeout)
	defer stop()
	tunnel, err := s.cfg.Tunnels.OpenTunnel(opening, a.Node, a.ID, port)
	if err != nil {
		s.cfg.Log.InfoContext(r.Context(), "tunnel not opened", "member", a.ID, "node", a.Node, "error", err)
		fail(codeUnreachable, "member %q on node %q can't be reached: %v", member, a.Node, err).write(w)
		return
	}
	defer func() { _ = tunnel.Close() }()
	s.takeOver(w, r, tunnel)
}

// heldMember finds the place of a member, or refuses a name that has none.
func (s *Server) heldMember(ctx context.Context, c *state.Cluster, member string) (*api.Assignment, error) {
	a := findHeld(c, member)
	if a == nil {
		return nil, fail(codeNoMember, "cluster %q has no placed member %q; its placed members: %s", shownName(who(ctx), c.Name()), member,
			memberNames(heldNames(c)))
	}
	return a, nil
}

// upgradable refuses a request whose connection can't become a byte stream.
func (s *Server) upgradable(w http.ResponseWriter, r *http.Request) *failure {
	if wantsTunnel(r) {
		return nil
	}
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", tunnelProtocol)
	return fail(codeUpgrade, "a tunnel needs HTTP/1.1 with \"Connection: Upgrade\" and \"Upgrade: %s\", this is %s", tunnelProtocol, r.Proto)
}

// takeOver makes the request's connection one end of a byte stream whose other end is open; it returns when the stream has ended.
func (s *Server) takeOver(w http.ResponseWriter, r *http.Request, other io.ReadWriteCloser) {
	// The stream outlives the request's context, which ends when the connection is taken over.
	ctx, cancel := s.untilStopped(context.WithoutCancel(r.Context()))
	defer cancel()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.asFailure(ctx, fmt.Errorf("take over the connection: %w", err)).write(w)
		return
	}
	defer func() { _ = conn.Close() }()
	if err := acceptTunnel(conn); err != nil {
		return // the client is gone
	}
	s.splice(ctx, tunnelEnd{conn, buffered.Reader}, other, sessionOf(r.Context()))
}

// portParameter reads the port, 22 when none is given.
func portParameter(r *http.Request) (int, *failure) {
	text := r.URL.Query().Get("port")
	if text == "" {
		return tunnelPort, nil
	}
	if port, err := strconv.Atoi(text); err != nil || port != tunnelPort {
		return 0, failFields(codeParameter, api.FieldProblem{
			Location: "query.port", Value: text, Message: fmt.Sprintf("is not a reachable port; the only port is %d, where SSH answers", tunnelPort),
		})
	}
	return tunnelPort, nil
}

func wantsTunnel(r *http.Request) bool {
	return r.ProtoMajor == 1 && strings.EqualFold(r.Header.Get("Upgrade"), tunnelProtocol) &&
		strings.Contains(strings.ToLower(r.Header.Get("Connection")), "upgrade")
}

// findHeld is the place of a member, nil when it has none.
func findHeld(c *state.Cluster, member string) *api.Assignment {
	for a := range c.Held() {
		if a.Member == member && a.IsMember() {
			return a
		}
	}
	return nil
}

func heldNames(c *state.Cluster) []string {
	var names []string
	for a := range c.Held() {
		if a.IsMember() {
			names = append(names, a.Member)
		}
	}
	if len(names) == 0 {
		return []string{"none now"}
	}
	return names
}

// acceptTunnel answers the request (RFC 9110, section 7.8).
func acceptTunnel(conn net.Conn) error {
	_ = conn.SetDeadline(time.Time{}) // those of the request are over
	_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+tunnelProtocol+"\r\n\r\n")
	_ = conn.SetWriteDeadline(time.Time{})
	return err
}

// tunnelEnd is the client's end: what it sent behind its request was read with it.
type tunnelEnd struct {
	net.Conn
	reader *bufio.Reader
}

func (t tunnelEnd) Read(p []byte) (int, error) { return t.reader.Read(p) }

// splice passes bytes on until both directions have ended, ctx ends, or the token is void.
func (s *Server) splice(ctx context.Context, client tunnelEnd, member io.ReadWriteCloser, who session) {
	done := make(chan bool, 2)
	pass := func(to io.Writer, from io.Reader) {
		_, err := io.Copy(to, from)
		done <- err == nil && closeWrite(to)
	}
	go pass(member, client)
	go pass(client.Conn, member)
	alive := time.NewTicker(s.cfg.KeepAlive)
	defer alive.Stop()
	for open := 2; open > 0; {
		select {
		case half := <-done:
			if open--; !half {
				return // nobody can be told that one direction has ended: the connection ends
			}
		case <-alive.C:
			if !who.valid() {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// closeWrite tells the other end that nothing more will come; false when it can't be told.
func closeWrite(w io.Writer) bool {
	half, ok := w.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}
