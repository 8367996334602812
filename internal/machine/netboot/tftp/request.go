package tftp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Opcodes (RFC 1350, section 5; OACK: RFC 2347).
const (
	opRead  = 1
	opWrite = 2
	opData  = 3
	opAck   = 4
	opError = 5
	opOACK  = 6
)

// Error codes (RFC 1350, appendix; 8: RFC 2347).
const (
	codeNotFound  = 1
	codeViolation = 2
	codeIllegal   = 4
	codeOption    = 8
)

// Limits and defaults of the options.
const (
	defaultBlock = 512
	minBlock     = 8     // RFC 2348
	maxBlock     = 65464 // RFC 2348
	maxWindow    = 64    // RFC 7440 allows 65535; more than this fills no link better, and a loss costs more
	maxTimeout   = 30    // seconds; RFC 2349 allows 255: a few packets would hold all transfers for an hour
)

// request is a read request: what is asked for, and what of its options we grant.
type request struct {
	name    string
	block   int // bytes
	window  int // blocks
	timeout int // seconds; 0: ours
	// asked are the options that are answered, in their order.
	asked []string
	// size is asked for (tsize, RFC 2349).
	size bool
}

// same tells whether two requests ask for the same.
func (r request) same(other request) bool {
	return r.name == other.name && r.block == other.block && r.window == other.window && r.timeout == other.timeout && slices.Equal(r.asked, other.asked)
}

// errNoRead: a packet is well formed but asks for something else than reading a file.
var errNoRead = errors.New("this server is read-only")

// parseRequest reads a read request. Mode netascii is refused by reading it as octet would be wrong; no loader asks for it. Unknown options
// are passed over (RFC 2347); of one that is given twice the first counts. mtuBlock is the largest block that needs no fragments.
func parseRequest(packet []byte, mtuBlock int) (request, error) {
	r := request{block: defaultBlock, window: 1}
	if len(packet) < 4 {
		return r, errors.New("the request is too short")
	}
	if op := binary.BigEndian.Uint16(packet); op != opRead {
		return r, errNoRead
	}
	if packet[len(packet)-1] != 0 {
		return r, errors.New("the last string is not terminated")
	}
	fields := strings.Split(string(bytes.TrimSuffix(packet[2:], []byte{0})), "\x00")
	if len(fields) < 2 || fields[0] == "" {
		return r, errors.New("the file name is missing")
	}
	if !strings.EqualFold(fields[1], "octet") {
		return r, fmt.Errorf("mode %.20q is not supported; use octet", fields[1])
	}
	r.name = fields[0]
	options := fields[2:]
	seen := map[string]bool{}
	for i := 0; i+1 < len(options); i += 2 {
		name := strings.ToLower(options[i])
		if !seen[name] {
			seen[name] = true
			r.option(name, options[i+1], mtuBlock)
		}
	}
	return r, nil
}

// option takes one option if it is known and its value makes sense; else it is as if it had not been sent.
func (r *request) option(name, value string, mtuBlock int) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return
	}
	switch {
	case name == "blksize" && n >= minBlock && n <= maxBlock: // RFC 2348: we may answer with less
		r.block = min(n, max(mtuBlock, minBlock))
	case name == "windowsize" && n >= 1 && n <= 65535: // RFC 7440, likewise
		r.window = min(n, maxWindow)
	case name == "timeout" && n >= 1 && n <= maxTimeout: // RFC 2349: as it is, or not at all
		r.timeout = n
	case name == "tsize": // RFC 2349
		r.size = true
	default:
		return
	}
	r.asked = append(r.asked, name)
}

// oack is the answer to the options, nil when none was taken.
func (r *request) oack(size int) []byte {
	if len(r.asked) == 0 {
		return nil
	}
	packet := binary.BigEndian.AppendUint16(nil, opOACK)
	values := map[string]int{"blksize": r.block, "windowsize": r.window, "timeout": r.timeout, "tsize": size}
	for _, name := range r.asked {
		packet = append(append(packet, name...), 0)
		packet = append(strconv.AppendInt(packet, int64(values[name]), 10), 0)
	}
	return packet
}

// refusal is an ERROR packet.
func refusal(code uint16, text string) []byte {
	packet := binary.BigEndian.AppendUint16(nil, opError)
	packet = binary.BigEndian.AppendUint16(packet, code)
	return append(append(packet, text...), 0)
}
