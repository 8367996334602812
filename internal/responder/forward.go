package responder

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// forwardPatience is how long each server is waited for. Askers give up after 5 s, or ask again.
const forwardPatience = 2 * time.Second

// forwarder asks other DNS servers, from the node's own address.
type forwarder struct{ space netns.Handle }

// ask returns the first server's answer, or an error message for the asker.
func (f forwarder) ask(ctx context.Context, o outsideQuestion) []byte {
	for _, server := range o.names.outside {
		reply := f.askOne(ctx, server, o.raw)
		if reply == nil {
			continue
		}
		if len(reply) > o.mtu-ipBytes-udpBytes {
			return truncated(reply)
		}
		return reply
	}
	return o.refusal()
}

// askOne returns a server's answer, nil if none comes in time.
func (f forwarder) askOne(ctx context.Context, server netip.Addr, raw []byte) []byte {
	ctx, cancel := context.WithTimeout(ctx, forwardPatience)
	defer cancel()
	var conn net.Conn
	err := f.space.Do(func() (err error) { // its own port, which nobody can guess
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(server, portDNS)))
		return err
	})
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(unixEpoch) })()
	id := make([]byte, 2)
	if _, err := rand.Read(id); err != nil {
		return nil
	}
	sent := append(bytes.Clone(id), raw[len(id):]...)
	if _, err := conn.Write(sent); err != nil {
		return nil
	}
	buffer := make([]byte, 1<<16)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return nil
		}
		if answers(buffer[:n], sent) {
			return append(bytes.Clone(raw[:len(id)]), buffer[len(id):n]...)
		}
	}
}

// answers reports whether a message is a response to a query: it has its number and its question.
func answers(response, query []byte) bool {
	asked, answered := questionOf(query), questionOf(response)
	return asked != nil && answered != nil && bytes.Equal(response[:2], query[:2]) && response[2]&0x80 != 0 &&
		asked.Type == answered.Type && asked.Class == answered.Class && bytes.EqualFold([]byte(asked.Name.String()), []byte(answered.Name.String()))
}

func questionOf(message []byte) *dnsmessage.Question {
	var p dnsmessage.Parser
	if _, err := p.Start(message); err != nil {
		return nil
	}
	question, err := p.Question()
	if err != nil {
		return nil
	}
	return &question
}

// truncated is a response without its records, marked as such (RFC 1035, section 4.1.1).
func truncated(response []byte) []byte {
	const isTruncated = 0x0200
	var p dnsmessage.Parser
	if _, err := p.Start(response); err != nil || p.SkipAllQuestions() != nil {
		return nil
	}
	question := questionOf(response)
	if question == nil {
		return nil
	}
	short := bytes.Clone(response[:headerBytes])
	binary.BigEndian.PutUint16(short[2:], binary.BigEndian.Uint16(short[2:])|isTruncated)
	copy(short[4:], []byte{0, 1, 0, 0, 0, 0, 0, 0})
	end := headerBytes
	for end < len(response) && response[end] != 0 { // the first name of a message can't point anywhere
		end += 1 + int(response[end])
	}
	if end+5 > len(response) {
		return nil
	}
	return append(short, response[headerBytes:end+5]...)
}
