package powertest

import (
	"crypto/rand"
	"io"
	"net"
	"net/netip"
	"testing"
)

// badAddresses are addresses where nothing listens, something listens and says nothing, and something answers nonsense.
func badAddresses(t *testing.T, datagrams bool) map[string]string {
	t.Helper()
	if datagrams {
		return map[string]string{
			"nothing": FreeUDP(t), "silence": answering(t, nil),
			"nonsense, random": answering(t, func(request []byte) [][]byte {
				noise := make([]byte, 200)
				rand.Read(noise)
				return [][]byte{{}, noise[:1], noise, append([]byte("\x06\x00\xff\x07\x06"), noise...)}
			}),
			"nonsense, echo": answering(t, func(request []byte) [][]byte { return [][]byte{request} }),
		}
	}
	return map[string]string{
		"nothing": FreeTCP(t), "silence": listening(t, ""),
		"nonsense, not HTTP":  listening(t, "\x16\x03\x01 what?\r\n\r\n"),
		"nonsense, not JSON":  listening(t, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<x/>\n"),
		"nonsense, other":     listening(t, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\n"),
		"nonsense, redirect":  listening(t, "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
		"nonsense, cut short": listening(t, "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{\"Id\""),
	}
}

// FreeTCP is a loopback address where nothing listens.
func FreeTCP(t *testing.T) string {
	t.Helper()
	return free(t, func(address string) (io.Closer, error) { return net.Listen("tcp", address) })
}

// FreeUDP is a loopback address where nothing receives.
func FreeUDP(t *testing.T) string {
	t.Helper()
	return free(t, func(address string) (io.Closer, error) { return net.ListenPacket("udp", address) })
}

// free picks one of the millions of addresses of 127.0.0.0/8 by chance, with a port that is not given to clients: a port that was free a moment
// ago is somebody's a moment later.
func free(t *testing.T, try func(address string) (io.Closer, error)) string {
	t.Helper()
	const port = 20623
	var random [3]byte
	rand.Read(random[:])
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 64 | random[0]&63, random[1], max(random[2], 1)}), port).String()
	l, err := try(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return address
}

// answering is the address of a UDP peer.
func answering(t *testing.T, answers func(request []byte) [][]byte) string {
	t.Helper()
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		var buffer [2048]byte
		for {
			n, from, err := l.ReadFrom(buffer[:])
			if err != nil {
				return
			}
			if answers == nil {
				continue
			}
			for _, answer := range answers(buffer[:n]) {
				_, _ = l.WriteTo(answer, from)
			}
		}
	}()
	return l.LocalAddr().String()
}

// listening is the address of a TCP peer that says the same to all.
func listening(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				var buffer [2048]byte
				for {
					if _, err := conn.Read(buffer[:]); err != nil {
						return
					}
					if _, err := conn.Write([]byte(answer)); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}
