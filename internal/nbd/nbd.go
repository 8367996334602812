// Package nbd serves a block device to one client over a connection, by the protocol of Network Block Devices.
//
// Its source is doc/proto.md of the NBD project: fixed newstyle negotiation, then simple replies to READ, WRITE and FLUSH. TRIM and WRITE_ZEROES are
// not offered: they would give back blocks that were promised to the device. There is no encryption and no authentication: whoever has the connection
// has the device. It must read what hostile clients send. Start with Serve.
package nbd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// Device is what is served. Its calls may be concurrent.
type Device interface {
	io.ReaderAt
	io.WriterAt
	// Sync returns once all that was written before the call outlasts a power cut.
	Sync() error
}

// Export describes the device to clients.
type Export struct {
	Device Device
	// SizeBytes is its size when the connection begins. ReadOnly refuses writes.
	SizeBytes int64
	ReadOnly  bool
}

// The numbers of the negotiation: proto.md, "Fixed newstyle negotiation" and "Option types".
const (
	magicServer  = 0x4e42444d41474943 // NBDMAGIC
	magicOption  = 0x49484156454f5054 // IHAVEOPT
	magicReplies = 0x3e889045565a9

	serverFixedNewstyle, serverNoZeroes = 1 << 0, 1 << 1
	clientFixedNewstyle, clientNoZeroes = 1 << 0, 1 << 1

	optionExportName, optionAbort, optionList, optionInfo, optionGo = 1, 2, 3, 6, 7

	replyAck, replyServer, replyInfo = 1, 2, 3
	errorUnsupported, errorInvalid   = 1<<31 | 1, 1<<31 | 3

	infoExport, infoBlockSize = 0, 3
)

// The flags of an export: proto.md, "Transmission flags".
const (
	flagHasFlags, flagReadOnly, flagFlush, flagFUA = 1 << 0, 1 << 1, 1 << 2, 1 << 3
)

const (
	// maxOption bounds what a client says in one option, and mostOptions how many it says: names of exports are 4096 bytes long at most.
	maxOption, mostOptions = 8 << 10, 64
	// maxPayload is the length of the longest read and write, which clients are told.
	maxPayload = 32 << 20
	// preferredBlock is a block of the file systems beneath.
	preferredBlock = 4096
)

// errLeft: the client has ended the negotiation.
var errLeft = errors.New("the client has left")

// Serve serves the device until the client leaves, it breaks the protocol, or ctx ends. When it returns, no read or write of this client is under way.
// It closes conn.
func Serve(ctx context.Context, conn net.Conn, export Export) error {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	err := negotiate(conn, export)
	if err == nil {
		err = transmit(conn, export)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errLeft) || errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// negotiate speaks with the client until it wants the device.
func negotiate(conn net.Conn, export Export) error {
	hello := binary.BigEndian.AppendUint64(nil, magicServer)
	hello = binary.BigEndian.AppendUint64(hello, magicOption)
	hello = binary.BigEndian.AppendUint16(hello, serverFixedNewstyle|serverNoZeroes)
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	var flags [4]byte
	if _, err := io.ReadFull(conn, flags[:]); err != nil {
		return err
	}
	client := binary.BigEndian.Uint32(flags[:])
	if client&^(clientFixedNewstyle|clientNoZeroes) != 0 || client&clientFixedNewstyle == 0 {
		return fmt.Errorf("the client has the flags %#x", client)
	}
	for range mostOptions {
		option, data, err := readOption(conn)
		if err != nil {
			return err
		}
		done, err := answer(conn, export, option, data, client&clientNoZeroes != 0)
		if err != nil || done {
			return err
		}
	}
	return fmt.Errorf("the client sent more than %d options", mostOptions)
}

func readOption(conn net.Conn) (option uint32, data []byte, err error) {
	var head [16]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return 0, nil, err
	}
	if binary.BigEndian.Uint64(head[:]) != magicOption {
		return 0, nil, errors.New("the client sent no option")
	}
	length := binary.BigEndian.Uint32(head[12:])
	if length > maxOption {
		return 0, nil, fmt.Errorf("the client sent an option of %d bytes", length)
	}
	data = make([]byte, length)
	_, err = io.ReadFull(conn, data)
	return binary.BigEndian.Uint32(head[8:]), data, err
}

// answer answers one option. done: the transmission begins.
func answer(conn net.Conn, export Export, option uint32, data []byte, noZeroes bool) (done bool, err error) {
	switch option {
	case optionExportName:
		out := appendExport(nil, export)
		if !noZeroes {
			out = append(out, make([]byte, 124)...)
		}
		_, err := conn.Write(out)
		return true, err
	case optionAbort:
		_ = reply(conn, option, replyAck, nil)
		return false, errLeft
	case optionList:
		if len(data) > 0 {
			return false, reply(conn, option, errorInvalid, nil)
		}
		if err := reply(conn, option, replyServer, make([]byte, 4)); err != nil { // the one export has no name
			return false, err
		}
		return false, reply(conn, option, replyAck, nil)
	case optionInfo, optionGo:
		if !isInfoRequest(data) {
			return false, reply(conn, option, errorInvalid, nil)
		}
		if err := sendInfo(conn, option, export); err != nil {
			return false, err
		}
		return option == optionGo, nil
	default:
		return false, reply(conn, option, errorUnsupported, nil)
	}
}

// isInfoRequest checks a request for information: the length of a name, the name, a number of kinds, and the kinds. Whatever the name, it is this export.
func isInfoRequest(data []byte) bool {
	if len(data) < 6 {
		return false
	}
	name := uint64(binary.BigEndian.Uint32(data))
	if uint64(len(data)) < name+6 {
		return false
	}
	kinds := uint64(binary.BigEndian.Uint16(data[4+name:]))
	return uint64(len(data)) == name+6+2*kinds
}

func sendInfo(conn net.Conn, option uint32, export Export) error {
	info := binary.BigEndian.AppendUint16(nil, infoExport)
	if err := reply(conn, option, replyInfo, appendExport(info, export)); err != nil {
		return err
	}
	blocks := binary.BigEndian.AppendUint16(nil, infoBlockSize)
	for _, size := range []uint32{1, preferredBlock, maxPayload} {
		blocks = binary.BigEndian.AppendUint32(blocks, size)
	}
	if err := reply(conn, option, replyInfo, blocks); err != nil {
		return err
	}
	return reply(conn, option, replyAck, nil)
}

func appendExport(out []byte, export Export) []byte {
	flags := uint16(flagHasFlags | flagFlush | flagFUA)
	if export.ReadOnly {
		flags |= flagReadOnly
	}
	out = binary.BigEndian.AppendUint64(out, uint64(export.SizeBytes))
	return binary.BigEndian.AppendUint16(out, flags)
}

func reply(conn net.Conn, option, kind uint32, data []byte) error {
	out := binary.BigEndian.AppendUint64(nil, magicReplies)
	for _, n := range []uint32{option, kind, uint32(len(data))} {
		out = binary.BigEndian.AppendUint32(out, n)
	}
	_, err := conn.Write(append(out, data...))
	return err
}
