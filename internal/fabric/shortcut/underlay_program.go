package shortcut

import (
	"slices"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// What more the programs read of struct __sk_buff of linux/bpf.h, as offsets in bytes.
const (
	skbLength  = 0
	skbType    = 4
	skbGSOSize = 176
)

// The fields of peerValue, as offsets in bytes. Network is where portValue has it.
const (
	peerLocal = 0
	peerLimit = 8
)

// Outer headers (RFC 7348, section 5) as offsets in bytes: Ethernet, IPv4 without options, UDP and VXLAN; the inner frame follows.
const (
	outerTOS      = 15
	outerLength   = 16
	outerFragment = 20
	outerTTL      = 22
	outerChecksum = 24
	outerFrom     = 26
	outerTo       = 30
	outerUDP      = 34
	outerPort     = 36
	outerUDPSize  = 38
	outerVXLAN    = 42
	outerVNI      = 46
	innerFrame    = 50 // of the first byte; and what the outer headers add to a frame's length
	outerHeaders  = innerFrame + frameVersion
)

const (
	vxlanPort      = 4789       // RFC 7348, section 5
	vxlanFlags     = 0x08000000 // the flag I, and no other
	dontFragment   = 0x4000
	ttlAndUDP      = 64<<8 | unix.IPPROTO_UDP
	ecnBits        = 3 // RFC 3168, section 5, of the TOS
	ecnCE          = 3
	tcpOffset      = 46              // in a frame, the byte with the length of the TCP header
	longestPacket  = 65535           // of IPv4
	firstPort      = 0x8000          // the source ports that flows are spread over, as RFC 7348 advises
	portBits       = 0x3fff          //
	drop           = 2               // TC_ACT_SHOT of linux/pkt_cls.h
	inMAC          = 1               // BPF_ADJ_ROOM_MAC of linux/bpf.h
	fixedGSO       = 1               // BPF_F_ADJ_ROOM_FIXED_GSO: members' MTU leaves room for the outer headers
	asVXLAN        = 2 | 1<<4 | 1<<6 // BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, _L4_UDP, _L2_ETH
	innerEthernet  = 14 << 56        // BPF_F_ADJ_ROOM_ENCAP_L2: the length of the inner Ethernet header
	underlayRead   = innerFrame + frameRead
	toDevice       = "device"
	neighbourBytes = 20 // struct bpf_redir_neigh of linux/bpf.h
)

// Places of the stack for the program that writes outer headers. Those begin at an address that aligns their fields.
const (
	outSlot = -20 // the link index of the underlay
	headers = -90 // outer headers and the inner Ethernet header; then where the neighbour is written
	nextHop = -88
)

// ontoUnderlay writes the headers of VXLAN in front of a frame, and hands it to the link of the underlay. What it can't do is left to the
// tunnel's device: a frame to a node behind a router, one that is marked for congestion, and one that would be
// longer than the underlay's MTU, or cut into pieces that are. The kernel makes no frame longer than 16 KiB that is not to be cut; so with
// a larger MTU, such frames go to the device, too.
func ontoUnderlay(m maps) asm.Instructions {
	return slices.Concat(
		asm.Instructions{
			asm.LoadMem(asm.R2, target, remotePeer, asm.Word),
			asm.StoreMem(asm.RFP, peerSlot, asm.R2, asm.Word),
			asm.LoadMem(asm.R2, sender, portNetwork, asm.Word),
			asm.StoreMem(asm.RFP, peerSlot+4, asm.R2, asm.Word),
		},
		lookup(m.peers, peerSlot, toDevice),
		asm.Instructions{
			asm.Mov.Reg(target, asm.R0),
			asm.LoadMem(asm.R2, target, peerLocal, asm.Word),
			asm.StoreMem(asm.RFP, keySlot, asm.R2, asm.Word),
		},
		lookup(m.underlays, keySlot, toDevice),
		asm.Instructions{
			asm.LoadMem(asm.R2, asm.R0, 0, asm.Word),
			asm.StoreMem(asm.RFP, outSlot, asm.R2, asm.Word),
		},
		lengthChecks(), outerEthernetAndIP(), outerUDPAndVXLAN(),
		asm.Instructions{
			asm.Mov.Reg(asm.R1, skb),
			asm.Mov.Imm(asm.R2, innerFrame),
			asm.Mov.Imm(asm.R3, inMAC),
			asm.LoadImm(asm.R4, fixedGSO|asVXLAN|innerEthernet, asm.DWord),
			asm.FnSkbAdjustRoom.Call(),
			asm.JNE.Imm(asm.R0, 0, toDevice),
		},
		storeFrameStart(headers, outerHeaders),
		asm.Instructions{
			asm.StoreImm(asm.RFP, nextHop, unix.AF_INET, asm.Word),
			asm.LoadMem(asm.R2, asm.RFP, peerSlot, asm.Word),
			asm.StoreMem(asm.RFP, nextHop+4, asm.R2, asm.Word),
			asm.StoreImm(asm.RFP, nextHop+8, 0, asm.Word),
			asm.StoreImm(asm.RFP, nextHop+12, 0, asm.Word),
			asm.StoreImm(asm.RFP, nextHop+16, 0, asm.Word),
			asm.LoadMem(asm.R1, asm.RFP, outSlot, asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, nextHop),
			asm.Mov.Imm(asm.R3, neighbourBytes),
			asm.Mov.Imm(asm.R4, 0),
			asm.FnRedirectNeigh.Call(),
			asm.Return(),
		},
	)
}

// lengthChecks pass what fits the network's MTU, as it is or in the pieces that TCP left to the hardware to cut. It leaves the length of the
// outer IPv4 packet in R5.
func lengthChecks() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R4, target, peerLimit, asm.Word),
		asm.LoadMem(asm.R5, skb, skbLength, asm.Word),
		asm.JGT.Imm(asm.R5, longestPacket-innerFrame+frameVersion, toDevice), // without its Ethernet header, and with the outer headers
		asm.LoadMem(asm.R3, skb, skbGSOSize, asm.Word),
		asm.JNE.Imm(asm.R3, 0, "pieces"),
		asm.Mov.Reg(asm.R3, asm.R5),
		asm.Sub.Imm(asm.R3, frameVersion),
		asm.JGT.Reg(asm.R3, asm.R4, toDevice),
		asm.Ja.Label("fits"),

		asm.LoadMem(asm.R2, frame, frameProtocol, asm.Byte).WithSymbol("pieces"),
		asm.JNE.Imm(asm.R2, unix.IPPROTO_TCP, toDevice),
		asm.LoadMem(asm.R2, skb, skbDataEnd, asm.Word),
		asm.Mov.Reg(asm.R1, frame),
		asm.Add.Imm(asm.R1, tcpOffset+1),
		asm.JGT.Reg(asm.R1, asm.R2, toDevice),
		asm.LoadMem(asm.R2, frame, tcpOffset, asm.Byte),
		asm.RSh.Imm(asm.R2, 4),
		asm.LSh.Imm(asm.R2, 2), // in words of 4 bytes
		asm.Add.Reg(asm.R3, asm.R2),
		asm.Add.Imm(asm.R3, framePort-frameVersion),
		asm.JGT.Reg(asm.R3, asm.R4, toDevice),

		asm.Add.Imm(asm.R5, innerFrame-frameVersion).WithSymbol("fits"),
	}
}

