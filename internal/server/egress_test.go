package server

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestRangesAreOpenedBesideTheSitesOwnNetworks(t *testing.T) {
	own := []ownNetwork{{"the provisioning network", netip.MustParsePrefix("10.9.0.1/24")}, {"no network", netip.Prefix{}}}
	open, err := openRanges([]string{"10.20.0.0/16", "192.168.7.9"}, own)
	if want := []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("192.168.7.9/32")}; err != nil || !slices.Equal(open, want) {
		t.Errorf("got %v, %v; want %v", open, err, want)
	}
	for text, want := range map[string]string{
		"10.20.0.0/33": "not an IPv4 prefix", "fd00::/8": "not an IPv4 prefix", "0.0.0.0/0": "not an IPv4 prefix", "": "not an IPv4 prefix",
		"10.20.1.0/16": "write 10.20.0.0/16", "10.0.0.0/8": "overlaps the provisioning network (10.9.0.0/24)",
	} {
		if open, err := openRanges([]string{text}, own); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, %v; want an error with %q", text, open, err, want)
		}
	}
	cfg := testConfig(t.TempDir(), "127.0.0.1:0")
	cfg.EgressOpen = []string{"10.64.0.0/16"}
	if s, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "the network pool (10.64.0.0/10)") {
		t.Errorf("a server with a range in its pool of networks: %v", err)
		s.Close()
	}
}
