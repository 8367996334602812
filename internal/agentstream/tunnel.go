package agentstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// TunnelPath begins the path at which a server accepts tunnels. The tunnel's ID follows.
const TunnelPath = "/agent/v1/tunnel/"

// The headers of a tunnel's request: why the agent can't connect it, and whether that is because somebody else uses it, or for good. A request that
// tells of a failure carries no tunnel.
const (
	headerFailure = "Nearmetal-Failure"
	headerInUse   = "Nearmetal-In-Use"
	headerOver    = "Nearmetal-Over"
)

// ErrInUse reports that another user has a resource that only one user may have at a time.
var ErrInUse = errors.New("it is in use")

// maxFailure bounds what a failure may say, in bytes.
const maxFailure = 1000

// TunnelRequest is the message with which an agent brings a tunnel.
type TunnelRequest struct {
	// ID is the ID of the requested tunnel (Tunnel.ID). Node is the node of the agent that brings it, by the connection's certificate.
	ID, Node string
	// Failure is the reason why there will be no tunnel. It is empty if there is one.
	Failure string
	// InUse: the failure is that somebody else uses it.
	InUse bool
	// Over: the failure is for good.
	Over bool
}

// Err returns the failure as an error, or nil. The error is an ErrInUse or an ErrOver if that is the reason.
func (r TunnelRequest) Err() error {
	switch {
	case r.Failure == "":
		return nil
	case r.InUse:
		return &inUseError{r.Failure}
	case r.Over:
		return &refusedError{r.Failure, true}
	}
	return errors.New(r.Failure)
}

type inUseError struct{ text string }

func (e *inUseError) Error() string        { return e.text }
func (e *inUseError) Is(target error) bool { return target == ErrInUse }

// frameLimit is the most bytes of one frame.
const frameLimit = 32 << 10

// TunnelConn is one end of a tunnel: bytes in order both ways, each of which can be closed for itself.
//
// Each way is a sequence of frames, a length in 4 bytes (big endian) and as many bytes; an empty frame ends it. HTTP/2 can't close
// a response before its request, and what breaks off must not be taken for what has ended. Flow control is that of HTTP/2: Write
// blocks while the other end does not read.
type TunnelConn struct {
	in    io.Reader
	out   io.Writer
	flush func() error
	// abort makes a Read and a Write that wait return; finish ends a tunnel of which both ways were closed.
	abort, finish func()

	closed chan struct{}
	once   sync.Once

	reading sync.Mutex
	left    uint32 // bytes of the present frame not read yet
	ended   bool   // the other end has closed its way

	writing sync.Mutex
	frame   []byte
	shut    bool // CloseWrite was called
}

func newTunnelConn(in io.Reader, out io.Writer, flush func() error, abort, finish func()) *TunnelConn {
	return &TunnelConn{
		in: in, out: out, flush: flush, abort: abort, finish: finish, closed: make(chan struct{}), frame: make([]byte, 4+frameLimit),
	}
}

// Read reads what the other end wrote; io.EOF when it has closed its way, another error when the tunnel broke off.
func (c *TunnelConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if err := c.gone(); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if c.left == 0 && !c.ended {
		var length [4]byte
		if _, err := io.ReadFull(c.in, length[:]); err != nil {
			return 0, broken(err)
		}
		c.left = binary.BigEndian.Uint32(length[:])
		c.ended = c.left == 0
		if c.left > frameLimit {
			return 0, fmt.Errorf("a tunnel frame has %d bytes; at most %d are allowed", c.left, frameLimit)
		}
	}
	if c.ended {
		return 0, io.EOF
	}
	n, err := c.in.Read(p[:min(len(p), int(c.left))])
	c.left -= uint32(n)
	if n > 0 {
		return n, nil
	}
	return 0, broken(err)
}

// broken is the error of a tunnel that broke off, which is never io.EOF.
func broken(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Write sends p.
func (c *TunnelConn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	sent := 0
	for len(p) > 0 {
		n := copy(c.frame[4:], p)
		if err := c.send(n); err != nil {
			return sent, err
		}
		sent += n
		p = p[n:]
	}
	return sent, nil
}

// CloseWrite ends this end's data.
func (c *TunnelConn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.shut {
		return nil
	}
	err := c.send(0)
	c.shut = true
	return err
}

// send sends the first n bytes of the frame; writing is held.
func (c *TunnelConn) send(n int) error {
	if c.shut {
		return net.ErrClosed
	}
	if err := c.gone(); err != nil {
		return err
	}
	binary.BigEndian.PutUint32(c.frame, uint32(n))
	if _, err := c.out.Write(c.frame[:4+n]); err != nil {
		return err
	}
	return c.flush()
}

func (c *TunnelConn) gone() error {
	select {
	case <-c.closed:
		return net.ErrClosed
	default:
		return nil
	}
}

// Close ends the tunnel both ways. When both were closed before, all that was written arrives; else it breaks off.
func (c *TunnelConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		if c.over() {
			c.finish()
		} else {
			c.abort()
		}
		// Whoever waits in a Read or a Write has come back, and nobody goes there any more.
		c.reading.Lock()
		defer c.reading.Unlock()
		c.writing.Lock()
		defer c.writing.Unlock()
	})
	return nil
}

// over reports whether both ways were closed. A lock that is taken means that one is in use.
func (c *TunnelConn) over() bool {
	if !c.reading.TryLock() {
		return false
	}
	defer c.reading.Unlock()
	if !c.writing.TryLock() {
		return false
	}
	defer c.writing.Unlock()
	return c.ended && c.shut
}

