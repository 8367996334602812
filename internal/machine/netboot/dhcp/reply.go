package dhcp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/nearmetal/nearmetal/internal/machine/netboot/ipxe"
)

// Sub-options of option 43 in PXE's space (PXE 2.1, table 2-1).
const (
	pxeDiscoveryControl = 6
	pxeBootMenu         = 9
	pxeMenuPrompt       = 10
	pxeEnd              = 255
	// useFileName of discovery control: boot the file this packet names, look for no boot server.
	useFileName = 1 << 3
	// noDiscovery of discovery control: neither broadcast nor multicast.
	noDiscovery = 1<<0 | 1<<1
)

// fileBytes is the room of the field "file" (RFC 2131, section 2), with its closing zero.
const fileBytes = 128

// advice is what a client is told to boot.
type advice struct {
	// file is a TFTP path or URL; empty: none.
	file string
	// local: the firmware shall go on with its next boot device.
	local   bool
	problem string
}

// advise decides what the client is told to boot. A machine that is not meant to boot is answered as quickly as one that is: iPXE gets a
// script that exits, PXE firmware a boot menu whose only item is the local disk, with no wait (PXE 2.1, type 0), so that it needs no
// loader to find out. UEFI HTTP boot knows no such answer and gets an address without a URL.
func (q *question) advise() advice {
	c := q.client
	if c.kind == system {
		return advice{}
	}
	if c.kind == iPXE {
		return advice{file: ipxe.URL(q.view.Network, c.mac, q.boot)}
	}
	if q.boot == nil {
		return advice{local: true}
	}
	file := q.view.Loaders.For(c.arch)
	switch {
	case !c.known:
		return advice{local: true, problem: q.who() + " announces no known architecture (DHCP option 93), so no loader fits it"}
	case q.boot.Architecture != "" && q.boot.Architecture != c.arch.Name:
		return advice{local: true, problem: fmt.Sprintf("%s is %s, but its boot image is for %s", q.who(), c.arch.Name, q.boot.Architecture)}
	case file == "":
		return advice{local: true, problem: fmt.Sprintf("%s is %s with %s, but no loader fits; put one of %s into the directory of loaders",
			q.who(), c.arch.Name, c.arch.Firmware, strings.Join(append(c.arch.Files, "none"), ", "))}
	case c.kind == httpBoot:
		return advice{file: ipxe.LoaderURL(q.view.Network, file)}
	default:
		return advice{file: file}
	}
}

// reply makes an OFFER or ACK; without an address it is one of ProxyDHCP, or answers an INFORM.
func (q *question) reply(kind dhcpv4.MessageType, yours netip.Addr) Decision {
	told := q.advise()
	d := Decision{Problem: told.problem}
	if q.view.Network.Proxy && told.file == "" && (q.client.kind != pxe || !told.local) {
		return d // nothing to add to the other server's answer
	}
	r := q.blank(kind)
	d.Reply = r
	if kind == dhcpv4.MessageTypeAck {
		r.ClientIPAddr = q.request.ClientIPAddr
	}
	if !q.view.Network.Proxy {
		q.addNetwork(r, yours)
	}
	if q.client.kind != system {
		q.addBoot(r, told)
	}
	return d
}

// blank is a reply of that type without content.
func (q *question) blank(kind dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	server := net.IP(q.view.Network.Address.Addr().AsSlice())
	zero := net.IPv4zero.To4()
	r := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootReply, HWType: q.request.HWType, TransactionID: q.request.TransactionID, Flags: q.request.Flags,
		ClientHWAddr: q.request.ClientHWAddr, ClientIPAddr: zero, YourIPAddr: zero, ServerIPAddr: zero,
		GatewayIPAddr: q.request.GatewayIPAddr, Options: dhcpv4.Options{},
	}
	r.UpdateOption(dhcpv4.OptMessageType(kind))
	r.UpdateOption(dhcpv4.OptServerIdentifier(server))
	for _, code := range []dhcpv4.OptionCode{
		dhcpv4.OptionClientIdentifier,      // 61: RFC 6842 wants it back
		dhcpv4.OptionRelayAgentInformation, // 82: RFC 3046, section 2.2, too
	} {
		if value := q.request.Options.Get(code); value != nil {
			r.Options.Update(dhcpv4.OptGeneric(code, value))
		}
	}
	return r
}

