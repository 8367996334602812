// Package roundtrip measures how long packets take to other nodes and back.
//
// Packets are echo requests of ICMP (RFC 792), which the other nodes' kernels answer: nothing listens there. It needs a raw socket. Start with Measure.
package roundtrip

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

const (
	// echoes is how many packets go to each peer, one after the other: the shortest counts, as others waited for processors.
	echoes = 5
	// patience is for one answer; a peer that does not answer the first giveUp packets is given up. No network of a cluster takes as long.
	patience = 100 * time.Millisecond
	giveUp   = 2
	// protocolICMP is ICMP's number in IPv4 (RFC 790).
	protocolICMP = 1
	nonceBytes   = 16
)

// Measure returns the shortest round trip from an address of this machine to each peer that answers. The error tells why nothing can be measured.
func Measure(ctx context.Context, from netip.Addr, peers []netip.Addr) (map[netip.Addr]time.Duration, error) {
	if len(peers) == 0 {
		return nil, nil //nolint:nilnil // nothing was asked
	}
	if !from.Is4() {
		return nil, fmt.Errorf("round trips are measured by IPv4, and %s is none of its addresses", from)
	}
	conn, err := icmp.ListenPacket("ip4:icmp", from.String())
	if err != nil {
		return nil, fmt.Errorf("opening a socket for ICMP: %w", err)
	}
	defer conn.Close()
	m := &measurer{conn: conn}
	if _, err := rand.Read(m.nonce[:]); err != nil {
		return nil, err
	}
	shortest := map[netip.Addr]time.Duration{}
	for _, peer := range peers {
		if !peer.Is4() {
			continue
		}
		took, err := m.peer(ctx, peer)
		if ctx.Err() != nil {
			return shortest, ctx.Err()
		}
		if err == nil {
			shortest[peer] = took
		}
	}
	return shortest, nil
}

type measurer struct {
	conn *icmp.PacketConn
	// nonce tells the answers to these packets from all others that the machine gets; seq is the number of the last packet.
	nonce [nonceBytes]byte
	seq   uint16
}

var errNoAnswer = errors.New("no answer")

// peer returns the shortest round trip to a peer.
func (m *measurer) peer(ctx context.Context, to netip.Addr) (shortest time.Duration, err error) {
	err = errNoAnswer
	for i := range echoes {
		if ctx.Err() != nil || i == giveUp && err != nil {
			return 0, err
		}
		if took, failed := m.echo(to); failed == nil && (err != nil || took < shortest) {
			shortest, err = took, nil
		}
	}
	return shortest, err
}

// echo sends one packet and waits for its answer.
func (m *measurer) echo(to netip.Addr) (time.Duration, error) {
	m.seq++
	id := int(binary.BigEndian.Uint16(m.nonce[:]))
	request := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: id, Seq: int(m.seq), Data: m.nonce[:]}}
	packet, err := request.Marshal(nil)
	if err != nil {
		return 0, err
	}
	sent := time.Now()
	if err := m.conn.SetReadDeadline(sent.Add(patience)); err != nil {
		return 0, err
	}
	if _, err := m.conn.WriteTo(packet, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return 0, err
	}
	buffer := make([]byte, 512)
	for {
		n, by, err := m.conn.ReadFrom(buffer)
		took := time.Since(sent)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, errNoAnswer
		}
		if err != nil {
			return 0, err
		}
		if m.answers(buffer[:n], by, to) {
			return took, nil
		}
	}
}

// answers reports whether a packet is a peer's answer to the last request.
func (m *measurer) answers(packet []byte, by net.Addr, peer netip.Addr) bool {
	at, ok := by.(*net.IPAddr)
	if !ok {
		return false
	}
	from, ok := netip.AddrFromSlice(at.IP.To4())
	if !ok || from != peer {
		return false
	}
	answer, err := icmp.ParseMessage(protocolICMP, packet)
	if err != nil || answer.Type != ipv4.ICMPTypeEchoReply {
		return false
	}
	echo, ok := answer.Body.(*icmp.Echo)
	return ok && echo.Seq == int(m.seq) && string(echo.Data) == string(m.nonce[:])
}