// TunnelHandler serves the tunnels that agents bring, at TunnelPath. take is called for each: with nil for one that tells of a failure. It
// returns an error to refuse it; else the tunnel is in the hands of whoever take gave it to, until its Close or the request's end.
func TunnelHandler(take func(request TunnelRequest, c *TunnelConn) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request := TunnelRequest{
			ID: strings.TrimPrefix(r.URL.Path, TunnelPath), Node: nodeOf(r), Failure: r.Header.Get(headerFailure),
			InUse: r.Header.Get(headerInUse) != "", Over: r.Header.Get(headerOver) != "",
		}
		if request.Failure != "" {
			request.Failure = request.Failure[:min(len(request.Failure), maxFailure)]
			if err := take(request, nil); err != nil {
				http.Error(w, err.Error(), http.StatusNotFound)
			}
			return
		}
		serveTunnel(w, r, func(c *TunnelConn) error { return take(request, c) })
	})
}

// serveTunnel makes a request a tunnel for whoever take gives it to.
func serveTunnel(w http.ResponseWriter, r *http.Request, take func(*TunnelConn) error) {
	if r.ProtoMajor < 2 {
		http.Error(w, "tunnels need HTTP/2", http.StatusHTTPVersionNotSupported)
		return
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // those that bound ordinary requests
	_ = control.SetWriteDeadline(time.Time{})
	c := newTunnelConn(r.Body, w, control.Flush, func() {
		past := time.Unix(1, 0)
		_ = control.SetReadDeadline(past)
		_ = control.SetWriteDeadline(past)
	}, func() {})
	if err := begin(w, control, c, func() error { return take(c) }); err != nil {
		return
	}
	select {
	case <-c.closed:
	case <-r.Context().Done():
	}
	_ = c.Close() // nobody may read or write once the handler has returned
}

// begin hands a tunnel over and answers the request, before whoever has it can write.
func begin(w http.ResponseWriter, control *http.ResponseController, c *TunnelConn, take func() error) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := take(); err != nil {
		status := http.StatusNotFound
		if errors.Is(err, ErrOver) {
			status = http.StatusGone
		}
		http.Error(w, err.Error(), status)
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	_ = control.Flush() // a connection that is gone ends the request's context
	return nil
}

// BringTunnel brings a tunnel to the server that asked for it. It ends with ctx. The client must speak HTTP/2.
func BringTunnel(ctx context.Context, client *http.Client, server string, request TunnelRequest) (*TunnelConn, error) {
	return dialTunnel(ctx, func(ctx context.Context, body io.Reader) (*http.Response, error) {
		return sendTunnel(ctx, client, server, TunnelPath+request.ID, nil, body)
	})
}

// dialTunnel makes a tunnel of the request that send makes. It ends with ctx.
func dialTunnel(ctx context.Context, send func(context.Context, io.Reader) (*http.Response, error)) (*TunnelConn, error) {
	ctx, cancel := context.WithCancel(ctx)
	reader, writer := io.Pipe()
	resp, err := send(ctx, reader)
	if err != nil {
		_ = writer.CloseWithError(io.ErrClosedPipe)
		cancel()
		return nil, err
	}
	abort := func() {
		_ = writer.CloseWithError(io.ErrClosedPipe)
		cancel()
		_ = resp.Body.Close()
	}
	finish := func() {
		_ = writer.Close()
		// What was written last may still be on its way; the server ends the response when it has it.
		go func() {
			defer abort()
			timer := time.AfterFunc(finishTime, cancel)
			defer timer.Stop()
			_, _ = io.Copy(io.Discard, resp.Body)
		}()
	}
	return newTunnelConn(resp.Body, writer, func() error { return nil }, abort, finish), nil
}

// finishTime bounds how long a tunnel that has ended both ways waits for the server to end it, too.
const finishTime = 10 * time.Second

// RefuseTunnel reports to the server why there will be no tunnel.
func RefuseTunnel(ctx context.Context, client *http.Client, server string, request TunnelRequest) error {
	request.Failure = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' ' // a header's value is one printable line (RFC 9110, section 5.5)
		}
		return r
	}, request.Failure[:min(len(request.Failure), maxFailure)])
	headers := http.Header{}
	headers.Set(headerFailure, request.Failure)
	if request.InUse {
		headers.Set(headerInUse, "1")
	}
	if request.Over {
		headers.Set(headerOver, "1")
	}
	resp, err := sendTunnel(ctx, client, server, TunnelPath+request.ID, headers, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

func sendTunnel(ctx context.Context, client *http.Client, server, path string, headers http.Header, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(server, "/")+path, body)
	if err != nil {
		return nil, fmt.Errorf("server address %q: %w", server, err)
	}
	maps.Copy(req.Header, headers)
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("connect a tunnel to the server at %s: %w", server, err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		_ = resp.Body.Close()
		return nil, &refusedError{fmt.Sprintf("the server at %s refused a tunnel: %s: %s", server, resp.Status, strings.TrimSpace(string(text))), resp.StatusCode == http.StatusGone}
	}
	return resp, nil
}

// refusedError is a server's refusal of a tunnel; over: for good.
type refusedError struct {
	text string
	over bool
}

func (e *refusedError) Error() string        { return e.text }
func (e *refusedError) Is(target error) bool { return e.over && target == ErrOver }
