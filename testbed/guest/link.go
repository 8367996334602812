package guest

import (
	"fmt"
	"os"
	"syscall"
)

// Link is one guest's end of a link between two: a network card without offloads, so that the guest's kernel computes checksums and cuts what
// TCP left whole.
type Link struct {
	// MAC is the card's address; it has to be another one at the other end.
	MAC string
	end *os.File
}

// NewLink returns both ends of a link between cards with these MAC addresses.
func NewLink(one, two string) ([2]Link, error) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return [2]Link{}, fmt.Errorf("make a link between guests: %w", err)
	}
	return [2]Link{{one, os.NewFile(uintptr(ends[0]), "link")}, {two, os.NewFile(uintptr(ends[1]), "link")}}, nil
}

// arguments are QEMU's for the card with this number.
func (l Link) arguments(number int) []string {
	const firstFile = 3 // of those that a process is started with beside its standard streams
	id := fmt.Sprintf("link%d", number)
	return []string{
		"-netdev", fmt.Sprintf("socket,id=%s,fd=%d", id, firstFile+number),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=%s,mac=%s,romfile=", id, l.MAC),
	}
}
