// Package memberlinktest is the suite that every kind of link passes, and an authority that certifies members and nodes for tests.
//
// It tests what package member relies on: a stream both ways, a name for who is at the other end, and ends that end. It must never look
// inside a link. Start reading at Run.
package memberlinktest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/member/memberlink"
)

// Member is the assignment ID of the member in the suite.
const Member = "u1.c1-0.1"

// patience is how long the suite waits for what comes at once.
const patience = 30 * time.Second

// Harness makes the two ends of links of one kind.
type Harness struct {
	// Listen makes the node agent's end for Member. It is called again, for the same place, when a node agent restarts.
	Listen func(t *testing.T) memberlink.Endpoint
	// Dialer returns Member's end.
	Dialer func(t *testing.T) memberlink.Dialer
}

// Run runs the suite. newHarness is called for each test.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	for _, tt := range []struct {
		name string
		test func(t *testing.T, h Harness)
	}{
		{"a member is known by its link, and both ends hear each other", speaks},
		{"much goes through, in both directions at once", carriesMuch},
		{"a reading ends when the other end closes", hangsUp},
		{"a reading ends at its deadline, and when its own end closes", deadlines},
		{"a node agent that was restarted is reached at the same place", listensAgain},
		{"where nobody listens, dialing fails", nobodyListens},
		{"a context that has ended ends dialing", cancelled},
		{"closing ends accepting", closes},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, newHarness(t)) })
	}
}

// Pair connects the two ends and returns them, the member's being known as Member.
func Pair(t *testing.T, endpoint memberlink.Endpoint, dialer memberlink.Dialer) (node, member net.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	dialed := make(chan error, 1)
	go func() {
		var err error
		member, err = dialer.Dial(ctx)
		dialed <- err
	}()
	node, name, err := Accept(ctx, endpoint)
	if err != nil || name != Member {
		t.Fatalf("the member is taken for %q, %v; want %q", name, err, Member)
	}
	if err := <-dialed; err != nil {
		t.Fatal(err)
	}
	for _, conn := range []net.Conn{node, member} {
		t.Cleanup(func() { _ = conn.Close() })
		must(t, conn.SetDeadline(time.Now().Add(patience)))
	}
	return node, member
}

// Accept takes the next connection and asks who it is.
func Accept(ctx context.Context, endpoint memberlink.Endpoint) (net.Conn, string, error) {
	conn, err := endpoint.Accept()
	if err != nil {
		return nil, "", err
	}
	name, err := endpoint.Member(ctx, conn)
	return conn, name, err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listen makes the node agent's end for as long as the test lasts.
func listen(t *testing.T, h Harness) memberlink.Endpoint {
	t.Helper()
	endpoint := h.Listen(t)
	t.Cleanup(func() { _ = endpoint.Close() })
	return endpoint
}

// hears fails unless what one end writes is read at the other.
func hears(t *testing.T, to, from net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(from, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(to, got); err != nil || string(got) != text {
		t.Fatalf("heard %q, %v; want %q", got, err, text)
	}
}

func speaks(t *testing.T, h Harness) {
	node, member := Pair(t, listen(t, h), h.Dialer(t))
	hears(t, node, member, "ready\n")
	hears(t, member, node, "jobs\n")
	if node.RemoteAddr() == nil || node.RemoteAddr().Network() == "" {
		t.Error("the peer has no address for the log")
	}
}

func carriesMuch(t *testing.T, h Harness) {
	node, member := Pair(t, listen(t, h), h.Dialer(t))
	const size = 4 << 20
	there, back := bytes.Repeat([]byte("there"), size/5), bytes.Repeat([]byte("back"), size/4)
	failed := make(chan error, 4)
	send := func(to net.Conn, data []byte) {
		_, err := to.Write(data)
		failed <- err
	}
	receive := func(from net.Conn, want []byte) {
		got := make([]byte, len(want))
		_, err := io.ReadFull(from, got)
		if err == nil && !bytes.Equal(got, want) {
			err = errors.New("what was read is not what was written")
		}
		failed <- err
	}
	go send(node, there)
	go send(member, back)
	go receive(node, back)
	go receive(member, there)
	for range 4 {
		must(t, <-failed)
	}
}

func hangsUp(t *testing.T, h Harness) {
	endpoint := listen(t, h)
	for _, nodeEnds := range []bool{true, false} {
		ends, stays := Pair(t, endpoint, h.Dialer(t))
		if !nodeEnds {
			ends, stays = stays, ends
		}
		hears(t, ends, stays, "x")
		must(t, ends.Close())
		if _, err := stays.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the node agent ended it: %t; the other end read %v", nodeEnds, err)
		}
	}
}

func deadlines(t *testing.T, h Harness) {
	node, member := Pair(t, listen(t, h), h.Dialer(t))
	for _, conn := range []net.Conn{node, member} {
		must(t, conn.SetReadDeadline(time.Unix(1, 0)))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("past the deadline: got %v", err)
		}
	}
	must(t, member.SetReadDeadline(time.Now().Add(patience)))
	read := make(chan error, 1)
	go func() {
		_, err := member.Read(make([]byte, 1))
		read <- err
	}()
	must(t, member.Close())
	if err := <-read; err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a reading on a closed connection: got %v", err)
	}
}

func listensAgain(t *testing.T, h Harness) {
	dialer := h.Dialer(t)
	for range 3 {
		endpoint := h.Listen(t)
		node, member := Pair(t, endpoint, dialer)
		hears(t, node, member, "hello")
		must(t, errors.Join(node.Close(), endpoint.Close()))
	}
}

func nobodyListens(t *testing.T, h Harness) {
	must(t, h.Listen(t).Close())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if conn, err := h.Dialer(t).Dial(ctx); err == nil {
		_ = conn.Close()
		t.Error("want an error")
	}
}

func cancelled(t *testing.T, h Harness) {
	listen(t, h)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if conn, err := h.Dialer(t).Dial(ctx); err == nil {
		_ = conn.Close()
		t.Error("want an error")
	}
}

func closes(t *testing.T, h Harness) {
	endpoint := h.Listen(t)
	accepted := make(chan error, 1)
	go func() {
		_, err := endpoint.Accept()
		accepted <- err
	}()
	must(t, endpoint.Close())
	if err := <-accepted; err == nil {
		t.Error("want an error")
	}
}
