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
)

// Path is where a server takes agent streams.
const Path = "/agent/v1/stream"

// maxMessageBytes bounds one message: a node with a thousand members, all their files included, stays well below.
const maxMessageBytes = 64 << 20

// conn sends and receives JSON lines. Send may be called from several goroutines, receive from one.
type conn struct {
	mu    sync.Mutex
	out   io.Writer
	flush func()
	in    *bufio.Reader
	close func()
}

func (c *conn) send(message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a stream message: %w", err)
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
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		if len(line) > maxMessageBytes {
			return fmt.Errorf("a stream message is longer than %d bytes", maxMessageBytes)
		}
	}
	return json.Unmarshal(line, message)
}

// ServerConn is the server's end of a stream.
type ServerConn struct {
	conn
	control *http.ResponseController
	// Node is the only node that the agent may speak for; empty: any.
	Node string
}

// Abort ends the stream, and with it a Send that an agent holds up by not reading. Send must not be called afterwards.
func (c *ServerConn) Abort() {
	_ = c.control.SetWriteDeadline(time.Unix(1, 0)) // fails only on a connection that is gone
}

// Send sends a message down. It blocks while the agent does not read, until Abort.
func (c *ServerConn) Send(m Down) error { return c.send(m) }

// Receive waits for a message from the agent.
func (c *ServerConn) Receive() (Up, error) {
	var m Up
	err := c.receive(&m)
	return m, err
}

type nodeKey struct{}

// ForNode marks a request as one whose bearer may speak for this node only.
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
		node, _ := r.Context().Value(nodeKey{}).(string)
		serve(r.Context(), &ServerConn{control: control, Node: node, conn: conn{
			out: w, in: bufio.NewReaderSize(r.Body, 64<<10), flush: func() { _ = control.Flush() },
		}})
	})
}

// ClientConn is the agent's end of a stream.
type ClientConn struct {
	conn
	reads *countingReader
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
func (c *ClientConn) Send(m Up) error { return c.send(m) }

// Receive waits for a message from the server.
func (c *ClientConn) Receive() (Down, error) {
	var m Down
	err := c.receive(&m)
	return m, err
}

// Close ends the stream.
func (c *ClientConn) Close() { c.close() }

// Dial opens a stream to a server ("https://HOST:PORT"); the stream ends with ctx. The client must speak HTTP/2.
func Dial(ctx context.Context, client *http.Client, server, bearer string) (*ClientConn, error) {
	ctx, cancel := context.WithCancel(ctx)
	reader, writer := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(server, "/")+Path, reader)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("server address %q: %w", server, err)
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
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
		return nil, fmt.Errorf("the server at %s refused this agent: %s: %s", server, resp.Status, strings.TrimSpace(string(text)))
	}
	reads := &countingReader{Reader: resp.Body}
	return &ClientConn{reads: reads, conn: conn{
		out: writer, in: bufio.NewReaderSize(reads, 64<<10),
		close: func() {
			_ = writer.CloseWithError(io.ErrClosedPipe)
			cancel()
			_ = resp.Body.Close()
		},
	}}, nil
}
