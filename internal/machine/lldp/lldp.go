// Package lldp hears what switches say of themselves: the Link Layer Discovery Protocol, IEEE 802.1AB-2016.
//
// It listens for a bounded time and speaks once, because switches that hear a new neighbour answer at once instead of within half a
// minute. It keeps nothing. Start with Listen; Parse reads one frame.
package lldp

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// EtherType of LLDP (section 7.3), and of the VLAN tag that may precede it (IEEE 802.1Q).
const (
	EtherType    = 0x88cc
	vlanType     = 0x8100
	headerBytes  = 14
	maxTextBytes = 255 // section 8.5: the longest string of a TLV
)

// The types of the TLVs that are read (table 8-1).
const (
	tlvEnd     = 0
	tlvChassis = 1
	tlvPort    = 2
	tlvTTL     = 3
	tlvSystem  = 5

	tlvOrganization = 127
)

// ErrBroken: a frame does not keep to IEEE 802.1AB.
var ErrBroken = errors.New("broken LLDP frame")

// ErrShutdown: the neighbour says that it is going away (TTL 0, section 9.2.2).
var ErrShutdown = errors.New("the neighbour stops speaking LLDP")

// Parse reads a whole Ethernet frame. Chassis ID, port ID and time to live come first and in this order (section 8.2); a frame
// without them is refused, as the standard asks.
func Parse(frame []byte) (api.Neighbor, error) {
	pdu, err := payload(frame)
	if err != nil {
		return api.Neighbor{}, err
	}
	var n api.Neighbor
	for i := 0; ; i++ {
		if len(pdu) < 2 {
			if i < 3 {
				return api.Neighbor{}, fmt.Errorf("%w: it ends after %d of the three elements that must be there", ErrBroken, i)
			}
			return n, nil // nothing ends it; what matters was read
		}
		head := binary.BigEndian.Uint16(pdu)
		kind, length := int(head>>9), int(head&0x1ff)
		if len(pdu) < 2+length {
			return api.Neighbor{}, fmt.Errorf("%w: element %d (type %d) claims %d bytes, %d are left", ErrBroken, i, kind, length, len(pdu)-2)
		}
		value := pdu[2 : 2+length]
		pdu = pdu[2+length:]
		if i < 3 && kind != i+1 {
			return api.Neighbor{}, fmt.Errorf("%w: element %d has type %d, not %d", ErrBroken, i, kind, i+1)
		}
		switch kind {
		case tlvEnd:
			return n, nil
		case tlvChassis:
			n.Chassis, err = identifier(value, chassisSubtypes)
		case tlvPort:
			n.Port, err = identifier(value, portSubtypes)
		case tlvTTL:
			if length < 2 {
				return api.Neighbor{}, fmt.Errorf("%w: the time to live has %d bytes", ErrBroken, length)
			}
			if binary.BigEndian.Uint16(value) == 0 {
				return api.Neighbor{}, ErrShutdown
			}
		case tlvSystem:
			n.System = text(value)
		}
		if err != nil {
			return api.Neighbor{}, err
		}
	}
}

// payload is what an Ethernet frame carries, if it is LLDP.
func payload(frame []byte) ([]byte, error) {
	if len(frame) < headerBytes {
		return nil, fmt.Errorf("%w: %d bytes are no Ethernet frame", ErrBroken, len(frame))
	}
	kind, rest := binary.BigEndian.Uint16(frame[12:]), frame[headerBytes:]
	if kind == vlanType && len(rest) >= 4 {
		kind, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
	}
	if kind != EtherType {
		return nil, fmt.Errorf("%w: EtherType 0x%04x", ErrBroken, kind)
	}
	return rest, nil
}

// form is how an identifier is written.
type form int

const (
	asText form = iota
	asMAC
	asAddress
)

// The subtypes of chassis IDs (table 8-2) and port IDs (table 8-3) that are no text.
var (
	chassisSubtypes = map[byte]form{4: asMAC, 5: asAddress}
	portSubtypes    = map[byte]form{3: asMAC, 4: asAddress}
)

// identifier reads a chassis or port ID: a byte of subtype and 1 to 255 bytes.
func identifier(value []byte, forms map[byte]form) (string, error) {
	if len(value) < 2 || len(value) > 1+maxTextBytes {
		return "", fmt.Errorf("%w: an identifier of %d bytes", ErrBroken, len(value))
	}
	id := value[1:]
	switch forms[value[0]] {
	case asMAC:
		if len(id) == 6 {
			return net.HardwareAddr(id).String(), nil
		}
	case asAddress: // a byte of IANA address family comes first
		if address, ok := netip.AddrFromSlice(id[1:]); ok && (id[0] == 1 || id[0] == 2) {
			return address.String(), nil
		}
	case asText:
		if t := text(id); t != "" {
			return t, nil
		}
	}
	return hex.EncodeToString(id), nil
}

// text is a TLV's string without what a terminal would obey.
func text(value []byte) string {
	printable := func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}
	return strings.TrimSpace(strings.Map(printable, strings.ToValidUTF8(string(value), "")))
}

// medCapabilities says "an endpoint of class I that speaks LLDP-MED" (ANSI/TIA-1057, section 10.2.1): what switches start their fast
// transmission for, many of them for nothing less.
var medCapabilities = []byte{0x00, 0x12, 0xbb, 1, 0x00, 0x01, 1}

// announcement is a frame that says only that there is someone: chassis and port are the MAC, to live two minutes (section 8.5.4).
func announcement(mac net.HardwareAddr) []byte {
	frame := append(append([]byte{}, nearestBridge[:]...), mac...)
	frame = binary.BigEndian.AppendUint16(frame, EtherType)
	element := func(kind int, value ...byte) {
		frame = binary.BigEndian.AppendUint16(frame, uint16(kind)<<9|uint16(len(value)))
		frame = append(frame, value...)
	}
	element(tlvChassis, append([]byte{4}, mac...)...)
	element(tlvPort, append([]byte{3}, mac...)...)
	element(tlvTTL, 0, 120)
	element(tlvOrganization, medCapabilities...)
	element(tlvEnd)
	return frame
}
