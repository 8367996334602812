package responder

import (
	"bytes"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nearmetal/nearmetal/api"
)

// Sizes of DNS messages over UDP in bytes: without EDNS (RFC 1035, section 4.2.1), and the most that is sent with it (DNS flag day 2020). There
// is no DNS over TCP here, so answers leave addresses out rather than be truncated.
const (
	plainBytes = 512
	ednsBytes  = 1232
)

// Lengths in bytes of a header, of an address record whose name is a pointer, and of an OPT record (RFC 1035, RFC 6891).
const (
	headerBytes  = 12
	addressBytes = 16
	sixBytes     = 28 // of a record with an IPv6 address
	optBytes     = 11
)

// recordSeconds is how long an asker may keep an answer. It is short: a healed member may have another address.
const recordSeconds = 5

// query is a question as it was received.
type query struct {
	header   dnsmessage.Header
	question dnsmessage.Question
	// edns: the asker knows EDNS. limit is the size of the answer that it takes.
	edns  bool
	limit int
	raw   []byte
}

// outsideQuestion is a question for other servers.
type outsideQuestion struct {
	query
	names *Names
	mtu   int
}

func (o outsideQuestion) clone() outsideQuestion {
	o.raw = bytes.Clone(o.raw)
	return o
}

// refusal says that no other server could be asked.
func (o outsideQuestion) refusal() []byte {
	return o.reply(o.names, dnsmessage.RCodeServerFailure, found{foreign: true})
}

// dns answers a question of a member. It returns the answer, or the question if other servers have to be asked.
func (s *subnet) dns(p port, payload []byte) (reply []byte, outside *outsideQuestion) {
	q, code, ok := readQuery(payload)
	switch {
	case !ok:
		return nil, nil
	case code != dnsmessage.RCodeSuccess:
		return q.reply(p.Names, code, found{foreign: true}), nil
	case p.Names == nil || q.question.Class != dnsmessage.ClassINET:
		return q.reply(p.Names, dnsmessage.RCodeRefused, found{foreign: true}), nil
	}
	f, isPointer := p.Names.pointer(q.question.Name.String(), s.Prefix, s.Prefix6)
	if !isPointer {
		f = p.Names.address(q.question.Name.String())
	}
	switch {
	case f.foreign && len(p.Names.outside) > 0:
		return nil, &outsideQuestion{q, p.Names, s.mtu}
	case f.foreign:
		return q.reply(p.Names, dnsmessage.RCodeRefused, f), nil
	case !f.known:
		return q.reply(p.Names, dnsmessage.RCodeNameError, f), nil
	default:
		return q.reply(p.Names, dnsmessage.RCodeSuccess, f), nil
	}
}

// readQuery reads a message. It reports false for a message that gets no answer, and a code for a message that gets an error.
func readQuery(payload []byte) (q query, code dnsmessage.RCode, ok bool) {
	var p dnsmessage.Parser
	header, err := p.Start(payload)
	if err != nil || header.Response {
		return q, 0, false
	}
	q = query{header: header, limit: plainBytes, raw: payload}
	if header.OpCode != 0 {
		return q, dnsmessage.RCodeNotImplemented, true
	}
	questions, err := p.AllQuestions()
	if err != nil || len(questions) != 1 || p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, dnsmessage.RCodeFormatError, true
	}
	q.question = questions[0]
	for {
		h, err := p.AdditionalHeader()
		if err != nil {
			break
		}
		if h.Type == dnsmessage.TypeOPT {
			q.edns, q.limit = true, min(max(int(h.Class), plainBytes), ednsBytes)
		}
		if p.SkipAdditional() != nil {
			return q, dnsmessage.RCodeFormatError, true
		}
	}
	return q, dnsmessage.RCodeSuccess, true
}

