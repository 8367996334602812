package study

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/url"
	"time"
)

// Requests and answers of XRootD, as far as a reader of one file needs them (The XRootD Protocol, version 5.1, sections 2.3, 3.12, 3.13 and 3.22).
const (
	xrdLogin    = 3007
	xrdOpen     = 3010
	xrdRead     = 3013
	xrdOK       = 0
	xrdSoFar    = 4000
	xrdAttn     = 4001
	xrdError    = 4003
	xrdWait     = 4005
	xrdWaitResp = 4006
	xrdOpenRead = 0x0010
)

// xrdReader reads a file of an XRootD server, one request after the other over one connection, like a program that waits for what it asks for.
type xrdReader struct {
	conn   net.Conn
	handle [4]byte
}

// openXRootD opens a file: it connects, shakes hands, logs in and opens, which is a round trip each.
func openXRootD(text string) (*xrdReader, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	conn, err := net.DialTimeout("tcp", u.Host, 20*time.Second)
	if err != nil {
		return nil, err
	}
	r := &xrdReader{conn: conn}
	if err := r.open(u.Path); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return r, nil
}

func (r *xrdReader) open(path string) error {
	hello := make([]byte, 20)
	binary.BigEndian.PutUint32(hello[12:], 4)
	binary.BigEndian.PutUint32(hello[16:], 2012)
	if _, err := r.conn.Write(hello); err != nil {
		return err
	}
	if _, err := r.answer(nil); err != nil {
		return fmt.Errorf("shaking hands: %w", err)
	}
	login := make([]byte, 16)
	copy(login[4:12], "reader")
	if _, err := r.ask(xrdLogin, login, nil, nil); err != nil {
		return fmt.Errorf("logging in: %w", err)
	}
	open := make([]byte, 16)
	binary.BigEndian.PutUint16(open[2:], xrdOpenRead)
	handle := make([]byte, 4)
	if _, err := r.ask(xrdOpen, open, []byte(path), handle); err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}
	copy(r.handle[:], handle)
	return nil
}

// ask sends a request and takes its answer.
func (r *xrdReader) ask(request uint16, body, data, into []byte) (int, error) {
	message := make([]byte, 24, 24+len(data))
	message[1] = 1
	binary.BigEndian.PutUint16(message[2:], request)
	copy(message[4:20], body)
	binary.BigEndian.PutUint32(message[20:], uint32(len(data)))
	if _, err := r.conn.Write(append(message, data...)); err != nil {
		return 0, err
	}
	return r.answer(into)
}

// answer reads an answer in all its parts into a buffer, and drops what does not fit.
func (r *xrdReader) answer(into []byte) (n int, err error) {
	for {
		head := make([]byte, 8)
		if _, err := io.ReadFull(r.conn, head); err != nil {
			return n, err
		}
		status, length := binary.BigEndian.Uint16(head[2:]), int64(binary.BigEndian.Uint32(head[4:]))
		if status == xrdAttn { // it holds an answer that was announced: two words, and a head
			if _, err := io.CopyN(io.Discard, r.conn, 8); err != nil {
				return n, err
			}
			if _, err := io.ReadFull(r.conn, head); err != nil {
				return n, err
			}
			status, length = binary.BigEndian.Uint16(head[2:]), int64(binary.BigEndian.Uint32(head[4:]))
		}
		if status == xrdOK || status == xrdSoFar {
			part := min(length, int64(len(into)-n))
			if _, err := io.ReadFull(r.conn, into[n:int64(n)+part]); err != nil {
				return n, err
			}
			n += int(part)
			if _, err := io.CopyN(io.Discard, r.conn, length-part); err != nil {
				return n, err
			}
			if status == xrdOK {
				return n, nil
			}
			continue
		}
		rest := make([]byte, length)
		if _, err := io.ReadFull(r.conn, rest); err != nil {
			return n, err
		}
		if status != xrdWaitResp {
			return n, fmt.Errorf("the server answers %d: %q", status, rest)
		}
	}
}

// readXRootDParts reads a fraction of a file evenly, part after part.
func readXRootDParts(_ context.Context, w dataWork) error {
	r, err := openXRootD(w.URL)
	if err != nil {
		return err
	}
	defer func() { _ = r.conn.Close() }()
	parts := int64(math.Ceil(w.Reads*float64(w.Bytes)/float64(w.Request) - 1e-6))
	buffer := make([]byte, w.Request)
	for i := range parts {
		from := i * (w.Bytes - w.Request) / max(1, parts-1)
		read := make([]byte, 16)
		copy(read, r.handle[:])
		binary.BigEndian.PutUint64(read[4:], uint64(from))
		binary.BigEndian.PutUint32(read[12:], uint32(w.Request))
		if n, err := r.ask(xrdRead, read, nil, buffer); err != nil || n < len(buffer) {
			return fmt.Errorf("reading at %d: %d bytes of %d: %w", from, n, len(buffer), err)
		}
	}
	return nil
}
