package member_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/member"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/member/memberlink"
	"github.com/nearmetal/nearmetal/internal/member/memberlink/memberlinktest"
)

// newLinkedNodeAgent is a node agent's end on any link.
func newLinkedNodeAgent(t *testing.T, dir string, link memberlink.Endpoint) *nodeAgent {
	t.Helper()
	n := &nodeAgent{t: t}
	n.init(true)
	n.serve(dir, link)
	t.Cleanup(func() { _ = n.server.Close() })
	return n
}

// overTLS is a node agent's end for member u1.m.1, at address.
func overTLS(t *testing.T, authority *memberlinktest.Authority, address string) memberlink.Endpoint {
	t.Helper()
	return authority.Listen(t, address, memberlinktest.Template(false, memberlinktest.NodeURI(memberlinktest.Node)), authority.Members())
}

// certified is the link of a member with a certificate for this ID.
func certified(t *testing.T, authority *memberlinktest.Authority, address, id string) *memberconfig.Link {
	t.Helper()
	return authority.Link(t, address, memberlinktest.Template(true, memberlinktest.MemberURI(id)), authority)
}

// speak is a stranger on a connection, which has said hello.
func speak(t *testing.T, conn net.Conn, instance string) *stranger {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	s := &stranger{t: t, conn: conn, in: bufio.NewReader(conn)}
	s.send(member.FromMember{Hello: &member.Hello{Instance: instance, Version: member.ProtocolVersion}})
	return s
}

func dial(t *testing.T, link *memberconfig.Link) net.Conn {
	t.Helper()
	dialer, err := memberlink.Open(link)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := dialer.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// served returns when the node agent has heard the member on this connection.
func (n *nodeAgent) served(s *stranger) {
	n.t.Helper()
	s.send(member.FromMember{Problem: &member.Problem{Message: "not yet"}})
	n.until("the member is heard", func() bool { return len(n.problems) == 1 })
}

func TestAMemberOverTLSRunsItsJobsAcrossARestartOfItsNodeAgent(t *testing.T) {
	p := newProcess(t)
	authority := memberlinktest.NewAuthority(t)
	dir, endpoint := t.TempDir(), overTLS(t, authority, "127.0.0.1:0")
	address := endpoint.Addr().String()
	n := newLinkedNodeAgent(t, dir, endpoint)
	p.cfg.Link = certified(t, authority, address, "u1.m.1")
	p.start()
	n.until("the member is ready", func() bool { return n.ready == 1 })
	first := shellJob("j1", "echo one")
	n.server.SetJobs([]api.Job{first})
	n.server.RequestLog("j1", 0, 1)
	if s := n.untilEnded("j1"); s.Phase != api.JobSucceeded || n.output("j1") != "one\n" {
		t.Errorf("got %+v, %q", s, n.output("j1"))
	}
	if err := n.server.Close(); err != nil {
		t.Fatal(err)
	}
	n.serve(dir, overTLS(t, authority, address))
	n.server.SetJobs([]api.Job{first, shellJob("j2", "echo two")})
	n.server.RequestLog("j2", 0, 1)
	if s := n.untilEnded("j2"); s.Phase != api.JobSucceeded || n.output("j2") != "two\n" {
		t.Errorf("after the restart: got %+v, %q", s, n.output("j2"))
	}
}

func TestAnotherMemberIsRefusedAndTakesNobodysPlace(t *testing.T) {
	authority := memberlinktest.NewAuthority(t)
	endpoint := overTLS(t, authority, "127.0.0.1:0")
	address := endpoint.Addr().String()
	n := newLinkedNodeAgent(t, t.TempDir(), endpoint)
	n.server.SetJobs([]api.Job{}) // so that everybody who is let in is told something
	own := speak(t, dial(t, certified(t, authority, address, "u1.m.1")), "i1")
	n.served(own)
	other := dial(t, certified(t, authority, address, "u1.m.2"))
	t.Cleanup(func() { _ = other.Close() })
	if err := other.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the same member's next incarnation is served: %v", err)
	}
	own.send(member.FromMember{Ready: &member.Ready{At: time.Now()}})
	n.until("the member is heard", func() bool { return n.ready == 1 })
	if n.ended != 0 {
		t.Error("the member's connection was ended for another's")
	}
}

