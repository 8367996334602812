package server

import (
	"net/netip"
	"os"
	"strings"
)

// nameservers are the machine's resolvers (resolv.conf(5)) that others can reach too: loopback ones are left out.
func nameservers(path string) []netip.Addr {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil // a machine without resolvers gives its clusters none
	}
	var out []netip.Addr
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if address, err := netip.ParseAddr(fields[1]); err == nil && address.Is4() && !address.IsLoopback() {
			out = append(out, address)
		}
	}
	return out
}
