package tftp

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func rrq(fields ...string) []byte {
	return append([]byte{0, opRead}, strings.Join(fields, "\x00")+"\x00"...)
}

func TestRequestsAreReadAsTheStandardsSay(t *testing.T) {
	for name, c := range map[string]struct {
		packet []byte
		want   string
	}{
		"plain (RFC 1350)":                    {rrq("a.efi", "octet"), "a.efi 512x1 []"},
		"mode in any case":                    {rrq("a.efi", "OcTeT"), "a.efi 512x1 []"},
		"blksize (RFC 2348)":                  {rrq("a", "octet", "blksize", "1400"), "a 1400x1 [blksize]"},
		"blksize beyond the MTU is cut":       {rrq("a", "octet", "BLKSIZE", "8192"), "a 1468x1 [blksize]"},
		"blksize out of range is passed over": {rrq("a", "octet", "blksize", "7"), "a 512x1 []"},
		"windowsize (RFC 7440)":               {rrq("a", "octet", "windowsize", "16"), "a 512x16 [windowsize]"},
		"windowsize is bounded":               {rrq("a", "octet", "windowsize", "65535"), "a 512x64 [windowsize]"},
		"tsize, timeout (RFC 2349)":           {rrq("a", "octet", "tsize", "0", "timeout", "3"), "a 512x1 [tsize timeout]"},
		"a timeout that holds a transfer":     {rrq("a", "octet", "timeout", "255"), "a 512x1 []"},
		"unknown option":                      {rrq("a", "octet", "multicast", ""), "a 512x1 []"},
		"twice the same":                      {rrq("a", "octet", "blksize", "600", "blksize", "700"), "a 600x1 [blksize]"},
		"netascii":                            {rrq("a", "netascii"), "error"},
		"no file":                             {rrq("", "octet"), "error"},
		"no end":                              {[]byte{0, 1, 'a', 0, 'o'}, "error"},
		"a write":                             {append([]byte{0, opWrite}, "a\x00octet\x00"...), "error"},
	} {
		r, err := parseRequest(c.packet, 1468)
		got := fmt.Sprintf("%s %dx%d %v", r.name, r.block, r.window, r.asked)
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, c.want)
		}
	}
}

func TestTheAnswerToOptionsIsInTheirOrder(t *testing.T) {
	r, err := parseRequest(rrq("a", "octet", "tsize", "0", "blksize", "1400", "windowsize", "8"), 1468)
	if err != nil {
		t.Fatal(err)
	}
	want := "\x00\x06tsize\x0070000\x00blksize\x001400\x00windowsize\x008\x00"
	if got := string(r.oack(70000)); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// places is a server that puts nothing on a wire.
func places() *Server {
	s := &Server{transfers: map[netip.AddrPort]place{}, clients: map[netip.Addr]int{}, log: slog.New(slog.DiscardHandler)}
	for range 2 {
		s.lanes = append(s.lanes, &lane{gone: s.leave, transfers: map[netip.AddrPort]*transfer{}})
	}
	return s
}

// ask is a request of a client for a file; it returns the transfer that it began, if any.
func (s *Server) ask(t *testing.T, from string, file string) *transfer {
	t.Helper()
	return s.askAt(t, from, file, time.Now())
}

func (s *Server) askAt(t *testing.T, from string, file string, now time.Time) *transfer {
	t.Helper()
	r, err := parseRequest(rrq(file, "octet", "blksize", "1024"), 1468)
	if err != nil {
		t.Fatal(err)
	}
	asked := newTransfer(netip.MustParseAddrPort(from), r, make([]byte, 5000), now)
	l, ok := s.enter(asked)
	if !ok {
		return nil
	}
	l.transfers[asked.client] = asked
	return asked
}

func TestOneClientHasFewTransfers(t *testing.T) {
	s := places()
	first := s.ask(t, "10.77.1.1:2000", "a")
	for i := range maxPerClient - 1 {
		if s.ask(t, fmt.Sprintf("10.77.1.1:%d", 3000+i), "a") == nil {
			t.Fatalf("transfer %d is refused", i+2)
		}
	}
	if s.ask(t, "10.77.1.1:4000", "a") != nil {
		t.Errorf("one client has %d transfers", maxPerClient+1)
	}
	if s.ask(t, "10.77.1.2:2000", "a") == nil {
		t.Error("another client is refused")
	}
	s.transfers[first.client].lane.end(first, nil)
	if s.ask(t, "10.77.1.1:4000", "a") == nil {
		t.Error("a transfer that has ended keeps its place")
	}
}

func TestARepeatedRequestBeginsNothingAndANewOneAnew(t *testing.T) {
	s := places()
	first := s.ask(t, "10.77.1.1:2000", "a")
	if first == nil || s.ask(t, "10.77.1.1:2000", "a") != nil {
		t.Fatal("a request that came twice begins a second transfer, or the first is refused")
	}
	// Firmware that asks for the size first, gives up without a word, and asks again from the same port.
	other := s.ask(t, "10.77.1.1:2000", "b")
	if other == nil {
		t.Fatal("a client that has given up a transfer must wait for its end")
	}
	heard := time.Now()
	if _, err := other.hear([]byte{0, opAck, 0, 0}, heard); err != nil {
		t.Fatal(err)
	}
	// A client that waited too long for the answer has asked twice; the second is read when it has answered the first.
	if s.askAt(t, "10.77.1.1:2000", "b", heard.Add(silence-1)) != nil {
		t.Fatal("a late repetition of the request ends the transfer that its client is amid")
	}
	lane := s.transfers[other.client].lane
	again := s.askAt(t, "10.77.1.1:2000", "b", heard.Add(silence))
	if again == nil {
		t.Fatal("a client that begins anew must wait for the end of the transfer before")
	}
	if s.transfers[again.client].lane == lane {
		t.Error("the client can't tell the two transfers apart: they come from the same port")
	}
	if n := s.clients[again.client.Addr()]; n != 1 || len(s.transfers) != 1 {
		t.Errorf("%d transfers are counted for the client, %d in all; it has one", n, len(s.transfers))
	}
	s.transfers[again.client].lane.end(again, nil)
	if len(s.clients) != 0 || len(s.transfers) != 0 {
		t.Errorf("after the last transfer %v and %v are left", s.clients, s.transfers)
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add(rrq("a", "octet", "blksize", "1400", "windowsize", "8", "tsize", "0", "timeout", "1"))
	f.Add([]byte{0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, packet []byte) {
		r, err := parseRequest(packet, 1468)
		if err != nil {
			return
		}
		if r.block < minBlock || r.block > 1468 || r.window < 1 || r.window > maxWindow || r.name == "" || strings.Contains(r.name, "\x00") {
			t.Errorf("%+v", r)
		}
		if answer := r.oack(1 << 20); len(answer) > 512 {
			t.Errorf("the answer has %d bytes", len(answer)) // RFC 2347: it has the size of a default block
		}
	})
}
