package plan

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// The names by which this product's links are known; whatever else bears them is removed.
const (
	bridgePrefix = fabric.BridgePrefix // nmbrINDEX, the network's bridge
	tunnelPrefix = "nmvx"              // nmvxINDEX, its VXLAN tunnel
	vlanPrefix   = "nmvl"              // nmvlINDEX, its VLAN on the trunk
	// ShaperName is the device that all packets from ports with rates pass.
	ShaperName = "nmifb"
	// CipherName is the WireGuard device of all tunnels.
	CipherName = "nmwg"
	portPrefix = fabric.DevicePrefix // nmpHASH, the host's end of a member's veth pair, or a virtual machine's TAP device
)

// BridgeName returns the name of a network's bridge.
func BridgeName(index int) string { return fabric.BridgeName(index) }

// TunnelName returns the name of a network's VXLAN tunnel.
func TunnelName(index int) string { return tunnelPrefix + strconv.Itoa(index) }

// VLANName returns the name of a network's sub-interface of the trunk.
func VLANName(index int) string { return vlanPrefix + strconv.Itoa(index) }

// PortName returns the name of the host's link of a port.
func PortName(id string) string { return fabric.DeviceName(id) }

// GatewayMAC returns the MAC address of a network's bridge.
func GatewayMAC(index int) string { return fabric.GatewayMAC(index) }

// OwnLink reports whether a link of this name is this product's, and of which network, 0 for ports and the devices that all networks share.
func OwnLink(name string) (index int, own bool) {
	if name == ShaperName || name == CipherName {
		return 0, true
	}
	for _, prefix := range []string{bridgePrefix, tunnelPrefix, vlanPrefix} {
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
