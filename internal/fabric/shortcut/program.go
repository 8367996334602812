package shortcut

import (
	"encoding/binary"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// What the program reads of struct __sk_buff of linux/bpf.h, as offsets in bytes.
const (
	skbVLANPresent = 20
	skbIfindex     = 40
	skbData        = 76
	skbDataEnd     = 80
)

// What it reads of a frame, as offsets in bytes: Ethernet (IEEE 802.3), IPv4 without options (RFC 791), and the source port of UDP (RFC
// 768) or TCP (RFC 9293).
const (
	frameTo       = 0
	frameFrom     = 6
	frameType     = 12
	frameVersion  = 14
	frameFragment = 20
	frameProtocol = 23
	frameSource   = 26
	frameTarget   = 30
	framePort     = 34
	frameRead     = 36
)

const (
	versionAndLength = 0x45   // of an IPv4 header without options
	fragmentBits     = 0x3fff // the flag "more fragments" and the fragment offset
	dhcpServer       = 67     // RFC 2131, section 4.1
	passOn           = -1     // TC_ACT_UNSPEC of linux/pkt_cls.h: go on as if there were no program
	packetHost       = 0      // PACKET_HOST of linux/if_packet.h
)

// The fields of portValue, as offsets in bytes.
const (
	portAddress = 0
	portNetwork = 4
	portMAC     = 8
)

// The program's exits and the registers that hold what it needs throughout: its argument, the frame, and the sender's pins. Helpers of
// the kernel leave registers 6 to 9 alone.
const (
	toBridge = "bridge"
	toTunnel = "tunnel"
	skb      = asm.R6
	frame    = asm.R7
	sender   = asm.R8
	target   = asm.R9 // the receiver's pins
	keySlot  = -4     // of the stack: the key of a map
	linkSlot = -8     // of the stack: the receiver's link index
)

// portProgram returns what each frame that a member sends runs through.
func portProgram(m maps) asm.Instructions {
	return slices.Concat(headerChecks(), senderChecks(m), receiverChecks(m, toTunnel), redirection(), receiverElsewhere(m), ontoUnderlay(m), intoTunnel(m))
}

// headerChecks pass UDP and TCP in whole IPv4 packets without options in frames without a VLAN tag, and no answers of DHCP servers.
func headerChecks() asm.Instructions {
	return slices.Concat(frameStart(frameRead), packetChecks())
}

// frameStart passes frames without a VLAN tag of which so many bytes can be read.
func frameStart(length int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(skb, asm.R1),
		// The kernel takes a tag out of the frame before the program runs.
		asm.LoadMem(asm.R2, skb, skbVLANPresent, asm.Word),
		asm.JNE.Imm(asm.R2, 0, toBridge),

		asm.LoadMem(frame, skb, skbData, asm.Word),
		asm.LoadMem(asm.R2, skb, skbDataEnd, asm.Word),
		asm.Mov.Reg(asm.R3, frame),
		asm.Add.Imm(asm.R3, length),
		asm.JGT.Reg(asm.R3, asm.R2, toBridge),
	}
}

// packetChecks pass UDP and TCP in whole IPv4 packets without options, and no answers of DHCP servers.
func packetChecks() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, frame, frameType, asm.Half),
		asm.JNE.Imm(asm.R2, asRead(unix.ETH_P_IP), toBridge),
		asm.LoadMem(asm.R2, frame, frameVersion, asm.Byte),
		asm.JNE.Imm(asm.R2, versionAndLength, toBridge),
		asm.LoadMem(asm.R2, frame, frameFragment, asm.Half),
		asm.JSet.Imm(asm.R2, asRead(fragmentBits), toBridge),
		asm.LoadMem(asm.R2, frame, frameProtocol, asm.Byte),
		asm.JEq.Imm(asm.R2, unix.IPPROTO_TCP, "ports"),
		asm.JNE.Imm(asm.R2, unix.IPPROTO_UDP, toBridge),
		asm.LoadMem(asm.R2, frame, framePort, asm.Half).WithSymbol("ports"),
		asm.JEq.Imm(asm.R2, asRead(dhcpServer), toBridge),
	}
}

// senderChecks pass what bears the pins of the port that the frame came in at.
func senderChecks(m maps) asm.Instructions {
	return slices.Concat(
		asm.Instructions{
			asm.LoadMem(asm.R2, skb, skbIfindex, asm.Word),
			asm.StoreMem(asm.RFP, keySlot, asm.R2, asm.Word),
		},
		lookup(m.ports, keySlot, toBridge),
		asm.Instructions{asm.Mov.Reg(sender, asm.R0)},
		sameWord(sender, portAddress, frame, frameSource),
		sameMAC(sender, frame, frameFrom),
	)
}

// receiverChecks pass what goes to a port of the sender's network by the addresses that the port is pinned to. Frames to an address that no
// port here has go elsewhere.
func receiverChecks(m maps, elsewhere string) asm.Instructions {
	return slices.Concat(
		asm.Instructions{
			asm.LoadMem(asm.R2, frame, frameTarget, asm.Word),
			asm.StoreMem(asm.RFP, keySlot, asm.R2, asm.Word),
		},
		lookup(m.places, keySlot, elsewhere),
		asm.Instructions{
			asm.LoadMem(asm.R2, asm.R0, 0, asm.Word),
			asm.StoreMem(asm.RFP, linkSlot, asm.R2, asm.Word),
		},
		lookup(m.ports, linkSlot, toBridge),
		asm.Instructions{asm.Mov.Reg(target, asm.R0)},
		sameWord(target, portAddress, frame, frameTarget),
		sameWord(target, portNetwork, sender, portNetwork),
		sameMAC(target, frame, frameTo),
	)
}

// redirection hands the frame to the other end of the receiver's port. At the node's end the kernel took it for a frame to somebody else.
func redirection() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, skb),
		asm.Mov.Imm(asm.R2, packetHost),
		asm.FnSkbChangeType.Call(),
		asm.LoadMem(asm.R1, asm.RFP, linkSlot, asm.Word),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirectPeer.Call(),
		asm.Return(),

		asm.Mov.Imm(asm.R0, passOn).WithSymbol(toBridge),
		asm.Return(),
	}
}

// lookup leaves in R0 the value whose key is in a slot of the stack; without one it goes on elsewhere.
func lookup(table *ebpf.Map, slot int32, elsewhere string) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, table.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slot),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, elsewhere),
	}
}

// sameWord passes when 4 bytes at one place are those at another.
func sameWord(a asm.Register, atA int16, b asm.Register, atB int16) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, a, atA, asm.Word),
		asm.LoadMem(asm.R3, b, atB, asm.Word),
		asm.JNE.Reg(asm.R2, asm.R3, toBridge),
	}
}

// sameMAC passes when a MAC address of the frame is that of a port.
func sameMAC(port, frame asm.Register, at int16) asm.Instructions {
	return slices.Concat(
		sameWord(port, portMAC, frame, at),
		asm.Instructions{
			asm.LoadMem(asm.R2, port, portMAC+4, asm.Half),
			asm.LoadMem(asm.R3, frame, at+4, asm.Half),
			asm.JNE.Reg(asm.R2, asm.R3, toBridge),
		},
	)
}

// asRead returns a number of two bytes in network order as the program's loads see it.
func asRead(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)))
}
