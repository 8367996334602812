package shortcut

import (
	"slices"

	"github.com/cilium/ebpf/asm"
)

// The fields of remoteValue, as offsets in bytes. Network and MAC are where portValue has them, and so is mouthValue's network.
const (
	remoteHeard = 0
	remotePeer  = 16
)

// rehearing is after how many jiffies a frame of a member on another node takes the bridge again, so that the bridge does not forget after
// 300 seconds where it is: 200 to 20 seconds, as the kernel counts 100 to 1,000 a second.
const rehearing = 20000

// peerSlot is of the stack: the key of the map peers.
const peerSlot = -16

// tunnelProgram returns what each frame that comes out of a tunnel runs through.
func tunnelProgram(m maps) asm.Instructions {
	delivery := receiverChecks(m, toBridge)
	delivery[0] = delivery[0].WithSymbol("known")
	hearing := asm.Instructions{asm.StoreMem(target, remoteHeard, asm.R0, asm.Word)}
	return slices.Concat(headerChecks(), mouthChecks(m), remoteChecks(m, nil, hearing), delivery, redirection())
}

// mouthChecks pass what comes out of an open tunnel.
func mouthChecks(m maps) asm.Instructions {
	return slices.Concat(
		asm.Instructions{
			asm.LoadMem(asm.R2, skb, skbIfindex, asm.Word),
			asm.StoreMem(asm.RFP, keySlot, asm.R2, asm.Word),
		},
		lookup(m.mouths, keySlot, toBridge),
		asm.Instructions{asm.Mov.Reg(sender, asm.R0)},
	)
}

// remoteChecks pass what bears the addresses of a member of the network on another node, and passes more checks, for which target is the member's
// entry. One frame from time to time takes the bridge, which so hears where the member is. The first of each member is such a frame. Hearing notes
// that, from the time in R0: the last program on the way to the bridge does.
func remoteChecks(m maps, more, hearing asm.Instructions) asm.Instructions {
	return slices.Concat(
		asm.Instructions{
			asm.LoadMem(asm.R2, frame, frameSource, asm.Word),
			asm.StoreMem(asm.RFP, keySlot, asm.R2, asm.Word),
		},
		lookup(m.remotes, keySlot, toBridge),
		asm.Instructions{asm.Mov.Reg(target, asm.R0)},
		sameWord(target, portNetwork, sender, portNetwork),
		sameMAC(target, frame, frameFrom),
		more,
		asm.Instructions{
			asm.FnJiffies64.Call(),
			asm.Mov.Reg(asm.R2, asm.R0),
			asm.LoadMem(asm.R3, target, remoteHeard, asm.Word),
			asm.Sub.Reg32(asm.R2, asm.R3),
			asm.JLT.Imm(asm.R2, rehearing, "known"),
		},
		hearing,
		asm.Instructions{asm.Ja.Label(toBridge)},
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
