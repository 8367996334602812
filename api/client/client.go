// Package client is the Go client of the Nearmetal API.
//
// It speaks HTTPS with a bearer token, or plain HTTP over the server's Unix socket. How a TLS server is verified is the
// caller's: Options.TLS has to verify it (the program pins the site's CA). Errors of the server are *Error and carry the
// problem it told. Start with New.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Options say where the server is and how to reach it.
type Options struct {
	// Addr is HOST:PORT, https://HOST:PORT or unix:PATH.
	Addr string
	// Bearer is the bearer token; the Unix socket needs none, and who sends one there is who it says.
	Bearer string
	// TLS is the configuration for an HTTPS server.
	TLS *tls.Config
	// Timeout bounds a request that is no stream; 0: 60 s.
	Timeout time.Duration
	// TokenEnds is called with every answer that says when the token ends, from any goroutine; nil: nobody wants to know.
	TokenEnds func(time.Time)
}

// Client talks to one server. It may be used from many goroutines.
type Client struct {
	base    string
	addr    string
	bearer  string
	timeout time.Duration
	http    *http.Client
	ends    func(time.Time)
	// dial opens a connection of its own for what is no request and answer: TLS is up on it where the server has it.
	dial func(ctx context.Context) (net.Conn, error)
}

// dialTimeout is how long one attempt to connect may take.
const dialTimeout = 5 * time.Second

// New returns a client. It does not connect yet.
func New(o Options) (*Client, error) {
	transport := &http.Transport{
		TLSClientConfig: o.TLS, ForceAttemptHTTP2: true, TLSHandshakeTimeout: dialTimeout,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second,
		// A server that vanished without a word is noticed on streams too.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 20 * time.Second, PingTimeout: 10 * time.Second},
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	transport.DialContext = dialer.DialContext
	c := &Client{addr: o.Addr, bearer: o.Bearer, timeout: o.Timeout, ends: o.TokenEnds}
	if c.timeout == 0 {
		c.timeout = time.Minute
	}
	if path, ok := strings.CutPrefix(o.Addr, "unix:"); ok {
		path = strings.TrimPrefix(path, "//")
		if path == "" {
			return nil, fmt.Errorf("server address %q names no socket; write unix:/path/to/server.sock", o.Addr)
		}
		c.base = "http://localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		}
		c.dial = func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "unix", path) }
	} else {
		host, err := hostPort(o.Addr)
		if err != nil {
			return nil, err
		}
		c.base = "https://" + host
		c.dial = func(ctx context.Context) (net.Conn, error) { return dialTLS(ctx, dialer, host, o.TLS) }
	}
	c.http = &http.Client{
		Transport: transport,
		// A redirect would carry the token elsewhere; this API makes none.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// Close ends the connections that no request uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Host is the host of a server address, by which its certificate is verified; "" for a Unix socket.
func Host(addr string) (string, error) {
	if strings.HasPrefix(addr, "unix:") {
		return "", nil
	}
	hp, err := hostPort(addr)
	if err != nil {
		return "", err
	}
	host, _, err := net.SplitHostPort(hp)
	return host, err
}

// hostPort is HOST:PORT of an address.
func hostPort(addr string) (string, error) {
	if strings.HasPrefix(addr, "http://") {
		return "", fmt.Errorf("server address %q is not encrypted; write https://HOST:PORT or unix:PATH", addr)
	}
	hp := strings.TrimSuffix(strings.TrimPrefix(addr, "https://"), "/")
	host, port, err := net.SplitHostPort(hp)
	// What can't stand in a URL is no host either (RFC 3986, section 3.2.2).
	if err != nil || host == "" || port == "" || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || strings.ContainsRune(`%/?#@<>"\\`, r) }) {
		return "", fmt.Errorf("server address %q is not HOST:PORT, https://HOST:PORT or unix:PATH", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("server address %q: %q is not a port; give a number from 1 to 65535", addr, port)
	}
	return hp, nil
}

// Error is an error the server answered with.
type Error struct{ api.Problem }

