package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// Paths by which a node gets its certificates.
const (
	enrollPath = "/agent/v1/enrollment"
	renewPath  = "/agent/v1/renewal"
)

// Codes of the server's problems that the agent can do something about.
const (
	codeCertificateEnded = "certificate_ended"
	codeNodeUnknown      = "node_unknown"
)

const (
	// askPatience bounds a request for a certificate.
	askPatience = 20 * time.Second
	// askAgain is the pause after one that failed: first and longest.
	askAgain, askAgainMax = time.Second, 5 * time.Minute
	// renewAtLeast bounds the time between two renewals, whatever becomes of the node's clock.
	renewAtLeast = 12 * time.Hour
	// maxCertificateAnswer bounds an answer, in bytes.
	maxCertificateAnswer = 64 << 10
)

// Credentials are the node's identity at its site, and the connections made with it.
type Credentials struct {
	path   string // of the identity's file
	server string // HOST:PORT
	socket string // of a server on this machine, which needs no token
	token  *trust.Token
	log    *slog.Logger

	// renewed tells its reader to open new connections.
	renewed chan struct{}

	asking sync.Mutex // one request for a certificate at a time
	mu     sync.Mutex
	now    trust.Identity
	shown  *tls.Certificate
}

// OpenCredentials reads the node's identity, or enrolls the node, which it tries until ctx ends.
func OpenCredentials(ctx context.Context, opts config.Agent, dir string, log *slog.Logger) (*Credentials, error) {
	c := &Credentials{
		path: filepath.Join(dir, trust.IdentityName), server: opts.Server, socket: filepath.Join(opts.StateDir, config.SocketName), log: log,
		renewed: make(chan struct{}, 1),
	}
	if opts.EnrollTokenFile != "" {
		token, err := trust.ReadToken(opts.EnrollTokenFile)
		if err != nil {
			return nil, err
		}
		c.token = &token
	}
	known, err := trust.ReadIdentity(c.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if known, err = trust.NewIdentity(opts.Name); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	if known.Certificate == "" {
		return c, c.enroll(ctx, known)
	}
	if err := c.use(known); err != nil {
		return nil, err
	}
	if c.token != nil && c.token.ID() != known.Token && c.token.Pin.String() != known.Pin {
		// The CA that the node knows was retired. It has the same key still, so that no use of the token is needed.
		return c, c.enroll(ctx, known)
	}
	if c.token == nil && c.besideServer() {
		// Who starts it here is the administrator: it comes in whatever has become of its identity.
		if err := c.ask(ctx, known); err != nil {
			log.InfoContext(ctx, "the server on this machine does not confirm the node's identity", "error", err)
		}
	}
	return c, nil
}

// besideServer reports whether a server uses the agent's state directory.
func (c *Credentials) besideServer() bool {
	_, err := os.Stat(c.socket)
	return err == nil
}

var errNotEnrolled = errors.New("this node is not enrolled; make a token on the server (nearmetal node enroll-token create --out FILE), copy the file here, " +
	"and start the agent with --enroll-token-file FILE")

// enroll gets the first certificate of an identity, and tries until ctx ends or the server says no.
func (c *Credentials) enroll(ctx context.Context, fresh trust.Identity) error {
	if c.token == nil && !c.besideServer() {
		return errNotEnrolled
	}
	// Stored before it is sent: for the same key the server answers again, and uses the token once.
	if err := fresh.Write(c.path); err != nil {
		return err
	}
	for pause := askAgain; ; pause = min(2*pause, askAgainMax) {
		err := c.ask(ctx, fresh)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if refused := new(agentstream.Refusal); errors.As(err, &refused) {
			return fmt.Errorf("this node can't be enrolled: %w", err)
		}
		c.log.WarnContext(ctx, "the node is not enrolled yet; trying again", "server", c.server, "error", err, "pause", pause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// ask sends the request of an identity that has no certificate, and takes up the answer.
func (c *Credentials) ask(ctx context.Context, fresh trust.Identity) error {
	request, err := fresh.Request()
	if err != nil {
		return err
	}
	body := api.NodeEnrollment{Name: fresh.Node, Request: request}
	client, base := c.overSocket(), "http://server"
	if c.token != nil {
		host, _, err := net.SplitHostPort(c.server)
		if err != nil {
			return fmt.Errorf("server address %q: %w; write HOST:PORT", c.server, err)
		}
		client, base = &http.Client{Transport: streamTransport(trust.ClientTLS(c.token.Pin, host))}, "https://"+c.server
		body.Token, fresh.Token = c.token.Bearer(), c.token.ID()
	}
	defer client.CloseIdleConnections()
	answer, err := askCertificate(ctx, client, base+enrollPath, body)
	if err != nil {
		return err
	}
	if id, err := fresh.KeyID(); err == nil && !answer.Approved {
		c.log.WarnContext(ctx, "the node is enrolled and waits for an administrator's approval", "run", "nearmetal node approve "+fresh.Node, "key", "SHA256:"+id)
	}
	return c.take(fresh, answer)
}

// overSocket is a client of the server on this machine.
func (c *Credentials) overSocket() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", c.socket)
	}}}
}

