package devices

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's IPMI device (linux/ipmi.h, structures and ioctls as on 64-bit machines).
const (
	ipmiSend        = 0x8028690d // _IOR('i', 13, struct ipmi_req)
	ipmiReceive     = 0xc030690b // _IOWR('i', 11, struct ipmi_recv), which cuts what is too long
	ipmiSystem      = 0x0c       // IPMI_SYSTEM_INTERFACE_ADDR_TYPE
	ipmiBMCChannel  = 0x0f       // IPMI_BMC_CHANNEL
	ipmiResponse    = 1          // IPMI_RESPONSE_RECV_TYPE
	ipmiReplyWithin = 2 * time.Second
)

type ipmiAddress struct {
	Type    int32
	Channel int16
	LUN     byte
	_       byte
}

type ipmiMessage struct {
	NetFn, Command byte
	Length         uint16
	_              [4]byte
	Data           unsafe.Pointer
}

type ipmiRequest struct {
	Address       unsafe.Pointer
	AddressLength uint32
	_             [4]byte
	ID            int64
	Message       ipmiMessage
}

type ipmiReply struct {
	Type          int32
	_             [4]byte
	Address       unsafe.Pointer
	AddressLength uint32
	_             [4]byte
	ID            int64
	Message       ipmiMessage
}

// errCompletion is a completion code other than 0 (IPMI 2.0, section 5.2): the BMC understood and refuses.
var errCompletion = errors.New("the BMC refused the command")

// BMCAddress is the address of the BMC's LAN interface, asked over the machine's own IPMI device: Get LAN Configuration Parameters,
// parameter 3 (IPMI 2.0, section 23.2), of the first channel that has one. "" when there is no BMC, or it has none.
func (Machine) BMCAddress(ctx context.Context) (string, error) {
	file, err := openIPMI()
	if errors.Is(err, os.ErrNotExist) || absent(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("open the IPMI device: %w", err)
	}
	defer file.Close()
	for channel := byte(1); channel <= 8; channel++ {
		data, err := ipmi(ctx, file, 0x0c, 0x02, []byte{channel, 3, 0, 0})
		if errors.Is(err, errCompletion) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("ask the BMC for its address: %w", err)
		}
		if len(data) < 5 { // revision and four bytes of address
			continue
		}
		if address := netip.AddrFrom4([4]byte(data[1:5])); !address.IsUnspecified() && address != netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return address.String(), nil
		}
	}
	return "", nil
}

func openIPMI() (*os.File, error) {
	var err error
	for _, name := range []string{"/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0"} {
		var file *os.File
		if file, err = os.OpenFile(name, os.O_RDWR, 0); err == nil {
			return file, nil
		}
	}
	return nil, err
}

// ipmi sends a command to the BMC and returns its answer after the completion code.
func ipmi(ctx context.Context, file *os.File, netFn, command byte, data []byte) ([]byte, error) {
	fd := int(file.Fd())
	address := &ipmiAddress{Type: ipmiSystem, Channel: ipmiBMCChannel}
	request := &ipmiRequest{
		Address: unsafe.Pointer(address), AddressLength: uint32(unsafe.Sizeof(*address)), ID: 1,
		Message: ipmiMessage{NetFn: netFn, Command: command, Length: uint16(len(data)), Data: unsafe.Pointer(unsafe.SliceData(data))},
	}
	err := ioctl(fd, ipmiSend, unsafe.Pointer(request))
	runtime.KeepAlive(data)
	if err != nil {
		return nil, err
	}
	until := time.Now().Add(ipmiReplyWithin)
	for time.Now().Before(until) && ctx.Err() == nil {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(ready, 100); n == 0 || errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return nil, err
		}
		buffer := make([]byte, 64)
		reply := &ipmiReply{
			Address: unsafe.Pointer(address), AddressLength: uint32(unsafe.Sizeof(*address)),
			Message: ipmiMessage{Length: uint16(len(buffer)), Data: unsafe.Pointer(&buffer[0])},
		}
		if err := ioctl(fd, ipmiReceive, unsafe.Pointer(reply)); err != nil {
			return nil, err
		}
		length := min(int(reply.Message.Length), len(buffer))
		if reply.Type != ipmiResponse || reply.ID != request.ID || length == 0 {
			continue // an event, or the answer to someone else's question
		}
		if buffer[0] != 0 {
			return nil, fmt.Errorf("%w: completion code 0x%02x", errCompletion, buffer[0])
		}
		return buffer[1:length], nil
	}
	return nil, errors.New("the BMC did not answer")
}
