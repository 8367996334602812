// Package guestlink is the protocol between a virtual machine and its host, independent of the programs that run in the machine. The
// host gives the machine its files, network and program, and reaches its TCP ports.
//
// The protocol is HTTP/2 over one virtio-serial port, which works without a network, before a network exists, and whatever the tenant
// does to the network. The guest answers and never asks. The guest is untrusted: the host trusts none of its answers, and bounds what it
// reads. This package knows no member and no hypervisor. Start with Setup. Serve is the guest's end, and Client the host's.
package guestlink

import (
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"time"
)

// Port is the name of the virtio-serial port.
const Port = "nearmetal.guest"

// Argument is the word of the kernel's command line that makes the boot agent one of a guest. Its value lists the file systems of the roots.
const Argument = "nearmetal.guest"

// ProgramPath is where the initial RAM disk has the program that a Setup names, ProgramInGuest where the guest has it afterwards.
const (
	ProgramPath    = "lib/nearmetal/program"
	ProgramInGuest = "/run/nearmetal-member"
)

// RootSerial returns the serial number of the disk that holds the n-th root, 0 for the lowest.
func RootSerial(n int) string { return "nearmetal-root-" + string(rune('a'+n)) }

// maxSerial is how many characters of a serial number a virtio disk has (virtio 1.2, section 5.2.6.1).
const maxSerial = 20

// DiskSerial returns the serial number of the disk that is a block volume, by the volume's name.
func DiskSerial(name string) string { return name[:min(len(name), maxSerial)] }

// DiskLink returns where programs of a guest find that disk: where udev has it.
func DiskLink(name string) string { return "/dev/disk/by-id/virtio-" + DiskSerial(name) }

// MaxRoots is how many roots a guest has at most.
const MaxRoots = 16

// Setup is everything that makes a machine of the image this one.
type Setup struct {
	Hostname   string      `json:"hostname"`
	Interfaces []Interface `json:"interfaces"`
	// Home is where the cluster's home is mounted, which package homelink leads to; "": the machine has none.
	Home string `json:"home"`
	// Disks are block volumes.
	Disks []Disk `json:"disks,omitempty"`
	// Volumes are mounted by the same way. They count in the first Setup only; Client.Volumes changes them.
	Volumes []Volume `json:"volumes,omitempty"`
	// Libraries are found by programs before others of their names: paths by name. They count in the first Setup only.
	Libraries map[string]string `json:"libraries,omitempty"`
	Dirs      []Dir             `json:"dirs"`
	// Files replace those of the Setup before.
	Files []File `json:"files"`
	// Program is started once the first Setup is in force. The machine goes off when it ends.
	Program []string `json:"program"`
	// WatchdogSeconds is after how long without a sign of life the machine's watchdog fires; 0: there is none.
	WatchdogSeconds int `json:"watchdog_seconds,omitempty"`
	// Clock is the time that the machine sets its clock to if it is far off; the zero value: it leaves it.
	Clock time.Time `json:"clock,omitzero"`
}

// Interface is a NIC.
type Interface struct {
	MAC string `json:"mac"`
	// Name it gets.
	Name    string       `json:"name"`
	Address netip.Prefix `json:"address"`
	// Address6 is its IPv6 address; not valid: it has no IPv6. The link-local address follows from the MAC.
	Address6 netip.Prefix `json:"address6,omitzero"`
	MTU      int          `json:"mtu"`
	// Gateway of Routes; the zero value: none are by this interface.
	Gateway netip.Addr     `json:"gateway"`
	Routes  []netip.Prefix `json:"routes,omitempty"`
	// GUID is the port GUID of a NIC on InfiniBand, 16 hexadecimal digits: its address is not the MAC.
	GUID string `json:"guid,omitempty"`
	// PKey is the partition key, without its membership bit, of the IP interface on InfiniBand; 0: the port's own interface is it, whatever its
	// partition. Connected is its mode; else it sends datagrams.
	PKey      int  `json:"pkey,omitempty"`
	Connected bool `json:"connected,omitempty"`
	// Comes: the host takes the NIC away and brings it back while the machine runs. It is set up each time.
	Comes bool `json:"comes,omitempty"`
	// Standby: the NIC is what the kernel makes of two with its MAC, one that is always there and one that the host takes away and brings back.
	Standby bool `json:"standby,omitempty"`
}

// IsOf reports whether a NIC with a link address is this one. That of IPoIB ends with the port's GUID (RFC 4391, section 9.1.1).
func (i Interface) IsOf(address net.HardwareAddr) bool {
	if i.GUID != "" {
		return len(address) == 20 && hex.EncodeToString(address[12:]) == i.GUID
	}
	return address.String() == i.MAC
}

// HomeExport is what the host exports the home as.
const HomeExport = "/"

// Volume is a directory of the host, which exports it by the path that the machine mounts it at.
type Volume struct {
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Disk is a block volume. Its file system is mounted at Path. Where it is empty, the machine makes one, whose root directory belongs to UID and GID. What
// has something else on it is left alone: it is the business of who put that there.
type Disk struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
	UID      uint32 `json:"uid"`
	GID      uint32 `json:"gid"`
}

// Dir is a directory that is made, with what it is in, unless it is there.
type Dir struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
}

// File is a file as it should be.
type File struct {
	Path    string `json:"path"`
	Content []byte `json:"content"`
	Mode    uint32 `json:"mode"`
	UID     uint32 `json:"uid"`
	GID     uint32 `json:"gid"`
}

// Paths of the requests.
const (
	setupPath   = "/v1/setup"
	volumesPath = "/v1/volumes"
	dialPath    = "/v1/dial"
)

// Volumes are those that a machine is to have mounted.
type Volumes struct {
	All []Volume `json:"all"`
	// Gone: the host serves no others any more. They are unmounted although files of them are open.
	Gone bool `json:"gone,omitempty"`
}

// ErrBusy reports that files of a volume are open that the machine is to unmount.
var ErrBusy = errors.New("the volume is in use")

// ErrOld reports that the machine booted with a boot agent that knows no volumes.
var ErrOld = errors.New("it booted under an earlier version of nearmetal, and takes volumes when it reboots")

// maxSetupBytes bounds a Setup.
const maxSetupBytes = 64 << 20
