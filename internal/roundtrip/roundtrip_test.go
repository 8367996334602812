package roundtrip

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"

	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestAPeerThatAnswersHasARoundTripAndOthersHaveNone(t *testing.T) {
	self, silent := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.9")
	got, err := Measure(t.Context(), self, []netip.Addr{self, netip.MustParseAddr("::1")})
	if errors.Is(err, os.ErrPermission) {
		needs.Missing(t, "a raw socket needs root: %v", err)
	}
	if err != nil || len(got) != 1 || got[self] <= 0 || got[self] > patience {
		t.Errorf("to itself: %v (%v), want one round trip", got, err)
	}
	// The kernel answers for each address of the loopback network, and so from another one than that of a peer behind nothing.
	if got, err := Measure(t.Context(), self, []netip.Addr{netip.MustParseAddr("240.0.0.1")}); err != nil || len(got) > 0 {
		t.Errorf("to an address that nobody has: %v (%v), want nothing", got, err)
	}
	if _, err := Measure(t.Context(), netip.MustParseAddr("::1"), []netip.Addr{silent}); err == nil {
		t.Error("from an IPv6 address, something was measured")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := Measure(ctx, self, []netip.Addr{self}); !errors.Is(err, context.Canceled) || len(got) > 0 {
		t.Errorf("after its end: %v (%v)", got, err)
	}
}

func TestOnlyThePeersOwnAnswerToTheLastPacketCounts(t *testing.T) {
	peer := netip.MustParseAddr("198.18.0.2")
	m := &measurer{seq: 7, nonce: [nonceBytes]byte{1, 2, 3}}
	from := func(text string) net.Addr { return &net.IPAddr{IP: net.ParseIP(text)} }
	packet := func(kind icmp.Type, seq int, data []byte) []byte {
		text, err := (&icmp.Message{Type: kind, Body: &icmp.Echo{ID: 0x102, Seq: seq, Data: data}}).Marshal(nil)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	good := packet(ipv4.ICMPTypeEchoReply, 7, m.nonce[:])
	for name, c := range map[string]struct {
		packet []byte
		by     net.Addr
		want   bool
	}{
		"the answer":                      {good, from("198.18.0.2"), true},
		"another node's":                  {good, from("198.18.0.3"), false},
		"an answer to an earlier packet":  {packet(ipv4.ICMPTypeEchoReply, 6, m.nonce[:]), from("198.18.0.2"), false},
		"an answer to another program":    {packet(ipv4.ICMPTypeEchoReply, 7, []byte("ping")), from("198.18.0.2"), false},
		"the request, as loopback has it": {packet(ipv4.ICMPTypeEcho, 7, m.nonce[:]), from("198.18.0.2"), false},
		"half a packet":                   {good[:5], from("198.18.0.2"), false},
		"by another protocol's address":   {good, &net.TCPAddr{}, false},
	} {
		if got := m.answers(c.packet, c.by, peer); got != c.want {
			t.Errorf("%s: counts: %t, want %t", name, got, c.want)
		}
	}
}
