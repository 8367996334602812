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
)

// rehearing is after how many jiffies a frame of a member on another node takes the bridge again, so that the bridge does not forget after
// 300 seconds where it is: 200 to 20 seconds, as the kernel counts 100 to 1,000 a second.
const rehearing = 20000

// Places of the stack where the program makes a value of the map remotes.
const (
	madeValue = -32
	madeHeard = madeValue + remoteHeard
	madeNet   = madeValue + portNetwork
	madeMAC   = madeValue + portMAC
)

// multicast is the bit of a MAC address's first byte that no sender has (IEEE 802.3).
const multicast = 1

// tunnelProgram returns what each frame that comes out of a tunnel runs through.
func tunnelProgram(m maps) asm.Instructions {
	delivery := receiverChecks(m, toBridge)
	delivery[0] = delivery[0].WithSymbol("known")
	return slices.Concat(headerChecks(), mouthChecks(m), learning(m), delivery, redirection())
}

// mouthChecks pass what comes out of an open tunnel from an address of its network.
func mouthChecks(m maps) asm.Instructions {
	return slices.Concat(
		asm.Instructions{
			asm.LoadMem(asm.R2, skb, skbIfindex, asm.Word),
			asm.StoreMem(asm.RFP, keySlot, asm.R2, asm.Word),
		},
		lookup(m.mouths, keySlot, toBridge),
		asm.Instructions{
			asm.Mov.Reg(sender, asm.R0),
			asm.LoadMem(asm.R2, frame, frameSource, asm.Word),
			asm.StoreMem(asm.RFP, keySlot, asm.R2, asm.Word),
			asm.LoadMem(asm.R3, sender, mouthMask, asm.Word),
			asm.And.Reg(asm.R2, asm.R3),
			asm.LoadMem(asm.R3, sender, mouthPrefix, asm.Word),
			asm.JNE.Reg(asm.R2, asm.R3, toBridge),
			asm.LoadMem(asm.R2, frame, frameFrom, asm.Byte),
			asm.JSet.Imm(asm.R2, multicast, toBridge),
		},
	)
}

// learning passes frames of senders that are known to be on other nodes. The first frame of each makes it known, and takes the bridge, which
// learns of it, too. So does one from time to time later on.
func learning(m maps) asm.Instructions {
	return slices.Concat(
		asm.Instructions{
			asm.FnJiffies64.Call(),
			asm.StoreMem(asm.RFP, madeHeard, asm.R0, asm.Word),
		},
		lookup(m.remotes, keySlot, "unknown"),
		asm.Instructions{asm.Mov.Reg(target, asm.R0)},
		sameWord(target, portNetwork, sender, portNetwork),
		sameMAC(target, frame, frameFrom),
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

// intoTunnel hands a frame whose receiver is no port here to the tunnel of the sender's network, when the receiver is known to be on another
// node by the addresses of the frame. The tunnel itself knows on which.
func intoTunnel(m maps) asm.Instructions {
	known := lookup(m.remotes, keySlot, toBridge)
	known[0] = known[0].WithSymbol(toTunnel)
	return slices.Concat(
		known,
		asm.Instructions{asm.Mov.Reg(target, asm.R0)},
		sameWord(target, portNetwork, sender, portNetwork),
		sameMAC(target, frame, frameTo),
		asm.Instructions{
			asm.LoadMem(asm.R2, sender, portNetwork, asm.Word),
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
