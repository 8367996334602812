package shortcut

import (
	"slices"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// The fields of mouthValue and remoteValue, as offsets in bytes. Network and MAC are where portValue has them.
const (
	mouthPrefix = 0
	mouthMask   = 8
	remoteHeard = 0
	remotePeer  = 16
)

// rehearing is after how many jiffies a frame of a member on another node takes the bridge again, so that the bridge does not forget after
// 300 seconds where it is: 200 to 20 seconds, as the kernel counts 100 to 1,000 a second.
const rehearing = 20000

// Places of the stack: the key of the map peers, and where a program makes a value of the map remotes.
const (
	peerSlot  = -16
	madeValue = -40
	madeHeard = madeValue + remoteHeard
	madeNet   = madeValue + portNetwork
	madeMAC   = madeValue + portMAC
	madePeer  = madeValue + remotePeer
)

// multicast is the bit of a MAC address's first byte that no sender has (IEEE 802.3).
const multicast = 1

// tunnelProgram returns what each frame that comes out of a tunnel runs through.
func tunnelProgram(m maps) asm.Instructions {
	delivery := receiverChecks(m, toBridge)
	delivery[0] = delivery[0].WithSymbol("known")
	return slices.Concat(headerChecks(), mouthChecks(m), sourceChecks(mouthPrefix, mouthMask), learning(m, false), delivery, redirection())
}

// mouthChecks pass what comes out of an open tunnel.
func mouthChecks(m maps) asm.Instructions {
	return slices.Concat(
		asm.Instructions{
			asm.LoadMem(asm.R2, skb, skbIfindex, asm.Word),
			asm.StoreMem(asm.RFP, keySlot, asm.R2, asm.Word),
			asm.StoreImm(asm.RFP, madePeer, 0, asm.Word),
		},
		lookup(m.mouths, keySlot, toBridge),
		asm.Instructions{asm.Mov.Reg(sender, asm.R0)},
	)
}

// sourceChecks pass what comes from an address of the network. Where the subnet and its mask are in the sender's value is given.
func sourceChecks(prefix, mask int16) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R2, frame, frameSource, asm.Word),
		asm.StoreMem(asm.RFP, keySlot, asm.R2, asm.Word),
		asm.LoadMem(asm.R3, sender, mask, asm.Word),
		asm.And.Reg(asm.R2, asm.R3),
		asm.LoadMem(asm.R3, sender, prefix, asm.Word),
		asm.JNE.Reg(asm.R2, asm.R3, toBridge),
		asm.LoadMem(asm.R2, frame, frameFrom, asm.Byte),
		asm.JSet.Imm(asm.R2, multicast, toBridge),
	}
}

// learning passes frames of senders that are known to be on other nodes. The first frame of each makes it known, and takes the bridge, which
// learns of it, too. So does one from time to time later on, and the first from another peer, where peers are seen.
func learning(m maps, peers bool) asm.Instructions {
	var samePeer asm.Instructions
	if peers {
		samePeer = asm.Instructions{
			asm.LoadMem(asm.R2, asm.RFP, madePeer, asm.Word),
			asm.LoadMem(asm.R3, target, remotePeer, asm.Word),
			asm.StoreMem(target, remotePeer, asm.R2, asm.Word),
			asm.JNE.Reg(asm.R2, asm.R3, toBridge),
		}
	}
	return slices.Concat(
		asm.Instructions{
			asm.FnJiffies64.Call(),
			asm.StoreMem(asm.RFP, madeHeard, asm.R0, asm.Word),
		},
		lookup(m.remotes, keySlot, "unknown"),
		asm.Instructions{asm.Mov.Reg(target, asm.R0)},
		sameWord(target, portNetwork, sender, portNetwork),
		sameMAC(target, frame, frameFrom),
		samePeer,
		asm.Instructions{
			asm.LoadMem(asm.R2, asm.RFP, madeHeard, asm.Word),
			asm.LoadMem(asm.R3, target, remoteHeard, asm.Word),
			asm.Sub.Reg32(asm.R2, asm.R3),
			asm.JLT.Imm(asm.R2, rehearing, "known"),
			asm.LoadMem(asm.R2, asm.RFP, madeHeard, asm.Word),
			asm.StoreMem(target, remoteHeard, asm.R2, asm.Word),
			asm.Ja.Label(toBridge),

			asm.LoadMem(asm.R2, sender, portNetwork, asm.Word).WithSymbol("unknown"),
			asm.StoreMem(asm.RFP, madeNet, asm.R2, asm.Word),
			asm.LoadMem(asm.R2, frame, frameFrom, asm.Word),
			asm.StoreMem(asm.RFP, madeMAC, asm.R2, asm.Word),
			asm.LoadMem(asm.R2, frame, frameFrom+4, asm.Half),
			asm.StoreMem(asm.RFP, madeMAC+4, asm.R2, asm.Word), // and two bytes of zero
			asm.LoadMapPtr(asm.R1, m.remotes.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, keySlot),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, madeValue),
			asm.Mov.Imm(asm.R4, unix.BPF_NOEXIST), // an address of this node stays one
			asm.FnMapUpdateElem.Call(),
			asm.Ja.Label(toBridge),
		},
	)
}

// receiverElsewhere passes frames whose receiver is no port here, and is known to be on another node by the addresses of the frame.
func receiverElsewhere(m maps) asm.Instructions {
	known := lookup(m.remotes, keySlot, toBridge)
	known[0] = known[0].WithSymbol(toTunnel)
	return slices.Concat(
		known,
		asm.Instructions{asm.Mov.Reg(target, asm.R0)},
		sameWord(target, portNetwork, sender, portNetwork),
		sameMAC(target, frame, frameTo),
	)
}

// intoTunnel hands a frame to the tunnel of the sender's network, which knows to which node it goes.
func intoTunnel(m maps) asm.Instructions {
	return slices.Concat(
		asm.Instructions{
			asm.LoadMem(asm.R2, sender, portNetwork, asm.Word).WithSymbol(toDevice),
			asm.StoreMem(asm.RFP, keySlot, asm.R2, asm.Word),
		},
		lookup(m.exits, keySlot, toBridge),
		asm.Instructions{
			asm.LoadMem(asm.R1, asm.R0, 0, asm.Word),
			asm.Mov.Imm(asm.R2, 0),
			asm.FnRedirect.Call(),
			asm.Return(),
		},
	)
}
