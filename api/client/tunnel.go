package client

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
)

// tunnelProtocol is what a connection to a member is upgraded to: plain bytes both ways.
const tunnelProtocol = "nearmetal-tunnel"

// ConnectMember opens a byte stream to a port of a member, through the server and the agent of the member's node. The only port is 22,
// where the member's SSH server listens. ctx bounds the opening, not the stream. The stream has CloseWrite (Tunnel).
func (c *Client) ConnectMember(ctx context.Context, name, member string, port int) (*Tunnel, error) {
	path := cluster(name) + "/members/" + url.PathEscape(member) + "/connect?port=" + strconv.Itoa(port)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, fmt.Errorf("server address %q: %w", c.addr, err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", tunnelProtocol)
	if c.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	conn, err := c.dial(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &UnreachableError{c.addr, err}
	}
	t, err := c.upgrade(ctx, conn, req)
	if err != nil {
		_ = conn.Close() // the error that matters is why there is no tunnel
		return nil, err
	}
	return t, nil
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

// Tunnel is a byte stream to a member.
type Tunnel struct {
	net.Conn
	// reader holds what came together with the answer to the upgrade.
	reader *bufio.Reader
}

// Read reads what the member sends.
func (t *Tunnel) Read(p []byte) (int, error) { return t.reader.Read(p) }

// CloseWrite tells the member that nothing more will come; reading goes on.
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
