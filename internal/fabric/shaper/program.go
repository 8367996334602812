package shaper

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// skbPriority is the offset of the priority in struct __sk_buff of linux/bpf.h.
const skbPriority = 32

// The fields of a frame that the program reads or writes, as offsets in bytes: type (IEEE 802.3), and version, type of service and checksum
// of IPv4 (RFC 791). It reads four bytes from the type on.
const (
	frameType     = 12
	frameVersion  = 14
	frameService  = 15
	frameChecksum = 24
)

// What a filter does with a frame (cls_bpf): its action, or nothing.
const (
	matches = -1
	noMatch = 0
)

const (
	skb      = asm.R6
	headSlot = -8 // of the stack: the four bytes
	newSlot  = -4 // of the stack: the new type of service
	done     = "done"
)

// work is what the program of a port does: it chooses a class, 0 for none, and writes a mark, -1 for none.
type work struct {
	class uint16
	dscp  int
}

// program returns what each frame that a port sends runs through. The class and the mark are constants in it, so it needs no map, and is
// told from others by the kernel's tag of its instructions. Frames that can't be read go on: the pins drop what is not whole.
func program(w work) asm.Instructions {
	code := asm.Instructions{asm.Mov.Reg(skb, asm.R1)}
	verdict := int32(noMatch)
	if w.class != 0 {
		verdict = matches
		code = append(code,
			asm.Mov.Imm32(asm.R2, int32(handle(treeMajor, w.class))),
			asm.StoreMem(skb, skbPriority, asm.R2, asm.Word),
		)
	}
	if w.dscp >= 0 {
		code = append(code, marking(w.dscp)...)
	}
	return append(code,
		asm.Mov.Imm(asm.R0, verdict).WithSymbol(done),
		asm.Return(),
	)
}

// marking writes a mark into IPv4 packets, and leaves the two bits about congestion (RFC 3168) alone. The bytes are loaded by a helper, which
// finds them wherever the sender's kernel has put them.
func marking(dscp int) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, skb),
		asm.Mov.Imm(asm.R2, frameType),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, headSlot),
		asm.Mov.Imm(asm.R4, 4),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, done),
		asm.LoadMem(asm.R2, asm.RFP, headSlot, asm.Half),
		asm.JNE.Imm(asm.R2, int32(asRead(unix.ETH_P_IP)), done),

		asm.LoadMem(asm.R7, asm.RFP, headSlot+frameService-frameType, asm.Byte),
		asm.Mov.Reg(asm.R8, asm.R7),
		asm.And.Imm(asm.R8, 3),
		asm.Or.Imm(asm.R8, int32(dscp<<2)),
		asm.JEq.Reg(asm.R7, asm.R8, done),

		// The checksum covers words: version and length are half of this one.
		asm.LoadMem(asm.R3, asm.RFP, headSlot+frameVersion-frameType, asm.Half),
		asm.StoreMem(asm.RFP, headSlot+frameService-frameType, asm.R8, asm.Byte),
		asm.StoreMem(asm.RFP, newSlot, asm.R8, asm.Byte),
		asm.LoadMem(asm.R4, asm.RFP, headSlot+frameVersion-frameType, asm.Half),
		asm.Mov.Reg(asm.R1, skb),
		asm.Mov.Imm(asm.R2, frameChecksum),
		asm.Mov.Imm(asm.R5, 2),
		asm.FnL3CsumReplace.Call(),
		asm.JNE.Imm(asm.R0, 0, done),

		asm.Mov.Reg(asm.R1, skb),
		asm.Mov.Imm(asm.R2, frameService),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, newSlot),
		asm.Mov.Imm(asm.R4, 1),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
	}
}

// load loads a program, and returns the kernel's tag of its instructions.
func load(w work) (*ebpf.Program, string, error) {
	loaded, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "nm_shaper", Type: ebpf.SchedCLS, Instructions: program(w), License: "Apache-2.0"})
	if err != nil {
		return nil, "", fmt.Errorf("loading the program: %w", err)
	}
	info, err := loaded.Info()
	if err != nil {
		_ = loaded.Close()
		return nil, "", fmt.Errorf("reading the program's tag: %w", err)
	}
	return loaded, info.Tag, nil
}

// asRead returns a number of two bytes in network order as the program's loads see it.
func asRead(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// tag returns the kernel's tag of a program. The kernel computes it, in a way that differs between versions.
func (s *Shaper) tag(w work) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tag, known := s.tags[w]; known {
		return tag, nil
	}
	loaded, tag, err := load(w)
	if err != nil {
		return "", err
	}
	s.tags[w] = tag
	return tag, loaded.Close()
}