// outerEthernetAndIP writes these headers; the kernel fills in MAC addresses.
func outerEthernetAndIP() asm.Instructions {
	ins := asm.Instructions{
		asm.LoadMem(asm.R2, frame, outerTOS, asm.Byte),
		asm.And.Imm(asm.R2, ecnBits),
		asm.JEq.Imm(asm.R2, ecnCE, toDevice),
		asm.StoreImm(asm.RFP, headers+frameVersion, versionAndLength, asm.Byte),
		asm.StoreMem(asm.RFP, headers+outerTOS, asm.R2, asm.Byte),
	}
	for at := int16(0); at < frameType; at += 2 {
		ins = append(ins, asm.StoreImm(asm.RFP, headers+at, 0, asm.Half))
	}
	ins = append(ins,
		asm.StoreImm(asm.RFP, headers+frameType, int64(asRead(unix.ETH_P_IP)), asm.Half),
		asm.Mov.Reg(asm.R2, asm.R5),
		asm.HostTo(asm.BE, asm.R2, asm.Half),
		asm.StoreMem(asm.RFP, headers+outerLength, asm.R2, asm.Half),
		asm.StoreImm(asm.RFP, headers+outerLength+2, 0, asm.Half), // no identification, since it is never cut (RFC 6864, section 4.1)
		asm.StoreImm(asm.RFP, headers+outerFragment, int64(asRead(dontFragment)), asm.Half),
		asm.StoreImm(asm.RFP, headers+outerTTL, int64(asRead(ttlAndUDP)), asm.Half),
		asm.StoreImm(asm.RFP, headers+outerChecksum, 0, asm.Half),
		asm.LoadMem(asm.R2, target, peerLocal, asm.Word),
		asm.StoreMem(asm.RFP, headers+outerFrom, asm.R2, asm.Word),
		asm.LoadMem(asm.R2, asm.RFP, peerSlot, asm.Word),
		asm.StoreMem(asm.RFP, headers+outerTo, asm.R2, asm.Word),
		asm.Mov.Imm(asm.R2, 0),
	)
	for at := int16(frameVersion); at < outerUDP; at += 2 {
		ins = append(ins, asm.LoadMem(asm.R3, asm.RFP, headers+at, asm.Half), asm.Add.Reg(asm.R2, asm.R3))
	}
	for range 2 { // the sum is of ones' complement (RFC 1071)
		ins = append(ins, asm.Mov.Reg(asm.R3, asm.R2), asm.RSh.Imm(asm.R3, 16), asm.And.Imm(asm.R2, 0xffff), asm.Add.Reg(asm.R2, asm.R3))
	}
	return append(ins, asm.Xor.Imm(asm.R2, 0xffff), asm.StoreMem(asm.RFP, headers+outerChecksum, asm.R2, asm.Half))
}