func TestClosingWaitsForNoStranger(t *testing.T) {
	authority := memberlinktest.NewAuthority(t)
	endpoint := overTLS(t, authority, "127.0.0.1:0")
	address := endpoint.Addr().String()
	n := newLinkedNodeAgent(t, t.TempDir(), endpoint)
	for range 3 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	n.served(speak(t, dial(t, certified(t, authority, address, "u1.m.1")), "i1"))
	began := time.Now()
	if err := n.server.Close(); err != nil || time.Since(began) > 5*time.Second {
		t.Errorf("closing took %v: %v", time.Since(began), err)
	}
}

// pipes is a link in memory. Connections that are put in are accepted; each shows whose it is when it is let.
type pipes struct {
	accept chan net.Conn
	fail   chan error
	ended  chan struct{}
	close  sync.Once
}

func newPipes() *pipes {
	return &pipes{accept: make(chan net.Conn), fail: make(chan error), ended: make(chan struct{})}
}

func (p *pipes) endpoint() memberlink.Endpoint {
	return memberlink.Endpoint{Listener: p, Authenticator: p}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accept:
		return conn, nil
	case err := <-p.fail:
		return nil, err
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close.Do(func() { close(p.ended) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// slow is a connection that shows whose it is when known is closed.
type slow struct {
	net.Conn
	known chan struct{}
}

func (p *pipes) Member(ctx context.Context, conn net.Conn) (string, error) {
	select {
	case <-conn.(slow).known:
		return "u1.m.1", nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// connect puts a connection in and returns the member's end.
func (p *pipes) connect(known chan struct{}) net.Conn {
	near, far := net.Pipe()
	p.accept <- slow{far, known}
	return near
}

func TestAStrangerThatSaysNothingKeepsNoMemberWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := newPipes(), time.Now()
		n := newLinkedNodeAgent(t, t.TempDir(), p.endpoint())
		known, never := make(chan struct{}), make(chan struct{})
		close(known)
		for range 5 {
			p.connect(never)
		}
		n.served(speak(t, p.connect(known), "i1"))
		if waited := time.Since(began); waited > 0 {
			t.Errorf("the member waited for %v", waited)
		}
		if err := n.server.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAnEarlierConnectionThatShowsWhoseItIsLaterTakesNoPlace(t *testing.T) {
	p := newPipes()
	n := newLinkedNodeAgent(t, t.TempDir(), p.endpoint())
	known, later := make(chan struct{}), make(chan struct{})
	close(known)
	early := p.connect(later)
	own := speak(t, p.connect(known), "i1")
	n.served(own)
	close(later)
	if _, err := early.Read(make([]byte, 1)); err == nil {
		t.Error("the earlier connection is served")
	}
	own.send(member.FromMember{Ready: &member.Ready{At: time.Now()}})
	n.until("the member is heard", func() bool { return n.ready == 1 })
	if n.ended != 0 {
		t.Error("the later connection was ended for the earlier one")
	}
}

func TestALinkThatFailsToAcceptIsTriedAgain(t *testing.T) {
	p := newPipes()
	n := newLinkedNodeAgent(t, t.TempDir(), p.endpoint())
	known := make(chan struct{})
	close(known)
	p.fail <- errors.New("too many open files")
	n.served(speak(t, p.connect(known), "i1"))
}

func TestAnInvalidLinkEndsTheMemberAgentWithTheReason(t *testing.T) {
	cfg := member.Config{File: memberconfig.File{Link: &memberconfig.Link{Kind: "smoke"}}}
	if err := member.Run(t.Context(), cfg); err == nil {
		t.Error("want an error")
	}
}
