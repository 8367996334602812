package agentstream

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Path is the path at which a server accepts agent streams. Version 1 sent each state in one message, version 2 every
// file of each member, version 3 peers and files of a cluster in one share, and version 4 neither members with their peers nor security groups.
const Path = "/agent/v5/stream"

// maxMessageBytes bounds one message. An element of a state is at most what one commit stores (store.MaxBytes), and a piece holds more
// than one only up to pieceBytes, so that no message comes near it.
const maxMessageBytes = 4 << 20

// conn sends and receives JSON lines. Send may be called from several goroutines, receive from one.
type conn struct {
	mu    sync.Mutex
	out   io.Writer
	flush func()
	in    *bufio.Reader
	close func()
}

func (c *conn) send(message any) error {
	line, err := encode(message)
	if err != nil {
		return err
	}
	if len(line) >= maxMessageBytes {
		return fmt.Errorf("a stream message has %d bytes; at most %d are allowed", len(line), maxMessageBytes)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.out.Write(append(line, '\n')); err != nil {
		return err
	}
	if c.flush != nil {
		c.flush()
	}
	return nil
}

func (c *conn) receive(message any) error {
	var line []byte
	for {
		part, err := c.in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxMessageBytes {
			return fmt.Errorf("a stream message is longer than %d bytes", maxMessageBytes)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
	return json.Unmarshal(line, message)
}

// ServerConn is the server's end of a stream.
type ServerConn struct {
	conn
	control *http.ResponseController
	// Node is the node that the agent may speak for.
	Node string

	desired  outgoing[desiredParts]
	names    contentNames
	observed *incoming[Observed]
}

// Abort ends the stream, and with it a Send that an agent holds up by not reading. Send must not be called afterwards.
func (c *ServerConn) Abort() {
	_ = c.control.SetWriteDeadline(time.Unix(1, 0)) // fails only on a connection that is gone
}

// Send sends a message down. It blocks while the agent does not read, until Abort.
func (c *ServerConn) Send(m Down) error {
	if m.Desired != nil {
		return c.SendDesired(m.Desired, nil)
	}
	return c.send(m)
}

// SendDesired sends what of a desired state differs from the one sent before, in pieces, and calls between after each, unless it is nil.
// The state must not change afterwards. Only one goroutine may send states.
func (c *ServerConn) SendDesired(d *Desired, between func() error) error {
	parts, names := apart(d, c.names)
	c.names = names
	head := desiredHead{Term: d.Term, Revision: d.Revision, ImageKey: d.ImageKey, PowerOff: d.PowerOff, Probes: d.Probes}
	return c.desired.send(parts, head, func(p piece) error {
		return interleave(c.send(Down{Piece: &p}), between)
	})
}

// interleave calls between once a piece was sent.
func interleave(err error, between func() error) error {
	if err != nil || between == nil {
		return err
	}
	return between()
}

// Receive waits for a message from the agent. An observation is returned once it is whole.
func (c *ServerConn) Receive() (Up, error) {
	for {
		var m Up
		if err := c.receive(&m); err != nil {
			return m, err
		}
		if m.Piece == nil {
			return m, nil
		}
		if err := c.observed.take(*m.Piece); err != nil {
			return m, err
		}
		if m.Piece.Head == nil {
			continue
		}
		observed, err := observedWhole(c.observed.whole(), m.Piece.Head)
		return Up{Observed: observed}, err
	}
}

type nodeKey struct{}

// nodeOf is the node that a request speaks for.
func nodeOf(r *http.Request) string {
	node, _ := r.Context().Value(nodeKey{}).(string)
	return node
}

// ForNode marks a request as that of a node's agent.
func ForNode(ctx context.Context, node string) context.Context {
	return context.WithValue(ctx, nodeKey{}, node)
}

// Handler serves the streams of agents: serve is called for each and the stream ends when it returns.
func Handler(serve func(ctx context.Context, c *ServerConn)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		// Over HTTP/1.1 a server reads the whole body before it answers, and both sides would wait for each other.
		if r.ProtoMajor < 2 {
			http.Error(w, "agent streams need HTTP/2", http.StatusHTTPVersionNotSupported)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		w.WriteHeader(http.StatusOK)
		_ = control.Flush()
		serve(r.Context(), &ServerConn{
			control: control, Node: nodeOf(r), conn: conn{
				out: w, in: bufio.NewReaderSize(r.Body, 64<<10), flush: func() { _ = control.Flush() },
			},
			desired: outgoing[desiredParts]{lists: desiredLists()}, observed: newIncoming(observedLists()),
		})
	})
}

// ClientConn is the agent's end of a stream.
type ClientConn struct {
	conn
	reads *countingReader

	desired  *incoming[desiredParts]
	observed outgoing[Observed]
}

// Reads counts how often bytes came from the server. It grows while a long message arrives, before Receive returns it.
func (c *ClientConn) Reads() int64 { return c.reads.count.Load() }

// countingReader counts the reads that brought something.
type countingReader struct {
	io.Reader
	count atomic.Int64
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.count.Add(1)
	}
	return n, err
}

// Send sends a message up.
func (c *ClientConn) Send(m Up) error {
	if m.Observed != nil {
		return c.SendObserved(m.Observed, nil)
	}
	return c.send(m)
}

// SendObserved sends what of an observation differs from the one sent before, in pieces, and calls between after each, unless it is nil.
// The observation must not change afterwards. Only one goroutine may send observations.
func (c *ClientConn) SendObserved(o *Observed, between func() error) error {
	head := observedHead{Term: o.Term, PeerURL: o.PeerURL, PowerOffProblem: o.PowerOffProblem, DataPaths: o.DataPaths, CacheRoom: o.CacheRoom}
	return c.observed.send(*o, head, func(p piece) error {
		return interleave(c.send(Up{Piece: &p}), between)
	})
}

// Receive waits for a message from the server. A desired state is returned once it is whole, and without shares (Desired.Whole).
func (c *ClientConn) Receive() (Down, error) {
	for {
		var m Down
		if err := c.receive(&m); err != nil {
			return m, err
		}
		if m.Piece == nil {
			return m, nil
		}
		if err := c.desired.take(*m.Piece); err != nil {
			return m, err
		}
		if m.Piece.Head == nil {
			continue
		}
		desired, err := together(c.desired.whole(), m.Piece.Head)
		return Down{Desired: desired}, err
	}
}

// Close ends the stream.
func (c *ClientConn) Close() { c.close() }

// Refusal is the error of a server that does not take this agent. Trying again changes nothing until somebody has acted. Code is that of the
// problem (api.Problem), empty for what is refused later, on the stream.
type Refusal struct{ Reason, Code string }

func (r *Refusal) Error() string { return "the server refuses this node: " + r.Reason }

// RefusalOf reads what a server answers instead of a stream.
func RefusalOf(status string, text []byte) *Refusal {
	var problem api.Problem
	if json.Unmarshal(text, &problem) == nil && problem.Detail != "" {
		return &Refusal{Reason: problem.Detail, Code: problem.Code}
	}
	return &Refusal{Reason: fmt.Sprintf("%s: %s", status, strings.TrimSpace(string(text)))}
}

// Dial opens a stream to a server ("https://HOST:PORT"); the stream ends with ctx. The client must speak HTTP/2.
func Dial(ctx context.Context, client *http.Client, server string) (*ClientConn, error) {
	ctx, cancel := context.WithCancel(ctx)
	reader, writer := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(server, "/")+Path, reader)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("server address %q: %w", server, err)
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	resp, err := client.Do(req)
	if err != nil {
		_ = writer.CloseWithError(err)
		cancel()
		return nil, fmt.Errorf("connect to the server at %s: %w", server, err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		_ = resp.Body.Close()
		_ = writer.CloseWithError(io.ErrClosedPipe) // else the transport goes on waiting for the request's body
		cancel()
		refusal := RefusalOf(resp.Status, text)
		if resp.StatusCode >= http.StatusInternalServerError {
			return nil, fmt.Errorf("the server at %s can't accept this agent now: %s", server, refusal.Reason)
		}
		return nil, fmt.Errorf("the server at %s: %w", server, refusal)
	}
	reads := &countingReader{Reader: resp.Body}
	return &ClientConn{
		reads: reads, conn: conn{
			out: writer, in: bufio.NewReaderSize(reads, 64<<10),
			close: func() {
				_ = writer.CloseWithError(io.ErrClosedPipe)
				cancel()
				_ = resp.Body.Close()
			},
		},
		desired: newIncoming(desiredLists()), observed: outgoing[Observed]{lists: observedLists()},
	}, nil
}