// outerUDPAndVXLAN writes these headers and the inner Ethernet header. There is no UDP checksum (RFC 7348, section 5); a flow keeps its port.
func outerUDPAndVXLAN() asm.Instructions {
	ins := asm.Instructions{
		asm.Sub.Imm(asm.R5, outerUDP-frameVersion),
		asm.HostTo(asm.BE, asm.R5, asm.Half),
		asm.StoreMem(asm.RFP, headers+outerUDPSize, asm.R5, asm.Half),
		asm.StoreImm(asm.RFP, headers+outerUDPSize+2, 0, asm.Half),
		asm.StoreImm(asm.RFP, headers+outerPort, int64(asRead(vxlanPort)), asm.Half),
		asm.Mov.Reg(asm.R1, skb),
		asm.FnGetHashRecalc.Call(),
		asm.Mov.Reg(asm.R2, asm.R0),
		asm.RSh.Imm(asm.R2, 16),
		asm.Xor.Reg(asm.R0, asm.R2),
		asm.And.Imm(asm.R0, portBits),
		asm.Or.Imm(asm.R0, firstPort),
		asm.HostTo(asm.BE, asm.R0, asm.Half),
		asm.StoreMem(asm.RFP, headers+outerUDP, asm.R0, asm.Half),
		asm.Mov.Imm(asm.R2, vxlanFlags),
		asm.HostTo(asm.BE, asm.R2, asm.Word),
		asm.StoreMem(asm.RFP, headers+outerVXLAN, asm.R2, asm.Word),
		asm.LoadMem(asm.R2, sender, portNetwork, asm.Word),
		asm.LSh.Imm(asm.R2, 8),
		asm.HostTo(asm.BE, asm.R2, asm.Word),
		asm.StoreMem(asm.RFP, headers+outerVNI, asm.R2, asm.Word),
	}
	return append(ins, copyEthernet(0, headers+innerFrame)...)
}

// copyEthernet copies the Ethernet header that is so far into the frame to the stack.
func copyEthernet(at, to int16) asm.Instructions {
	var ins asm.Instructions
	for i := int16(0); i < frameVersion; i += 2 {
		ins = append(ins, asm.LoadMem(asm.R2, frame, at+i, asm.Half), asm.StoreMem(asm.RFP, to+i, asm.R2, asm.Half))
	}
	return ins
}

// storeFrameStart writes so many bytes of the stack over the first of the frame, whose length was changed. A frame that this fails for is lost.
func storeFrameStart(from, length int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, skb),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, from),
		asm.Mov.Imm(asm.R4, length),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
		asm.JEq.Imm(asm.R0, 0, "stored"),
		asm.Mov.Imm(asm.R0, drop),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("stored"),
	}
}

