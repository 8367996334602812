package memberlink

import (
	"context"
	"errors"
	"net"

	"github.com/nearmetal/nearmetal/internal/virtioport"
)

// Serial is the member agent's end of a virtio-serial port, in a virtual machine. At the other end the hypervisor connects to the member's Unix
// socket, and the member is known by that, see ListenUnix. Only one process of the machine can have the port open, and only its root.
type Serial struct {
	// Port is its name.
	Port string
}

func openSerial(port string) (Dialer, error) {
	if port == "" {
		return nil, errors.New("the address of a serial link must be the name of a virtio-serial port")
	}
	return Serial{port}, nil
}

// Dial opens the port. It fails while the node agent is away.
func (s Serial) Dial(ctx context.Context) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return virtioport.Open(s.Port)
}