func (e *Error) Error() string { return e.Detail }

// UnreachableError is the error of a server that can't be reached, or that broke off before it answered.
type UnreachableError struct {
	Addr string
	Err  error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("can't reach the server at %s: %s", e.Addr, plainly(e.Err))
}

// plainly says what an error of the network means to people, without the names of functions, calls and headers.
func plainly(err error) string {
	var (
		host  *net.DNSError
		errno syscall.Errno
		plain tls.RecordHeaderError
		waits net.Error
		u     *url.Error
	)
	switch {
	case errors.As(err, &host) && host.IsNotFound:
		return fmt.Sprintf("no host has the name %q", host.Name)
	case errors.As(err, &host):
		return fmt.Sprintf("the name %q can't be looked up: the name server does not answer", host.Name)
	case errors.Is(err, syscall.ENOENT):
		return "nothing listens there"
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &plain):
		return "what listens there does not speak TLS"
	case errors.As(err, &waits) && waits.Timeout():
		return "it does not answer"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "it closed the connection before its answer was complete"
	case errors.As(err, &u):
		return u.Err.Error() // its method and URL say nothing to people
	default:
		return err.Error()
	}
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// HasCode reports whether an error is one of the server's with that code.
func HasCode(err error, code string) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// maxAnswer bounds an answer that is no stream: ten thousand members stay well below.
const maxAnswer = 256 << 20

// do makes a request and reads the answer into out (nil: it is dropped).
func (c *Client) do(ctx context.Context, method, path string, body, out any) error {
	bounded, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := c.send(bounded, method, path, nil, body)
	if err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return &UnreachableError{c.addr, fmt.Errorf("no answer in %s", c.timeout)}
		}
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &UnreachableError{c.addr, fmt.Errorf("its answer can't be read: %w", err)}
	}
	return nil
}

// send makes a request. An answer that is no success becomes an error.
func (c *Client) send(ctx context.Context, method, path string, header http.Header, body any) (*http.Response, error) {
	if err := checkNames(path); err != nil {
		return nil, err
	}
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, content)
	if err != nil {
		return nil, fmt.Errorf("server address %q: %w", c.addr, err)
	}
	for key, values := range header {
		req.Header[key] = values
	}
	switch body.(type) {
	case nil:
	case api.MergePatch:
		req.Header.Set("Content-Type", "application/merge-patch+json")
	default:
		req.Header.Set("Content-Type", "application/json")
	}
	return c.finish(req)
}

// finish makes a request with the client's token. An answer that is no success becomes an error.
func (c *Client) finish(req *http.Request) (*http.Response, error) {
	if c.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if err := req.Context().Err(); err != nil {
			return nil, err
		}
		return nil, &UnreachableError{c.addr, err}
	}
	if at, err := time.Parse(time.RFC3339, resp.Header.Get(api.TokenEndsHeader)); err == nil && c.ends != nil {
		c.ends(at)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.problem(resp)
}

// checkNames refuses a name in a path that no thing can have: ".", ".." and "" would make it the path of something else.
func checkNames(path string) error {
	path, _, _ = strings.Cut(path, "?")
	for i, name := range strings.Split(path, "/") {
		if decoded, _ := url.PathUnescape(name); i > 0 && (name == "" || strings.Trim(decoded, "./") == "") {
			return &Error{api.Problem{
				Code: "no_such_path", Status: http.StatusNotFound,
				Detail: fmt.Sprintf("%q is not a name; names consist of lower-case letters, digits and '-'", decoded),
			}}
		}
	}
	return nil
}

// problem reads the problem a server told, or makes one of what something in between said.
func (c *Client) problem(resp *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return &UnreachableError{c.addr, fmt.Errorf("its answer can't be read: %w", err)}
	}
	e := &Error{}
	if json.Unmarshal(data, &e.Problem) == nil && e.Code != "" {
		return e
	}
	return &UnreachableError{c.addr, fmt.Errorf("it answered %s, which no Nearmetal server does; is the address right?", resp.Status)}
}