// askCertificate sends a request for a certificate. The error is an *agentstream.Refusal when the server says no.
func askCertificate(ctx context.Context, client *http.Client, url string, body any) (api.NodeCertificate, error) {
	var answer api.NodeCertificate
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return answer, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return answer, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return answer, fmt.Errorf("the server can't be reached: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err = io.ReadAll(io.LimitReader(resp.Body, maxCertificateAnswer))
	switch {
	case err != nil:
		return answer, fmt.Errorf("the server's answer: %w", err)
	case resp.StatusCode >= http.StatusInternalServerError:
		return answer, errors.New(agentstream.RefusalOf(resp.Status, text).Reason)
	case resp.StatusCode != http.StatusOK:
		return answer, agentstream.RefusalOf(resp.Status, text)
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return answer, fmt.Errorf("the server's answer: %w", err)
	}
	return answer, nil
}

// take stores what the server answered and uses it.
func (c *Credentials) take(fresh trust.Identity, answer api.NodeCertificate) error {
	fresh = fresh.Certified(fresh.Node, answer)
	if _, err := fresh.TLS(); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	if err := fresh.Write(c.path); err != nil {
		return err
	}
	return c.use(fresh)
}

// use makes an identity the present one.
func (c *Credentials) use(identity trust.Identity) error {
	shown, err := identity.TLS()
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.now, c.shown = identity, shown
	c.mu.Unlock()
	return nil
}

func (c *Credentials) identity() trust.Identity {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// certificate is shown on each new connection.
func (c *Credentials) certificate() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shown, nil
}

// transport makes connections to the server in the node's name.
func (c *Credentials) transport() (*http.Transport, error) {
	host, _, err := net.SplitHostPort(c.server)
	if err != nil {
		return nil, fmt.Errorf("server address %q: %w; write HOST:PORT", c.server, err)
	}
	pin, err := trust.ParsePin(c.identity().Pin)
	if err != nil {
		return nil, fmt.Errorf("the node's identity %s: %w", c.path, err)
	}
	return streamTransport(trust.NodeTLS(pin, host, c.certificate)), nil
}

// Client makes requests to the server in the node's name, on connections of its own.
func (c *Credentials) Client() *http.Client { return &http.Client{Transport: &renewable{of: c}} }

// Use lets an agent speak in the node's name.
func (c *Credentials) Use(cfg *Config) {
	cfg.Server, cfg.Site, cfg.Client, cfg.Renewed, cfg.Refused = "https://"+c.server, c.identity().Site, c.Client(), c.renewed, c.answer
}

// Run renews the certificate whenever it is due, until ctx ends.
func (c *Credentials) Run(ctx context.Context) {
	for pause := askAgain; ; {
		due := time.Until(c.identity().RenewAt)
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(max(due, 0), renewAtLeast)):
		}
		err := c.renew(ctx)
		if err == nil {
			pause = askAgain
			continue
		}
		if ctx.Err() != nil {
			return
		}
		c.log.WarnContext(ctx, "the node's certificate can't be renewed; trying again", "error", err, "pause", pause)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, askAgainMax)
	}
}

// renew gets a certificate for another key, and asks for new connections, which show it.
func (c *Credentials) renew(ctx context.Context) error {
	c.asking.Lock()
	defer c.asking.Unlock()
	next, err := c.identity().Renewed()
	if err != nil {
		return err
	}
	request, err := next.Request()
	if err != nil {
		return err
	}
	transport, err := c.transport()
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()
	answer, err := askCertificate(ctx, &http.Client{Transport: transport}, "https://"+c.server+renewPath, api.NodeRenewal{Request: request})
	if err != nil {
		return err
	}
	if err := c.take(next, answer); err != nil {
		return err
	}
	c.log.InfoContext(ctx, "the node's certificate was renewed")
	c.tell()
	return nil
}

// answer does what can be done about a server's refusal: it renews a certificate that has ended, and enrolls the node again after a revocation, if there is
// a token for that which the revoked identity was not made by.
func (c *Credentials) answer(ctx context.Context, refused *agentstream.Refusal) error {
	switch refused.Code {
	case codeCertificateEnded:
		return c.renew(ctx)
	case codeNodeUnknown:
		if c.token == nil || c.token.ID() == c.identity().Token {
			return nil
		}
		return c.enrollAgain(ctx)
	}
	return nil
}

// enrollAgain enrolls the node with another key, in place of an identity that was revoked.
func (c *Credentials) enrollAgain(ctx context.Context) error {
	c.asking.Lock()
	defer c.asking.Unlock()
	fresh, err := trust.ReadIdentity(c.path)
	if err != nil || fresh.Certificate != "" { // else it is one whose answer was lost
		if fresh, err = trust.NewIdentity(c.identity().Node); err != nil {
			return err
		}
		if err := fresh.Write(c.path); err != nil {
			return err
		}
	}
	if err := c.ask(ctx, fresh); err != nil {
		return err
	}
	c.tell()
	return nil
}

// tell asks for new connections.
func (c *Credentials) tell() {
	select {
	case c.renewed <- struct{}{}:
	default:
	}
}

// renewable sends requests by connections that show the newest certificate. Those under way when it is renewed end on theirs.
type renewable struct {
	of *Credentials

	mu  sync.Mutex
	now *http.Transport
	by  *tls.Certificate // that now shows
}

// RoundTrip implements http.RoundTripper.
func (r *renewable) RoundTrip(req *http.Request) (*http.Response, error) {
	transport, err := r.transport()
	if err != nil {
		return nil, err
	}
	return transport.RoundTrip(req)
}

func (r *renewable) transport() (*http.Transport, error) {
	newest, err := r.of.certificate()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now != nil && r.by == newest {
		return r.now, nil
	}
	made, err := r.of.transport()
	if err != nil {
		return nil, err
	}
	if r.now != nil {
		r.now.CloseIdleConnections()
	}
	r.now, r.by = made, newest
	return made, nil
}

// Own is a client with connections of its own.
func (r *renewable) Own() *http.Client { return r.of.Client() }

// CloseIdleConnections closes those that nothing uses.
func (r *renewable) CloseIdleConnections() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now != nil {
		r.now.CloseIdleConnections()
	}
}
