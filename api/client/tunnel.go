package client

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// tunnelProtocol is what a connection to a member or a console is upgraded to: plain bytes both ways.
const tunnelProtocol = "nearmetal-tunnel"

// ConnectMember opens a byte stream to a port of a member, through the server and the agent of the member's node. The only port is 22,
// where the member's SSH server listens. ctx bounds the opening, not the stream. The stream has CloseWrite (Tunnel).
func (c *Client) ConnectMember(ctx context.Context, name, member string, port int) (*Tunnel, error) {
	path := cluster(name) + "/members/" + url.PathEscape(member) + "/connect?port=" + strconv.Itoa(port)
	return c.tunnel(ctx, path)
}

// ConnectMemberConsole opens a byte stream to the serial console of a member that is a virtual machine. The server sets By. ctx bounds the opening,
// not the stream.
func (c *Client) ConnectMemberConsole(ctx context.Context, name, member string, r api.ConsoleRequest) (*Tunnel, error) {
	query := url.Values{}
	for parameter, set := range map[string]bool{"write": r.Write, "force": r.Force, "kept_only": r.KeptOnly} {
		if set {
			query.Set(parameter, "true")
		}
	}
	return c.tunnel(ctx, cluster(name)+"/members/"+url.PathEscape(member)+"/console?"+query.Encode())
}

// ConnectMemberDisplay opens a byte stream to the VNC server of a member's display. ctx bounds the opening, not the stream.
func (c *Client) ConnectMemberDisplay(ctx context.Context, name, member string) (*Tunnel, error) {
	return c.tunnel(ctx, cluster(name)+"/members/"+url.PathEscape(member)+"/display")
}

// BackUpVolume opens a byte stream with a backup of a volume or, unless it is "", of a snapshot of it. ctx bounds the opening, not the stream.
func (c *Client) BackUpVolume(ctx context.Context, name, snapshot string) (*Tunnel, error) {
	path := volumePath(name) + "/backup"
	if snapshot != "" {
		path += "?snapshot=" + url.QueryEscape(snapshot)
	}
	return c.tunnel(ctx, path)
}

// SendVolumeContent opens a byte stream to a volume that waits for its backup: the backup goes there, and then CloseWrite. What comes back is the trailer of
// an archive, which tells how it went. ctx bounds the opening, not the stream.
func (c *Client) SendVolumeContent(ctx context.Context, name string) (*Tunnel, error) {
	return c.tunnelBy(ctx, http.MethodPost, volumePath(name)+"/content")
}

// upgrade makes a fresh connection the tunnel that req asks for.
func (c *Client) upgrade(ctx context.Context, conn net.Conn, req *http.Request) (*Tunnel, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends the reading and writing below
	broken := func(err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &UnreachableError{c.addr, err}
	}
	if err := req.Write(conn); err != nil {
		return nil, broken(err)
	}
	reader := bufio.NewReader(conn)
	resp, err := http.ReadResponse(reader, req)
	if err != nil {
		return nil, broken(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer resp.Body.Close()
		return nil, c.problem(resp)
	}
	if !stop() {
		return nil, ctx.Err()
	}
	return &Tunnel{Conn: conn, reader: reader}, nil
}

// Tunnel is a byte stream to a member or a console.
type Tunnel struct {
	net.Conn
	// reader holds what came together with the answer to the upgrade.
	reader *bufio.Reader
}

// Read reads what the other end sends.
func (t *Tunnel) Read(p []byte) (int, error) { return t.reader.Read(p) }

// CloseWrite ends this end's data. Reading goes on.
func (t *Tunnel) CloseWrite() error {
	half, ok := t.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.New("this connection can't be closed one way")
	}
	return half.CloseWrite()
}

// dialTLS connects to an HTTPS server for HTTP/1.1, the only version that can be upgraded.
func dialTLS(ctx context.Context, dialer *net.Dialer, host string, config *tls.Config) (net.Conn, error) {
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS13}
	}
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
	if config.ServerName == "" {
		name, _, err := net.SplitHostPort(host)
		if err != nil {
			return nil, err
		}
		config.ServerName = name
	}
	return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, "tcp", host)
}
