package rmcpplus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Console is a machine's serial console over a session of its own (section 15, Serial over LAN). It must be closed. Read and Write may be
// used at once.
type Console struct {
	s        *Session
	sendSize int
	output   *io.PipeReader
	ended    chan struct{} // the receiver has ended

	mu       sync.Mutex // guards everything below, and sending
	acked    chan int   // how many bytes of the packet that waits were accepted
	waiting  byte       // its sequence number, 0: none
	sequence byte       // of the last packet sent, 1 to 15
	heard    byte       // of the last packet received
	writing  sync.Mutex
}

// Serial over LAN, table 15-2 and sections 24.1 and 24.2.
const (
	activatePayload   = 0x48
	deactivatePayload = 0x49
	solHeaderBytes    = 4
	solNACK           = 0x40
	alreadyActive     = 0x80

	solWait  = 500 * time.Millisecond
	solTries = 10
	// keepAlive is well below the minute after which a BMC forgets a session (section 6.12.15).
	keepAlive = 20 * time.Second
)

// ErrConsoleTaken: another session has the machine's console.
var ErrConsoleTaken = errors.New("the console is in use; it accepts one session at a time")

// OpenConsole turns the session into a console. The session must not be used any more; it is closed with the console, or on an error.
func (s *Session) OpenConsole(ctx context.Context) (*Console, error) {
	const encrypted, authenticated = 0x80, 0x40
	answer, err := s.Command(ctx, 0x06, activatePayload, payloadSOL, 1, encrypted|authenticated, 0, 0, 0)
	var failed *Completion
	if errors.As(err, &failed) && failed.Code == alreadyActive {
		err = ErrConsoleTaken
	}
	if err == nil && len(answer) < 10 {
		err = fmt.Errorf("the BMC's answer has %d bytes instead of 12", len(answer))
	}
	if err != nil {
		_ = s.Close(ctx)
		return nil, fmt.Errorf("open the serial console: %w", err)
	}
	// Bytes 5 and 6: the largest payload that the BMC takes.
	size := min(int(answer[4])|int(answer[5])<<8, 255) - solHeaderBytes
	reader, writer := io.Pipe()
	c := &Console{s: s, sendSize: max(size, 1), output: reader, ended: make(chan struct{}), acked: make(chan int, 1)}
	if err := s.conn.SetReadDeadline(time.Time{}); err != nil {
		_ = s.Close(ctx)
		return nil, err
	}
	go c.receive(writer)
	go c.keepAlive()
	return c, nil
}

// Read reads what the machine printed.
func (c *Console) Read(p []byte) (int, error) { return c.output.Read(p) }

// Write types. It returns when the BMC has taken all of it.
func (c *Console) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	written := 0
	for refused := 0; written < len(p); {
		n, err := c.send(p[written:min(written+c.sendSize, len(p))])
		written += n
		if err != nil {
			return written, err
		}
		if n > 0 {
			refused = 0
			continue
		}
		if refused++; refused >= solTries {
			return written, errors.New("the BMC accepts no more characters: does the machine read its console?")
		}
		if err := c.pause(solWait); err != nil {
			return written, err
		}
	}
	return written, nil
}

func (c *Console) pause(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.ended:
		return net.ErrClosed
	}
}

// send sends one packet until it is acknowledged, and tells how many bytes were taken.
func (c *Console) send(data []byte) (int, error) {
	c.mu.Lock()
	c.sequence = c.sequence%15 + 1
	c.waiting = c.sequence
	select {
	case <-c.acked: // of an earlier packet
	default:
	}
	payload := append([]byte{c.sequence, 0, 0, 0}, data...)
	c.mu.Unlock()
	for range solTries {
		if err := c.transmit(payload); err != nil {
			return 0, err
		}
		timer := time.NewTimer(solWait)
		select {
		case n := <-c.acked:
			timer.Stop()
			return min(n, len(data)), nil
		case <-c.ended:
			timer.Stop()
			return 0, net.ErrClosed
		case <-timer.C:
		}
	}
	return 0, ErrNoAnswer
}

func (c *Console) transmit(payload []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err := c.s.conn.Write(c.s.seal(payloadSOL, payload))
	return err
}

// receive takes what comes until the socket is closed.
func (c *Console) receive(output *io.PipeWriter) {
	defer close(c.ended)
	var buffer [2048]byte
	for {
		n, err := c.s.conn.Read(buffer[:])
		if err != nil {
			_ = output.CloseWithError(io.EOF)
			return
		}
		kind, payload, ok := c.s.open(buffer[:n])
		if !ok || kind != payloadSOL || len(payload) < solHeaderBytes {
			continue
		}
		data := bytes.Clone(payload[solHeaderBytes:])
		if !c.judge(payload, len(data)) || len(data) == 0 {
			continue
		}
		if _, err := output.Write(data); err != nil {
			return
		}
	}
}

// judge takes a packet's acknowledgement, acknowledges its data, and tells whether they are new.
func (c *Console) judge(payload []byte, size int) (isNew bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if acked := payload[1] & 0x0f; acked != 0 && acked == c.waiting {
		accepted := int(payload[2])
		if payload[3]&solNACK != 0 && accepted >= 255 {
			accepted = 0
		}
		c.waiting = 0
		c.acked <- accepted // has room: there is one packet at a time
	}
	sequence := payload[0] & 0x0f
	if sequence == 0 {
		return false
	}
	isNew = sequence != c.heard
	c.heard = sequence
	_, _ = c.s.conn.Write(c.s.seal(payloadSOL, []byte{0, sequence, byte(size), 0})) // sent again if it is lost: the BMC repeats
	return isNew
}

// keepAlive asks for the device's ID now and then; the answer is skipped.
func (c *Console) keepAlive() {
	ticker := time.NewTicker(keepAlive)
	defer ticker.Stop()
	for {
		select {
		case <-c.ended:
			return
		case <-ticker.C:
			c.mu.Lock()
			c.s.message = (c.s.message + 1) & 0x3F
			_, _ = c.s.conn.Write(c.s.seal(payloadIPMI, ipmiMessage(0x06, c.s.message, 0x01, nil)))
			c.mu.Unlock()
		}
	}
}

// Close gives the console back and ends the session.
func (c *Console) Close() error {
	_ = c.output.Close()
	_ = c.s.conn.SetReadDeadline(time.Unix(1, 0)) // ends the receiver; the session is for this goroutine again
	<-c.ended
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err := c.s.Command(ctx, 0x06, deactivatePayload, payloadSOL, 1, 0, 0, 0, 0)
	return errors.Join(err, c.s.Close(ctx))
}