// reply builds an answer. An answer about names of the cluster's own is authoritative, and one without records says who knows that.
func (q query) reply(names *Names, code dnsmessage.RCode, f found) []byte {
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{
		ID: q.header.ID, Response: true, OpCode: q.header.OpCode, Authoritative: !f.foreign, RecursionDesired: q.header.RecursionDesired,
		RecursionAvailable: names != nil && len(names.outside) > 0, RCode: code,
	})
	b.EnableCompression()
	if q.question.Name.Length > 0 {
		if b.StartQuestions() != nil || b.Question(q.question) != nil {
			return nil
		}
	}
	if b.StartAnswers() != nil {
		return nil
	}
	answered, err := q.addAnswers(&b, f)
	if err == nil && !answered && !f.foreign {
		err = addAuthority(&b)
	}
	if err == nil && q.edns {
		err = addOPT(&b)
	}
	if err != nil {
		return nil
	}
	reply, err := b.Finish()
	if err != nil {
		return nil
	}
	return reply
}

// addAnswers adds the records, and reports whether there are any.
func (q query) addAnswers(b *dnsmessage.Builder, f found) (answered bool, err error) {
	h := dnsmessage.ResourceHeader{Name: q.question.Name, Class: dnsmessage.ClassINET, TTL: recordSeconds}
	asks := func(t dnsmessage.Type) bool { return q.question.Type == t || q.question.Type == dnsmessage.TypeALL }
	switch {
	case f.pointer != "" && asks(dnsmessage.TypePTR):
		name, err := dnsmessage.NewName(f.pointer)
		if err != nil {
			return false, err
		}
		return true, b.PTRResource(h, dnsmessage.PTRResource{PTR: name})
	default:
		return q.addAddresses(b, h, f.addresses, asks)
	}
}

// addAddresses adds the addresses that are asked for, of one family or of both.
func (q query) addAddresses(b *dnsmessage.Builder, h dnsmessage.ResourceHeader, all []netip.Addr, asks func(dnsmessage.Type) bool) (answered bool, err error) {
	var addresses []netip.Addr
	for _, a := range all {
		if a.Is4() && asks(dnsmessage.TypeA) || a.Is6() && asks(dnsmessage.TypeAAAA) {
			addresses = append(addresses, a)
		}
	}
	room := q.limit - headerBytes - int(q.question.Name.Length) - 6 - optBytes
	for i := range addresses {
		a := addresses[(int(q.header.ID)+i)%len(addresses)] // others in each answer, since there may not be room for all
		if a.Is4() {
			room -= addressBytes
		} else {
			room -= sixBytes
		}
		if room < 0 {
			break
		}
		if a.Is4() {
			err = b.AResource(h, dnsmessage.AResource{A: a.As4()})
		} else {
			err = b.AAAAResource(h, dnsmessage.AAAAResource{AAAA: a.As16()})
		}
		if err != nil {
			return false, err
		}
	}
	return len(addresses) > 0, nil
}

// addAuthority adds the SOA record of the domain, by which askers know how long there is no such record (RFC 2308).
func addAuthority(b *dnsmessage.Builder) error {
	zone, err := dnsmessage.NewName(api.Domain + ".")
	if err != nil {
		return err
	}
	if err := b.StartAuthorities(); err != nil {
		return err
	}
	return b.SOAResource(dnsmessage.ResourceHeader{Name: zone, Class: dnsmessage.ClassINET, TTL: recordSeconds}, dnsmessage.SOAResource{
		NS: zone, MBox: zone, Serial: 1, Refresh: recordSeconds, Retry: recordSeconds, Expire: recordSeconds, MinTTL: recordSeconds,
	})
}

// addOPT answers EDNS with EDNS (RFC 6891, section 6.1.1).
func addOPT(b *dnsmessage.Builder) error {
	if err := b.StartAdditionals(); err != nil {
		return err
	}
	var h dnsmessage.ResourceHeader
	if err := h.SetEDNS0(ednsBytes, dnsmessage.RCodeSuccess, false); err != nil {
		return err
	}
	return b.OPTResource(h, dnsmessage.OPTResource{})
}
