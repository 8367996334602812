// Package devices asks the running machine's devices what no file tells: what a NIC wakes by, what address the BMC has, how a disk
// feels. Everything is one ioctl to a driver; a machine without the device answers with nothing, not with an error.
//
// It changes nothing but what RaiseLink and ArmWakeOnLAN say. Start with Machine.
package devices

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Machine is the running machine.
type Machine struct{}

// ioctl calls a driver with a pointer to arg. What arg points to must be kept alive by the caller.
func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// absent tells whether an error says that there is no such device, or no such ability.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) ||
		errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL)
}

// control opens the socket that ioctls about interfaces go to.
func control() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open a socket to ask interfaces: %w", err)
	}
	return fd, nil
}

// RaiseLink takes an interface up: until then it shows neither carrier nor speed, and hears nothing.
func (Machine) RaiseLink(nic string) error {
	fd, err := control()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(nic)
	if err != nil {
		return fmt.Errorf("set %s up: %w", nic, err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request); err != nil {
		return fmt.Errorf("set %s up: %w", nic, err)
	}
	if request.Uint16()&unix.IFF_UP != 0 {
		return nil
	}
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("set %s up: %w", nic, err)
	}
	return nil
}

// Commands of ethtool, its structure for Wake-on-LAN, and the letters for the bits of its options (linux/ethtool.h, ethtool(8)).
const (
	ethtoolGetWOL = 0x05
	ethtoolSetWOL = 0x06
	wakeMagic     = 1 << 5
	wakeLetters   = "pumbagsf"
)

type wakeOnLAN struct {
	Command            uint32
	Supported, Options uint32
	SecureOn           [6]byte
	_                  [2]byte
}

// ethtoolRequest is struct ifreq with a pointer in its union, which is 24 bytes long on 64-bit machines.
type ethtoolRequest struct {
	Name [unix.IFNAMSIZ]byte
	Data unsafe.Pointer
	_    [16]byte
}

func ethtool(nic string, wol *wakeOnLAN) error {
	if len(nic) >= unix.IFNAMSIZ {
		return fmt.Errorf("interface name %q is too long: %w", nic, unix.EINVAL)
	}
	fd, err := control()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request := &ethtoolRequest{Data: unsafe.Pointer(wol)}
	copy(request.Name[:], nic)
	err = ioctl(fd, unix.SIOCETHTOOL, unsafe.Pointer(request))
	runtime.KeepAlive(wol)
	return err
}

// WakeOn is what a NIC can be woken by, in ethtool's letters, g being the magic packet; "" when by nothing.
func (Machine) WakeOn(nic string) (string, error) {
	wol := &wakeOnLAN{Command: ethtoolGetWOL}
	if err := ethtool(nic, wol); absent(err) {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("read the Wake-on-LAN settings of %s: %w", nic, err)
	}
	var letters strings.Builder
	for i, letter := range wakeLetters {
		if wol.Supported&(1<<i) != 0 {
			letters.WriteRune(letter)
		}
	}
	return letters.String(), nil
}

// ArmWakeOnLAN makes a NIC wake its machine by the magic packet once it is off: many drivers switch that off when they take the NIC over.
// Of a NIC that can't, the error is ErrNoWakeOnLAN.
func (Machine) ArmWakeOnLAN(nic string) error {
	wol := &wakeOnLAN{Command: ethtoolGetWOL}
	if err := ethtool(nic, wol); err != nil && !absent(err) {
		return fmt.Errorf("read the Wake-on-LAN settings of %s: %w", nic, err)
	}
	if wol.Supported&wakeMagic == 0 {
		return fmt.Errorf("%s: %w", nic, ErrNoWakeOnLAN)
	}
	if wol.Options&wakeMagic != 0 {
		return nil
	}
	wol.Command, wol.Options = ethtoolSetWOL, wol.Options|wakeMagic
	if err := ethtool(nic, wol); err != nil {
		return fmt.Errorf("enable Wake-on-LAN on %s: %w", nic, err)
	}
	return nil
}

// ErrNoWakeOnLAN: the NIC or its driver can't wake the machine by the magic packet.
var ErrNoWakeOnLAN = errors.New("this NIC does not support waking its machine by a magic packet")
