package rmcpplus

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"encoding/binary"
)

// Payload types (table 13-16).
const (
	payloadIPMI         = 0x00
	payloadSOL          = 0x01
	payloadOpenRequest  = 0x10
	payloadOpenResponse = 0x11
	payloadRAKP1        = 0x12
	payloadRAKP2        = 0x13
	payloadRAKP3        = 0x14
	payloadRAKP4        = 0x15

	payloadEncrypted     = 0x80
	payloadAuthenticated = 0x40
)

// headerBytes are the RMCP header (table 13-1) and the RMCP+ session header (table 13-8).
const headerBytes = 4 + 12

// rmcp is the header of all packets: version 1.0, no acknowledgement, class IPMI (section 13.1.3).
const rmcp = "\x06\x00\xff\x07"

// seal makes the packet of a payload: in the clear while the session is set up, encrypted and with an integrity check later.
func (s *Session) seal(kind byte, payload []byte) []byte {
	packet := append(make([]byte, 0, headerBytes+len(payload)+64), rmcp...)
	if !s.active {
		packet = append(packet, 0x06, kind, 0, 0, 0, 0, 0, 0, 0, 0)
		packet = binary.LittleEndian.AppendUint16(packet, uint16(len(payload)))
		return append(packet, payload...)
	}
	s.sequence++
	payload = encrypt(s.keys.encryption, payload)
	packet = append(packet, 0x06, kind|payloadEncrypted|payloadAuthenticated)
	packet = binary.LittleEndian.AppendUint32(packet, s.bmc)
	packet = binary.LittleEndian.AppendUint32(packet, s.sequence)
	packet = binary.LittleEndian.AppendUint16(packet, uint16(len(payload)))
	packet = append(packet, payload...)
	pad := 0
	for (len(packet)-4+2)%4 != 0 { // from the session header on, pad length and next header included
		packet = append(packet, 0xff)
		pad++
	}
	packet = append(packet, byte(pad), 0x07)
	return append(packet, s.integrity(packet[4:])...)
}

// open returns the payload of a packet that may be believed: in a session, one that is encrypted, carries the session's integrity check and
// was not seen before.
func (s *Session) open(packet []byte) (kind byte, payload []byte, ok bool) {
	if len(packet) < headerBytes || packet[0] != 0x06 || packet[3]&0x1f != 0x07 || packet[4] != 0x06 {
		return 0, nil, false
	}
	kind = packet[5] & 0x3f
	id, sequence := binary.LittleEndian.Uint32(packet[6:]), binary.LittleEndian.Uint32(packet[10:])
	length := int(binary.LittleEndian.Uint16(packet[14:]))
	if len(packet) < headerBytes+length {
		return 0, nil, false
	}
	payload = packet[headerBytes : headerBytes+length]
	if !s.active {
		return kind, payload, packet[5]&(payloadEncrypted|payloadAuthenticated) == 0 && id == 0
	}
	if packet[5]&payloadEncrypted == 0 || packet[5]&payloadAuthenticated == 0 || id != s.console {
		return 0, nil, false
	}
	check := len(packet) - s.suite.checkBytes
	if check < headerBytes+length+2 || !hmac.Equal(packet[check:], s.integrity(packet[4:check])) || !s.window.take(sequence) {
		return 0, nil, false
	}
	payload, ok = decrypt(s.keys.encryption, payload)
	return kind, payload, ok
}

// integrity is the check of a packet's part (section 13.28.4).
func (s *Session) integrity(part []byte) []byte {
	return s.suite.hmac(s.keys.integrity, part)[:s.suite.checkBytes]
}

// encrypt pads and encrypts with AES-CBC-128 (section 13.29).
func encrypt(block cipher.Block, payload []byte) []byte {
	pad := (aes.BlockSize - (len(payload)+1)%aes.BlockSize) % aes.BlockSize
	plain := append(make([]byte, 0, len(payload)+pad+1), payload...)
	for i := range pad {
		plain = append(plain, byte(i+1))
	}
	plain = append(plain, byte(pad))
	sealed := make([]byte, aes.BlockSize+len(plain))
	rand.Read(sealed[:aes.BlockSize]) // never fails (crypto/rand)
	cipher.NewCBCEncrypter(block, sealed[:aes.BlockSize]).CryptBlocks(sealed[aes.BlockSize:], plain)
	return sealed
}

// decrypt is the opposite. The padding's bytes are not looked at: BMCs differ in them, and the integrity check came first.
func decrypt(block cipher.Block, sealed []byte) ([]byte, bool) {
	if len(sealed) < 2*aes.BlockSize || len(sealed)%aes.BlockSize != 0 {
		return nil, false
	}
	plain := make([]byte, len(sealed)-aes.BlockSize)
	cipher.NewCBCDecrypter(block, sealed[:aes.BlockSize]).CryptBlocks(plain, sealed[aes.BlockSize:])
	end := len(plain) - 1 - int(plain[len(plain)-1])
	if end < 0 {
		return nil, false
	}
	return plain[:end], true
}

// window tells which of the BMC's packets are new (section 6.12.13). It is 32 wide.
type window struct {
	newest uint32
	seen   uint32 // bit i: newest-i
}

func (w *window) take(sequence uint32) bool {
	if ahead := sequence - w.newest; int32(ahead) > 0 {
		w.seen = w.seen<<min(ahead, 32) | 1 // a shift of 32 leaves 0
		w.newest = sequence
		return true
	}
	behind := w.newest - sequence
	if behind >= 32 || w.seen&(1<<behind) != 0 {
		return false
	}
	w.seen |= 1 << behind
	return true
}

// Addresses in messages (table 5-4, section 5.5): the BMC's, and ours, of a remote console's software.
const (
	addressBMC     = 0x20
	addressConsole = 0x81
)

// ipmiMessage is a request (figure 13-7).
func ipmiMessage(netFn, sequence, command byte, data []byte) []byte {
	m := []byte{addressBMC, netFn << 2}
	m = append(m, checksum(m))
	body := append([]byte{addressConsole, sequence << 2, command}, data...)
	return append(append(m, body...), checksum(body))
}

// readAnswer returns the completion code and data of the answer to a request.
func readAnswer(m []byte, netFn, sequence, command byte) ([]byte, bool) {
	if len(m) < 8 || m[1]>>2 != netFn|1 || m[4]>>2 != sequence || m[5] != command || checksum(m[:3]) != 0 || checksum(m[3:]) != 0 {
		return nil, false
	}
	return m[6 : len(m)-1], true
}

// checksum makes the sum of the bytes with it zero (section 13.8).
func checksum(data []byte) byte {
	var sum byte
	for _, b := range data {
		sum += b
	}
	return -sum
}