// underlayProgram returns what each frame that comes in from the underlay runs through. It takes VXLAN of our networks from their peers, and
// leaves all else, and all that it is not sure of, to the node's stack and the tunnel's device.
func underlayProgram(m maps) asm.Instructions {
	delivery := receiverChecks(m, toBridge)
	delivery[0] = delivery[0].WithSymbol("known")
	return slices.Concat(
		frameStart(underlayRead), outerChecks(), peerChecks(m),
		asm.Instructions{
			asm.Add.Imm(frame, innerFrame),
			asm.LoadMem(asm.R2, frame, outerTOS-innerFrame, asm.Byte),
			asm.LoadMem(asm.R3, frame, outerTOS, asm.Byte),
			asm.Xor.Reg(asm.R2, asm.R3),
			asm.JSet.Imm(asm.R2, ecnBits, toBridge), // the device knows what to do about congestion (RFC 6040)
		},
		packetChecks(), remoteChecks(m, samePeer(), nil), delivery, uncovering(), redirection(),
	)
}

// samePeer passes what comes from the peer that its member lives behind.
func samePeer() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.RFP, peerSlot, asm.Word),
		asm.LoadMem(asm.R3, target, remotePeer, asm.Word),
		asm.JNE.Reg(asm.R2, asm.R3, toBridge),
	}
}

// outerChecks pass whole VXLAN packets to this node.
func outerChecks() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, skb, skbType, asm.Word),
		asm.JNE.Imm(asm.R2, packetHost, toBridge),
		asm.LoadMem(asm.R2, frame, frameType, asm.Half),
		asm.JNE.Imm(asm.R2, asRead(unix.ETH_P_IP), toBridge),
		asm.LoadMem(asm.R2, frame, frameProtocol, asm.Byte),
		asm.JNE.Imm(asm.R2, unix.IPPROTO_UDP, toBridge),
		asm.LoadMem(asm.R2, frame, frameVersion, asm.Byte),
		asm.JNE.Imm(asm.R2, versionAndLength, toBridge),
		asm.LoadMem(asm.R2, frame, outerPort, asm.Half),
		asm.JNE.Imm(asm.R2, asRead(vxlanPort), toBridge),
		asm.LoadMem(asm.R2, frame, outerFragment, asm.Half),
		asm.JSet.Imm(asm.R2, asRead(fragmentBits), toBridge),
		asm.LoadMem(asm.R2, frame, outerVXLAN, asm.Word),
		asm.HostTo(asm.BE, asm.R2, asm.Word),
		asm.JNE.Imm(asm.R2, vxlanFlags, toBridge),
	}
}

// peerChecks pass what a peer of the network sent to the node's own address.
func peerChecks(m maps) asm.Instructions {
	return slices.Concat(
		asm.Instructions{
			asm.LoadMem(asm.R2, frame, outerVNI, asm.Word),
			asm.HostTo(asm.BE, asm.R2, asm.Word),
			asm.JSet.Imm(asm.R2, 0xff, toBridge),
			asm.RSh.Imm(asm.R2, 8),
			asm.StoreMem(asm.RFP, peerSlot+4, asm.R2, asm.Word),
			asm.LoadMem(asm.R2, frame, outerFrom, asm.Word),
			asm.StoreMem(asm.RFP, peerSlot, asm.R2, asm.Word),
		},
		lookup(m.peers, peerSlot, toBridge),
		asm.Instructions{asm.Mov.Reg(sender, asm.R0)},
		sameWord(sender, peerLocal, frame, outerTo),
	)
}

// uncovering takes the outer headers off. UDP that is to be cut is left alone.
func uncovering() asm.Instructions {
	saved := copyEthernet(0, headers)
	saved[0] = saved[0].WithSymbol("whole")
	return slices.Concat(
		asm.Instructions{
			asm.LoadMem(asm.R2, skb, skbGSOSize, asm.Word),
			asm.JEq.Imm(asm.R2, 0, "whole"),
			asm.LoadMem(asm.R2, frame, frameProtocol, asm.Byte),
			asm.JNE.Imm(asm.R2, unix.IPPROTO_TCP, toBridge),
		},
		saved,
		asm.Instructions{
			asm.Mov.Reg(asm.R1, skb),
			asm.Mov.Imm(asm.R2, -innerFrame),
			asm.Mov.Imm(asm.R3, inMAC),
			asm.Mov.Imm(asm.R4, fixedGSO),
			asm.FnSkbAdjustRoom.Call(),
			asm.JNE.Imm(asm.R0, 0, toBridge),
		},
		storeFrameStart(headers, frameVersion),
	)
}
