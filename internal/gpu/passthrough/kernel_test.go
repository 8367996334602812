package passthrough

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/kerneltree"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// left is what an owner writes into the GPU's memory, at an offset of some megabytes.
const (
	left       = 0x4c4546542d484552
	leftOffset = 9 << 20
)

// The kernel of a guest with an emulated GPU, whose resets keep its memory: what an owner leaves there is gone for the next one, and is not where nobody
// clears it. Its functions are with vfio-pci in between, and as before in the end.
func TestAKernelsGPUHoldsNothingOfItsLastOwner(t *testing.T) {
	needs.Request(t, "NEARMETAL_GPU_GUEST", "make test-gpu-guest, whose guest has a GPU and an IOMMU")
	needs.Root(t, "gives a GPU to vfio-pci")
	kernel := Kernel{kerneltree.Tree{Root: "/"}}
	cards, err := ReadCards(kernel)
	if err != nil || len(cards) != 1 || cards[0].Problem() != "" {
		t.Fatalf("the guest has the GPUs %+v (%v), want one without a problem", cards, err)
	}
	card := cards[0]
	t.Logf("the GPU: %+v", card)
	g := api.NodeGPU{ID: card.PCI, PCI: card.PCI}
	for _, c := range []struct {
		clearing Clearing
		found    bool
	}{{ClearingReset, true}, {ClearingProven, false}} {
		m, err := Open(Config{Host: kernel, Dir: t.TempDir(), Clearing: c.clearing})
		if err != nil {
			t.Fatal(err)
		}
		group, err := m.Take(t.Context(), "first", g)
		if err != nil {
			t.Fatalf("%s: %v", c.clearing, err)
		}
		if f := readFunction(kernel, card.PCI); f.Driver != vfioPCI {
			t.Errorf("%s: it is with driver %q", c.clearing, f.Driver)
		}
		if _, err := os.Stat(filepath.Join("/dev/vfio", group.IOMMU)); err != nil {
			t.Errorf("%s: a machine can't open it: %v", c.clearing, err)
		}
		opened, err := os.OpenFile(filepath.Join("/dev/vfio", group.IOMMU), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Give(t.Context(), "first"); err == nil || !strings.Contains(err.Error(), "a machine still has it") {
			t.Errorf("%s: it was taken from a machine that has it: %v", c.clearing, err)
		}
		_ = opened.Close()
		write(t, kernel, card)
		if err := m.Give(t.Context(), "first"); err != nil || len(m.Away()) > 0 {
			t.Fatalf("%s: given back: %v, away: %+v", c.clearing, err, m.Away())
		}
		if got := read(t, kernel, card) == left; got != c.found {
			t.Errorf("%s: what the first owner left is found: %t, want %t", c.clearing, got, c.found)
		}
	}
	after, err := ReadCards(kernel)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cards, after); diff != "" {
		t.Errorf("the GPU is not as before:\n%s", diff)
	}
}

// window calls do with the GPU's memory, as an owner sees it.
func window(t *testing.T, k Kernel, c Card, do func([]byte)) {
	t.Helper()
	command := pciDevices + c.PCI + "/config"
	config, err := os.OpenFile(command, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer config.Close()
	var was [2]byte
	if _, err := config.ReadAt(was[:], 4); err != nil {
		t.Fatal(err)
	}
	// The bit that lets a function answer for its memory (PCI Local Bus Specification 3.0, 6.2.2): vfio-pci sets it for a machine.
	on := binary.LittleEndian.AppendUint16(nil, binary.LittleEndian.Uint16(was[:])|2)
	if _, err := config.WriteAt(on, 4); err != nil {
		t.Fatal(err)
	}
	err = k.Memory(pciDevices+c.PCI+"/resource0", c.Memory[0].Bytes, func(b []byte) error { do(b); return nil })
	if _, e := config.WriteAt(was[:], 4); err != nil || e != nil {
		t.Fatal(err, e)
	}
}

func write(t *testing.T, k Kernel, c Card) {
	t.Helper()
	window(t, k, c, func(b []byte) { binary.LittleEndian.PutUint64(b[leftOffset:], left) })
	if got := read(t, k, c); got != left {
		t.Fatalf("its memory reads back as %#x, want %#x", got, left)
	}
}

func read(t *testing.T, k Kernel, c Card) (value uint64) {
	t.Helper()
	window(t, k, c, func(b []byte) { value = binary.LittleEndian.Uint64(b[leftOffset:]) })
	return value
}
