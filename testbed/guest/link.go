package guest

import (
	"fmt"
	"os"
	"syscall"
)

// Link is one guest's end of a link between two, or its card on a network of the host: a network card without offloads, so that the guest's kernel computes
// checksums and cuts what TCP left whole.
type Link struct {
	// MAC is the card's address; it has to be another one at the other end.
	MAC string
	end *os.File
	tap bool
}

// TAPLink is a card with this MAC address on the network that a TAP device is on, whose frames have no header before them.
func TAPLink(mac string, device *os.File) Link { return Link{mac, device, true} }

// NewLink returns both ends of a link between cards with these MAC addresses.
func NewLink(one, two string) ([2]Link, error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return [2]Link{}, fmt.Errorf("make a link between guests: %w", err)
	}
	return [2]Link{{one, os.NewFile(uintptr(ends[0]), "link"), false}, {two, os.NewFile(uintptr(ends[1]), "link"), false}}, nil
}

// arguments are QEMU's for the card with this number.
func (l Link) arguments(number int) []string {
	const firstFile = 3 // of those that a process is started with beside its standard streams
	id := fmt.Sprintf("link%d", number)
	kind, card := "socket", ""
	if l.tap {
		kind, card = "tap", ",csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off"
	}
	return []string{
		"-netdev", fmt.Sprintf("%s,id=%s,fd=%d", kind, id, firstFile+number),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=%s,mac=%s,romfile=%s", id, l.MAC, card),
	}
}
