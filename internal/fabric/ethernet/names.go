package ethernet

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// The names by which this product's links are known; whatever else bears them is removed.
const (
	bridgePrefix = "nmbr" // nmbrINDEX, the network's bridge
	tunnelPrefix = "nmvx" // nmvxINDEX, its VXLAN tunnel
	portPrefix   = "nmp"  // nmpHASH, the host's end of a member's veth pair
	memberLink   = "eth0" // the member's end
)

func bridgeName(index int) string { return bridgePrefix + strconv.Itoa(index) }

func tunnelName(index int) string { return tunnelPrefix + strconv.Itoa(index) }

// PortName is the name of the host's link of the member with this assignment ID.
func PortName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return portPrefix + hex.EncodeToString(sum[:5])
}

// gatewayMAC is the address of a network's bridge, the same on every node, so that a member's gateway is always its own node's.
// Its first octet (locally administered, IEEE 802c) keeps it apart from members' addresses.
func gatewayMAC(index int) net.HardwareAddr {
	return net.HardwareAddr{0x06, 'n', 'm', byte(index >> 8), byte(index), 0x01}
}

// ownLink tells whether a link of this name is this product's, and of which network, 0 for ports.
func ownLink(name string) (index int, own bool) {
	for _, prefix := range []string{bridgePrefix, tunnelPrefix} {
		if digits, ok := strings.CutPrefix(name, prefix); ok {
			index, err := strconv.Atoi(digits)
			return index, err == nil && index >= 1 && index <= fabric.MaxIndex
		}
	}
	if digits, ok := strings.CutPrefix(name, portPrefix); ok && len(digits) == 10 {
		_, err := hex.DecodeString(digits)
		return 0, err == nil
	}
	return 0, false
}

// normalMAC writes a MAC address as the kernel's tools do; s has been validated.
func normalMAC(s string) string {
	mac, err := net.ParseMAC(s)
	if err != nil {
		return fmt.Sprintf("invalid(%s)", s)
	}
	return mac.String()
}
