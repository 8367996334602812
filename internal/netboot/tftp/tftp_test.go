package tftp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
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

func TestOneClientHasFewTransfersAndARepeatedRequestNoSecondOne(t *testing.T) {
	s := &Server{transfers: map[netip.AddrPort]bool{}, clients: map[netip.Addr]int{}}
	from := func(port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr("10.77.1.1"), uint16(port))
	}
	if !s.enter(from(2000)) || s.enter(from(2000)) {
		t.Error("a repeated request of a transfer that goes on begins a second one, or the first is refused")
	}
	for i := range maxPerClient - 1 {
		if !s.enter(from(3000 + i)) {
			t.Fatalf("transfer %d is refused", i+2)
		}
	}
	if s.enter(from(4000)) {
		t.Errorf("one client has %d transfers", maxPerClient+1)
	}
	if !s.enter(netip.MustParseAddrPort("10.77.1.2:2000")) {
		t.Error("another client is refused")
	}
	s.leave(from(2000))
	if !s.enter(from(4000)) {
		t.Error("a transfer that has ended keeps its place")
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