// refusal is a NAK. It is broadcast, also by a relay (RFC 2131, section 4.3.2): the client can't use the address it has.
func (q *question) refusal() *dhcpv4.DHCPv4 {
	r := q.blank(dhcpv4.MessageTypeNak)
	r.SetBroadcast()
	return r
}

// addNetwork tells address and network.
func (q *question) addNetwork(r *dhcpv4.DHCPv4, yours netip.Addr) {
	n := q.view.Network
	r.UpdateOption(dhcpv4.OptSubnetMask(net.CIDRMask(n.Address.Bits(), 32)))
	r.UpdateOption(dhcpv4.OptBroadcastAddress(n.Broadcast().AsSlice()))
	if n.Router.IsValid() {
		r.UpdateOption(dhcpv4.OptRouter(n.Router.AsSlice()))
	}
	if len(n.Nameservers) > 0 {
		var servers []net.IP
		for _, s := range n.Nameservers {
			servers = append(servers, s.AsSlice())
		}
		r.UpdateOption(dhcpv4.OptDNS(servers...))
	}
	if !yours.IsValid() {
		return
	}
	r.YourIPAddr = yours.AsSlice()
	r.UpdateOption(dhcpv4.OptIPAddressLeaseTime(leaseTime))
	r.UpdateOption(dhcpv4.OptRenewTimeValue(leaseTime / 2))
	r.UpdateOption(dhcpv4.OptRebindingTimeValue(leaseTime * 7 / 8))
}

// addBoot tells what to boot.
func (q *question) addBoot(r *dhcpv4.DHCPv4, told advice) {
	if told.file != "" {
		server := q.view.Network.Address.Addr()
		r.ServerIPAddr = server.AsSlice() // "next server"
		if len(told.file) < fileBytes {
			r.BootFileName = told.file
		}
		// Option 67 is for those that ask, and for UEFI HTTP boot, which looks nowhere else; some old ROMs read it beside the field.
		if q.client.kind == httpBoot || q.request.IsOptionRequested(dhcpv4.OptionBootfileName) || len(told.file) >= fileBytes {
			r.UpdateOption(dhcpv4.OptBootFileName(told.file))
		}
		if q.request.IsOptionRequested(dhcpv4.OptionTFTPServerName) && q.client.kind == pxe {
			r.UpdateOption(dhcpv4.OptTFTPServerName(server.String()))
		}
	}
	switch q.client.kind {
	case httpBoot:
		if told.file != "" {
			r.UpdateOption(dhcpv4.OptClassIdentifier(classHTTP))
		}
	case iPXE:
		r.UpdateOption(dhcpv4.OptClassIdentifier(classPXE)) // by it iPXE knows a ProxyDHCP offer
		if !q.view.Network.Proxy {
			r.Options.Update(dhcpv4.OptGeneric(optionIPXE, []byte{ipxeNoPXE, 1, 1}))
		}
	case pxe:
		r.UpdateOption(dhcpv4.OptClassIdentifier(classPXE))
		r.Options.Update(dhcpv4.OptGeneric(dhcpv4.OptionVendorSpecificInformation, vendorOptions(told)))
	}
	if id := q.request.Options.Get(dhcpv4.OptionClientMachineIdentifier); id != nil {
		r.Options.Update(dhcpv4.OptGeneric(dhcpv4.OptionClientMachineIdentifier, id)) // 97, RFC 4578: as it came
	}
}

// vendorOptions is option 43 for PXE firmware.
func vendorOptions(told advice) []byte {
	if !told.local {
		return []byte{pxeDiscoveryControl, 1, useFileName, pxeEnd}
	}
	const item, prompt = "Local boot", "Not meant to boot from the network"
	v := []byte{pxeDiscoveryControl, 1, noDiscovery}
	v = append(v, pxeBootMenu, byte(2+1+len(item)))
	v = binary.BigEndian.AppendUint16(v, 0) // type 0: the next boot device
	v = append(append(v, byte(len(item))), item...)
	v = append(v, pxeMenuPrompt, byte(1+len(prompt)), 0) // 0 seconds: take the first item
	return append(append(v, prompt...), pxeEnd)
}
