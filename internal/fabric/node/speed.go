package node

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// ethtool_cmd of linux/ethtool.h: the command, and the two halves of the speed in Mbit/s.
const (
	ethtoolGet     = 1 // ETHTOOL_GSET
	ethtoolSize    = 44
	ethtoolSpeed   = 12
	ethtoolHigh    = 28
	ethtoolUnknown = 1<<32 - 1
)

// speedOf returns the speed of a link in bits per second, 0 where the kernel doesn't know it. What it says of links without a wire is no speed: a
// veth pair claims 10 Gbit/s, whatever it carries. The file of sysfs(5) would be of another network namespace.
func speedOf(link netlink.Link) int64 {
	if kind := plan.Kind(link.Type()); kind == plan.KindVeth || kind == plan.KindTAP {
		return 0
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer func() { _ = unix.Close(socket) }()
	command := make([]byte, ethtoolSize)
	binary.NativeEndian.PutUint32(command, ethtoolGet)
	var request struct { // ifreq of linux/if.h
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], link.Attrs().Name)
	request.data = unsafe.Pointer(&command[0])
	_, _, failed := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(command)
	megabits := uint32(binary.NativeEndian.Uint16(command[ethtoolHigh:]))<<16 | uint32(binary.NativeEndian.Uint16(command[ethtoolSpeed:]))
	if failed != 0 || megabits == ethtoolUnknown || megabits == 0xffff {
		return 0
	}
	return int64(megabits) * 1e6
}
