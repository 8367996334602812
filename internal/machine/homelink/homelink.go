// Package homelink carries TCP connections of a guest's kernel over one virtio-serial port to the server of the guest's home (package
// homeserver).
//
// The stream may break at any byte: the server is killed, or the machine is saved or moved to another node, while a message is half
// written. Both ends then start again with a greeting that can't be mistaken for other data, and close the connections that they
// carried. The guest's kernel connects again and repeats its unanswered requests. The host's end trusts nothing and bounds its memory.
// This package knows no files. Start with Carry, the guest's end, and Serve, the host's.
package homelink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"time"
)

// Port is the name of the virtio-serial port.
const Port = "nearmetal.home"

// A greeting is the mark and a number that the host makes up. The host sends it until the guest has sent it back, and what comes before is discarded.
// A frame is the number of a connection, the length of what follows, and that; a length of 0 closes the connection. The mark is no frame: its length is
// too long. A guest that has lost its place in the stream says so by a greeting that is nobody's, and the host begins anew.
const (
	mark          = "NMhome\xff\xff"
	greetingBytes = len(mark) + 16
	headerBytes   = 8
	// maxFrame is what Linux's driver passes on at once.
	maxFrame = 32<<10 - headerBytes
	// MaxConnections is how many connections of a guest are served at a time. Its kernel has one, and another one while it mounts.
	MaxConnections = 16
)

// frameTime is how long the rest of a frame may take. One whose host was replaced in its midst never ends.
const frameTime = 10 * time.Second

// lost is the greeting of a guest that has lost its place.
var lost = append([]byte(mark), make([]byte, greetingBytes-len(mark))...)

// errNoFrame: the other end has begun anew, or sends nonsense.
var errNoFrame = errors.New("what was received is not a frame")

// frame is a part of a connection's stream.
type frame struct {
	connection uint32
	data       []byte // empty: the connection is closed
}

// readFrame reads into a buffer of maxFrame bytes. d bounds the time between a frame's begin and its end; nil: nothing does.
func readFrame(r io.Reader, d deadline, buffer []byte) (frame, error) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return frame{}, err
	}
	n := binary.BigEndian.Uint32(header[4:])
	if n > uint32(maxFrame) {
		return frame{}, errNoFrame
	}
	f := frame{binary.BigEndian.Uint32(header[:]), buffer[:n]}
	if d != nil && n > 0 {
		_ = d.SetReadDeadline(time.Now().Add(frameTime))
		defer func() { _ = d.SetReadDeadline(time.Time{}) }()
	}
	_, err := io.ReadFull(r, f.data)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errNoFrame
	}
	return f, err
}

// deadline bounds reads.
type deadline interface{ SetReadDeadline(t time.Time) error }

// appendFrame appends a frame with at most maxFrame bytes.
func appendFrame(to []byte, connection uint32, data []byte) []byte {
	to = binary.BigEndian.AppendUint32(to, connection)
	to = binary.BigEndian.AppendUint32(to, uint32(len(data)))
	return append(to, data...)
}

// awaitGreeting discards everything up to a greeting: the given one, or any where it is nil.
func awaitGreeting(r io.ByteReader, want []byte) ([]byte, error) {
	var seen []byte
	for {
		b, err := r.ReadByte()
		if err != nil {
			return nil, err
		}
		if len(seen) == greetingBytes {
			seen = append(seen[:0], seen[1:]...)
		}
		if seen = append(seen, b); len(seen) == greetingBytes && bytes.HasPrefix(seen, []byte(mark)) && (want == nil || bytes.Equal(seen, want)) {
			return seen, nil
		}
	}
}
