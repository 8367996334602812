// Package hostile attacks a running server as a node that was taken over would, with a stolen token or key, and by floods.
//
// The server is a whole one in this process, with its store and TLS. Nodes are written by hand on the wire, so that they can lie. Each attack succeeds
// once its guard is removed: tools/mutants removes them in turn. What attacks one package only is tested there, such as machines on the
// boot network (internal/machine/bootapi). Start with node_test.go.
package hostile

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/config"
	fabricfake "github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/server"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// patience bounds each wait for something that comes by itself.
const patience = 30 * time.Second

// host is where the server listens; its certificate names it.
const host = "127.0.0.1"

// attacked is a whole server.
type attacked struct {
	t       *testing.T
	dir     string
	address string
	// admin is the administrator's client, over the Unix socket.
	admin *client.Client
}

func newAttacked(t *testing.T) *attacked {
	t.Helper()
	dir, err := os.MkdirTemp("", "nmhostile") // short: the path of a socket has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	control, err := server.Open(server.Config{
		Server:  config.Server{StateDir: dir, Listen: host + ":0"},
		Fabrics: map[string]site.Site{"ib0": fabricfake.NewSite(&fabricfake.Tables{})}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &attacked{t: t, dir: dir, address: control.Addresses()[0]}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		if err := control.Run(ctx, func() { close(ready) }); err != nil {
			t.Errorf("the server: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	<-ready
	s.admin = s.client("unix:"+filepath.Join(dir, config.SocketName), "", nil)
	return s
}

func (s *attacked) client(address, bearer string, config *tls.Config) *client.Client {
	s.t.Helper()
	c, err := client.New(client.Options{Addr: address, Bearer: bearer, TLS: config})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// eventually waits until a look finds what is wanted; it describes what it found instead.
func (s *attacked) eventually(look func() (found string, wanted bool)) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		found, wanted := look()
		if wanted {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("after %s: %s", patience, found)
		}
	}
}

// token makes an enrollment token for names that begin with prefix, which approves.
func (s *attacked) token(prefix string, uses int) (secret, id string) {
	s.t.Helper()
	made, err := s.admin.CreateEnrollToken(s.t.Context(), api.EnrollTokenRequest{Prefix: prefix, Uses: uses, Approve: true})
	if err != nil {
		s.t.Fatal(err)
	}
	return made.Secret, made.ID
}

// over is a client that shows a certificate, or none.
func (s *attacked) over(pin trust.Pin, shown *tls.Certificate) *http.Client {
	config := trust.ClientTLS(pin, host)
	if shown != nil {
		config = trust.NodeTLS(pin, host, func() (*tls.Certificate, error) { return shown, nil })
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// send sends a request and returns its status and what was answered.
func (s *attacked) send(by *http.Client, method, path, bearer string, body any) (int, []byte) {
	s.t.Helper()
	var content []byte
	switch b := body.(type) {
	case nil:
	case []byte:
		content = b
	default:
		var err error
		if content, err = json.Marshal(b); err != nil {
			s.t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, "https://"+s.address+path, bytes.NewReader(content))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := by.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, text
}

// pin is the pin of the site's CA, as a token carries it.
func (s *attacked) pin(secret string) trust.Pin {
	s.t.Helper()
	token, err := trust.ParseToken(secret)
	if err != nil {
		s.t.Fatal(err)
	}
	return token.Pin
}

// enrollment is the request of an identity, as it goes over the wire.
func (s *attacked) enrollment(identity trust.Identity, secret string) api.NodeEnrollment {
	s.t.Helper()
	request, err := identity.Request()
	if err != nil {
		s.t.Fatal(err)
	}
	token, err := trust.ParseToken(secret)
	if err != nil {
		s.t.Fatal(err)
	}
	return api.NodeEnrollment{Name: identity.Node, Request: request, Token: token.Bearer()}
}

// certified is the identity with the certificate of an answer, and a client that shows it.
func (s *attacked) certified(identity trust.Identity, answer []byte) (trust.Identity, *http.Client) {
	s.t.Helper()
	var c api.NodeCertificate
	if err := json.Unmarshal(answer, &c); err != nil {
		s.t.Fatal(err)
	}
	identity = identity.Certified(identity.Node, c)
	shown, err := identity.TLS()
	if err != nil {
		s.t.Fatal(err)
	}
	pin, err := trust.ParsePin(c.Pin)
	if err != nil {
		s.t.Fatal(err)
	}
	return identity, s.over(pin, shown)
}

// node is a node whose agent is this test.
type node struct {
	*attacked
	identity trust.Identity
	http     *http.Client
	record   api.NodeRecord

	conn *agentstream.ClientConn
	// tunnels gets the tunnels that the node was asked for, refused why its stream was refused.
	tunnels chan agentstream.Tunnel
	refused chan string

	mu      sync.Mutex
	pings   int // of the server, one a second
	desired *agentstream.Desired
	changed chan struct{}
	// say changes what the node truthfully says of its members.
	say func(*agentstream.Observed)
}

// enrolled enrolls a node of four cores.
func (s *attacked) enrolled(number int) *node {
	s.t.Helper()
	name := fmt.Sprint("n", number)
	secret, _ := s.token(name, 1)
	identity, err := trust.NewIdentity(name)
	if err != nil {
		s.t.Fatal(err)
	}
	status, answer := s.send(s.over(s.pin(secret), nil), http.MethodPost, "/agent/v1/enrollment", "", s.enrollment(identity, secret))
	if status != http.StatusOK {
		s.t.Fatalf("enroll %s: %d %s", name, status, answer)
	}
	n := &node{attacked: s, changed: make(chan struct{}), say: func(*agentstream.Observed) {}}
	n.identity, n.http = s.certified(identity, answer)
	n.record = api.NodeRecord{
		Name: name, Underlay: fmt.Sprint("198.18.0.", number), AgentVersion: "test", Labels: map[string]string{"at": name},
		Capacity:     api.NodeCapacity{Cores: []api.Core{{Slot: 0, CPU: 0}, {Slot: 1, CPU: 1}}, MemoryBytes: 8 << 30, NUMANodes: []api.NUMANode{{MemoryBytes: 8 << 30}}},
		Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackMetal}, OK: true}},
		Stacks:       []api.StackCheck{{Stack: api.StackMetal, OK: true}},
	}
	return n
}

// greets opens a stream with a greeting, and lives on it as an agent does until the test ends.
func (n *node) greets(record api.NodeRecord) {
	n.t.Helper()
	n.dial()
	if err := n.conn.Send(agentstream.Up{Hello: &agentstream.Hello{Run: fmt.Sprint(time.Now().UnixNano()), Node: record}}); err != nil {
		n.t.Fatal(err)
	}
	n.tunnels, n.refused = make(chan agentstream.Tunnel, 10), make(chan string, 1)
	go n.hear(n.conn, n.tunnels, n.refused)
}

// dial opens a stream and says nothing on it.
func (n *node) dial() {
	n.t.Helper()
	long := &http.Client{Transport: n.http.Transport}
	conn, err := agentstream.Dial(n.t.Context(), long, "https://"+n.address)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(conn.Close)
	n.conn = conn
}

// hear obeys the server until the stream ends.
func (n *node) hear(conn *agentstream.ClientConn, tunnels chan<- agentstream.Tunnel, refused chan<- string) {
	for {
		down, err := conn.Receive()
		switch {
		case err != nil:
			refused <- "the stream ended: " + err.Error()
			return
		case down.Refused != "":
			refused <- down.Refused
			return
		case down.Ping != nil:
			n.mu.Lock()
			n.pings++
			n.mu.Unlock()
			_ = conn.Send(agentstream.Up{Heartbeat: &agentstream.Heartbeat{Time: time.Now(), Ping: down.Ping.Seq}})
		case down.Tunnel != nil:
			tunnels <- *down.Tunnel
		case down.Desired != nil:
			n.mu.Lock()
			n.desired = down.Desired
			close(n.changed)
			n.changed = make(chan struct{})
			n.mu.Unlock()
			n.tells()
		}
	}
}

// tells says what is on the node: all that is desired, and what the node makes of it.
func (n *node) tells() {
	n.mu.Lock()
	defer n.mu.Unlock()
	o := &agentstream.Observed{}
	if n.desired != nil {
		o.Term = n.desired.Term
		for i := range n.desired.Members {
			m := &n.desired.Members[i]
			if m.Release {
				o.Clean = append(o.Clean, m.Assignment.ID)
				continue
			}
			o.Members = append(o.Members, agentstream.MemberObserved{
				ID: m.Assignment.ID, Generation: m.Assignment.Generation, Phase: api.MemberReady, FilesDigest: m.FilesDigest,
			})
		}
		for i := range n.desired.Jobs {
			began := time.Now()
			o.Jobs = append(o.Jobs, agentstream.JobObserved{ID: n.desired.Jobs[i].RunID(), Phase: api.JobRunning, StartedAt: &began})
		}
	}
	n.say(o)
	_ = n.conn.SendObserved(o, nil) // a stream that ended is seen by hear
}

// lies has the node say something else from now on.
func (n *node) lies(say func(*agentstream.Observed)) {
	n.mu.Lock()
	n.say = say
	n.mu.Unlock()
	n.tells()
}

// wants waits until the server wants something of the node.
func (n *node) wants(what string, is func(*agentstream.Desired) bool) agentstream.Desired {
	n.t.Helper()
	timeout := time.After(patience)
	for {
		n.mu.Lock()
		desired, changed := n.desired, n.changed
		n.mu.Unlock()
		if desired != nil && is(desired) {
			return *desired
		}
		select {
		case <-changed:
		case why := <-n.refused:
			n.t.Fatalf("node %s waits for %s: %s", n.identity.Node, what, why)
		case <-timeout:
			n.t.Fatalf("the server never wanted %s of node %s; it wants %+v", what, n.identity.Node, desired)
		}
	}
}

// ready starts the honest agent of a node.
func (s *attacked) honest(number int) *node {
	s.t.Helper()
	n := s.enrolled(number)
	n.greets(n.record)
	n.isReady()
	return n
}

func (n *node) isReady() {
	n.t.Helper()
	n.eventually(func() (string, bool) {
		got, err := n.admin.Node(n.t.Context(), n.identity.Node)
		select {
		case why := <-n.refused:
			n.t.Fatalf("node %s: %s", n.identity.Node, why)
		default:
		}
		return fmt.Sprintf("node %s is %s (%v)", n.identity.Node, got.Phase, err), err == nil && got.Phase == api.NodeReady
	})
}

// cluster makes a cluster of one machine and waits until its node is asked for it, whose member it returns.
func (n *node) cluster(name string) agentstream.Member {
	n.t.Helper()
	if _, err := n.admin.CreateCluster(n.t.Context(), api.ClusterRequest{Name: name, Size: 1, Cores: 1, Memory: 1 << 30, Stack: api.StackMetal}); err != nil {
		n.t.Fatal(err)
	}
	return n.wants("a member of "+name, func(d *agentstream.Desired) bool { return len(d.Members) == 1 }).Members[0]
}

// isPhase waits until a cluster is in a phase.
func (s *attacked) isPhase(name string, want api.ClusterPhase) {
	s.t.Helper()
	s.eventually(func() (string, bool) {
		c, err := s.admin.Cluster(s.t.Context(), name)
		return fmt.Sprintf("cluster %s is %s (%s, %v)", name, c.Status.Phase, c.Status.Message, err), err == nil && c.Status.Phase == want
	})
}

// isGone waits until there is no cluster of a name.
func (s *attacked) isGone(name string) {
	s.t.Helper()
	s.eventually(func() (string, bool) {
		c, err := s.admin.Cluster(s.t.Context(), name)
		var problem *client.Error
		return fmt.Sprintf("cluster %s is %s (%s)", name, c.Status.Phase, c.Status.Message), errors.As(err, &problem) && problem.Status == http.StatusNotFound
	})
}
