package dhcp

import (
	"encoding/binary"
	"encoding/hex"
	"net"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/nearmetal/nearmetal/internal/machine/netboot/loaders"
)

// kind is what sent a packet.
type kind int

const (
	system   kind = iota // an operating system, or the boot agent: wants an address only
	pxe                  // PXE firmware: wants a file over TFTP
	httpBoot             // UEFI HTTP boot: wants a URL
	iPXE                 // iPXE: wants a script's URL
)

// Vendor classes (option 60, RFC 2132) by which firmware says what it is, and what the answer must say for it to listen.
const (
	classPXE  = "PXEClient"  // PXE 2.1, section 2.2.3
	classHTTP = "HTTPClient" // UEFI 2.10, section 24.7.2
)

// optionIPXE encapsulates iPXE's own options (Etherboot's, 175, registered with IANA).
const optionIPXE = dhcpv4.GenericOptionCode(175)

// iPXE's sub-options of option 175. Those of features are 1 where iPXE was built with them.
const (
	ipxeHTTP     = 0x13 // speaks HTTP
	ipxeBzImage  = 0x18 // boots Linux from BIOS
	ipxeEFI      = 0x24 // runs as an EFI application, which boots Linux by its EFI stub
	ipxeNoPXE    = 0xb0 // 176, told by the server: don't wait for ProxyDHCP
	featureOnset = 0x10 // features begin here; below are settings
)

// client is what a request tells of its sender.
type client struct {
	mac   string
	kind  kind
	arch  loaders.Architecture
	known bool // arch is
	// port is the circuit a relay saw it at, "" without one.
	port string
}

// classify reads who sends a request. Nothing but the hardware address identifies it: firmware, iPXE and the system of one boot send
// different client identifiers (option 61), and must get the same address.
func classify(request *dhcpv4.DHCPv4) (client, bool) {
	c := client{port: circuit(request)}
	if request.HWType != iana.HWTypeEthernet || len(request.ClientHWAddr) != 6 || !usable(request.ClientHWAddr) {
		return c, false
	}
	c.mac = request.ClientHWAddr.String()
	var types []uint16
	for raw := request.Options.Get(dhcpv4.OptionClientSystemArchitectureType); len(raw) >= 2; raw = raw[2:] {
		types = append(types, binary.BigEndian.Uint16(raw))
	}
	c.arch, c.known = loaders.Find(types)
	class := string(request.Options.Get(dhcpv4.OptionClassIdentifier))
	switch {
	case isIPXE(request):
		c.kind = iPXE
	case strings.HasPrefix(class, classHTTP):
		c.kind = httpBoot
	case strings.HasPrefix(class, classPXE):
		c.kind = pxe
	}
	if c.kind == iPXE && !c.known {
		c.arch, c.known = loaders.Find([]uint16{0}) // the BIOS builds before 2011 sent no option 93
	}
	return c, true
}

// usable reports whether a hardware address can be a machine's: not a group's, and not all zeroes.
func usable(mac net.HardwareAddr) bool {
	return mac[0]&1 == 0 && mac.String() != "00:00:00:00:00:00"
}

// isIPXE reports whether a request comes from an iPXE that can run our scripts: by its user class (option 77, as plain text or as RFC 3004
// has it), or by its own option, and unless it says that it lacks HTTP or can't boot Linux. One that can't gets our iPXE as firmware does.
func isIPXE(request *dhcpv4.DHCPv4) bool {
	said := false
	for _, class := range request.UserClass() {
		said = said || class == "iPXE"
	}
	own := request.Options.Get(optionIPXE)
	if own == nil {
		return said
	}
	features, listed := map[byte]bool{}, false
	for len(own) >= 2 && own[0] != 0xff {
		if own[0] == 0 {
			own = own[1:]
			continue
		}
		size := int(own[1])
		if len(own) < 2+size {
			break
		}
		if own[0] >= featureOnset && own[0] < 0x80 {
			listed = true
			features[own[0]] = size > 0 && own[2] != 0
		}
		own = own[2+size:]
	}
	return !listed || features[ipxeHTTP] && (features[ipxeBzImage] || features[ipxeEFI])
}

// circuit is the circuit ID of a relay (option 82, sub-option 1, RFC 3046): as text where it is some, else in hexadecimal.
func circuit(request *dhcpv4.DHCPv4) string {
	info := request.RelayAgentInfo()
	if info == nil {
		return ""
	}
	id := info.Get(dhcpv4.AgentCircuitIDSubOption)
	if strings.ContainsFunc(string(id), func(r rune) bool { return r <= ' ' || r > '~' }) {
		return hex.EncodeToString(id)
	}
	return string(id)
}
