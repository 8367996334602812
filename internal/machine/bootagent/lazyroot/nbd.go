package lazyroot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// The NBD protocol's transmission phase (NetworkBlockDevice/nbd, doc/proto.md): all the kernel speaks once it was given a socket.
const (
	nbdRequestMagic = 0x25609513
	nbdReplyMagic   = 0x67446698
	nbdRequestBytes = 28
	nbdReplyBytes   = 16

	nbdRead       = 0
	nbdDisconnect = 2
	nbdFlush      = 3

	nbdEPERM  = 1
	nbdEIO    = 5
	nbdEINVAL = 22

	// maxRead is the longest read answered; the kernel's own limit is far below.
	maxRead = 32 << 20
	// maxAtOnce bounds requests being answered; the kernel sends 128 at most by default.
	maxAtOnce = 256
)

// nbdRequest is a request's head.
type nbdRequest struct {
	command uint16
	handle  uint64
	offset  uint64
	length  uint32
}

// parseRequest reads the head of a request.
func parseRequest(b []byte) (nbdRequest, error) {
	if len(b) < nbdRequestBytes {
		return nbdRequest{}, io.ErrUnexpectedEOF
	}
	if magic := binary.BigEndian.Uint32(b); magic != nbdRequestMagic {
		return nbdRequest{}, fmt.Errorf("an NBD request starts with %#x instead of %#x", magic, uint32(nbdRequestMagic))
	}
	return nbdRequest{
		command: binary.BigEndian.Uint16(b[6:]), handle: binary.BigEndian.Uint64(b[8:]),
		offset: binary.BigEndian.Uint64(b[16:]), length: binary.BigEndian.Uint32(b[24:]),
	}, nil
}

// ServeNBD answers the NBD requests on a connection from a read-only device of size bytes until the other side disconnects, which returns
// nil, or the connection fails. Reads are answered side by side, in any order.
func ServeNBD(conn io.ReadWriter, device io.ReaderAt, sizeBytes int64) error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	defer wg.Wait()
	// send completes a reply whose data, if any, is in place, and sends it.
	send := func(head []byte, handle uint64, code uint32) error {
		binary.BigEndian.PutUint32(head, nbdReplyMagic)
		binary.BigEndian.PutUint32(head[4:], code)
		binary.BigEndian.PutUint64(head[8:], handle)
		mu.Lock()
		defer mu.Unlock()
		_, err := conn.Write(head)
		return err
	}
	reply := func(handle uint64, code uint32) error { return send(make([]byte, nbdReplyBytes), handle, code) }
	atOnce := make(chan struct{}, maxAtOnce)
	head := make([]byte, nbdRequestBytes)
	for {
		if _, err := io.ReadFull(conn, head); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("read an NBD request: %w", err)
		}
		r, err := parseRequest(head)
		if err != nil {
			return err
		}
		switch r.command {
		case nbdDisconnect:
			return nil
		case nbdRead:
			if r.length > maxRead || r.offset > uint64(sizeBytes) || uint64(r.length) > uint64(sizeBytes)-r.offset {
				err = reply(r.handle, nbdEINVAL)
				break
			}
			atOnce <- struct{}{}
			wg.Go(func() {
				defer func() { <-atOnce }()
				data := make([]byte, nbdReplyBytes+int(r.length))
				// A connection that fails is noticed by the loop.
				if _, err := device.ReadAt(data[nbdReplyBytes:], int64(r.offset)); err != nil {
					_ = reply(r.handle, nbdEIO)
					return
				}
				_ = send(data, r.handle, 0)
			})
		case nbdFlush:
			err = reply(r.handle, 0)
		default:
			// A write carries data that would have to be read past; a read-only device gets none.
			if err = reply(r.handle, nbdEPERM); err == nil && r.command == 1 {
				_, err = io.CopyN(io.Discard, conn, int64(r.length))
			}
		}
		if err != nil {
			return fmt.Errorf("answer an NBD request: %w", err)
		}
	}
}
