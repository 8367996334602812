package powertest

import (
	"bufio"
	"net"
	"testing"
	"time"
)

// ByHost sends a command to a simulator's BMC as root of its machine does, by the system interface, and returns completion code and data. It speaks
// the protocol of QEMU's ipmi-bmc-extern (OpenIPMI, lanserv/README.vm): sequence, function, command, data, checksum, and A0h as the end.
func (s *Sim) ByHost(t *testing.T, netFn, command byte, data ...byte) []byte {
	t.Helper()
	if s.host == nil { // one for all: the simulator refuses a second one while it has not noticed the end of the first
		conn, err := net.Dial("tcp", s.KCS)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		s.host, s.answers = conn, bufio.NewReader(conn)
	}
	if err := s.host.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	message := append([]byte{1, netFn << 2, command}, data...)
	sum := byte(0)
	for _, b := range message {
		sum += b
	}
	var sent []byte
	for _, b := range append(message, -sum) {
		if b == messageEnd || b == commandEnd || b == escape {
			sent = append(sent, escape)
			b |= 0x10
		}
		sent = append(sent, b)
	}
	if _, err := s.host.Write(append(sent, messageEnd)); err != nil {
		t.Fatal(err)
	}
	for read := []byte(nil); ; {
		b, err := s.answers.ReadByte()
		switch {
		case err != nil:
			t.Fatal(err)
		case b == commandEnd: // what the BMC tells the machine's hardware
			read = nil
		case b == messageEnd && len(read) >= 5:
			return read[3 : len(read)-1]
		case b == messageEnd:
			t.Fatalf("the BMC's answer is too short: % x", read)
		case b == escape:
			if b, err = s.answers.ReadByte(); err != nil {
				t.Fatal(err)
			}
			read = append(read, b&^0x10)
		default:
			read = append(read, b)
		}
	}
}

const (
	messageEnd = 0xA0
	commandEnd = 0xA1
	escape     = 0xAA
)
