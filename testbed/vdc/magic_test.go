package vdc

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
)

// frame is of that EtherType from one made-up NIC to all.
func frame(etherType uint16, payload []byte) []byte {
	f := append(bytes.Repeat([]byte{0xff}, 6), 2, 0, 0, 0, 0, 1)
	return append(binary.BigEndian.AppendUint16(f, etherType), payload...)
}

// datagram is an IPv4 packet of that protocol, as far as anybody looks here.
func datagram(protocol byte, payload []byte) []byte {
	header := make([]byte, 28)
	header[0], header[9] = 0x45, protocol
	return append(header, payload...)
}

func TestMagicPacketsAreFoundWhereNICsLookForThem(t *testing.T) {
	mac := net.HardwareAddr{0x52, 0x54, 0, 1, 2, 3}
	magic := append(bytes.Repeat([]byte{0xff}, 6), bytes.Repeat(mac, 16)...)
	other := bytes.Repeat([]byte{0xff}, 6)
	for _, test := range []struct {
		name  string
		frame []byte
		found bool
	}{
		{"EtherType 0x0842", frame(0x0842, magic), true},
		{"UDP", frame(0x0800, datagram(17, magic)), true},
		{"UDP, with a SecureOn password behind", frame(0x0800, datagram(17, append(bytes.Clone(magic), 1, 2, 3, 4, 5, 6))), true},
		{"not at the start", frame(0x0842, append([]byte("something "), magic...)), true},
		{"after more 0xff than needed", frame(0x0842, append([]byte{0xff, 0xff}, magic...)), true},
		{"after a synchronisation without MACs", frame(0x0842, append(append(bytes.Clone(other), 1, 2, 3), magic...)), true},
		{"TCP", frame(0x0800, datagram(6, magic)), false},
		{"another EtherType", frame(0x86dd, magic), false},
		{"fifteen times the MAC", frame(0x0842, magic[:6+15*6]), false},
		{"one MAC differs", frame(0x0842, append(bytes.Clone(magic[:6+15*6]), 1, 2, 3, 4, 5, 6)), false},
		{"no payload", frame(0x0842, nil), false},
		{"cut in the header", frame(0x0842, nil)[:10], false},
		{"UDP cut in the IP header", frame(0x0800, []byte{0x45}), false},
	} {
		got, found := magicTarget(test.frame)
		if found != test.found || found && !bytes.Equal(got, mac) {
			t.Errorf("%s: %v %v, want %v", test.name, got, found, test.found)
		}
	}
}

func FuzzMagicPacketsOfAnyShapeAreRead(f *testing.F) {
	f.Add(frame(0x0842, append(bytes.Repeat([]byte{0xff}, 6), bytes.Repeat([]byte{1}, 96)...)))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if mac, ok := magicTarget(frame); ok && len(mac) != 6 {
			t.Errorf("MAC %v", mac)
		}
	})
}
