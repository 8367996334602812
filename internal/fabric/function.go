package fabric

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Functions hands out the functions of a node's adapters, one owner at a time. Drivers use it; the agent wires package fabric/node/sriov.
//
// All calls may be repeated. Each carries its owner, and changes nothing where a function has another. An error of these is one of
// ErrFunctionHeld, ErrFunctionOutdated, ErrFunctionQuarantined, ErrFunctionUnfit and ErrNoFunction, or says what else failed, which a
// repetition may get right.
type Functions interface {
	// Assign makes the function the owner's, and sets it up. It returns ErrFunctionHeld while another owner's is not released.
	Assign(ctx context.Context, owner FunctionOwner, f Function, s FunctionSettings) (FunctionState, error)
	// Bind gives the owner's function to a driver: DriverVFIO, or DriverNative for the one that makes it a network interface of this node.
	// ErrFunctionUnfit reports that the node can't, such as for want of an IOMMU.
	Bind(ctx context.Context, owner FunctionOwner, f Function, driver string) (FunctionState, error)
	// Look returns where the owner's function is now. Names of network interfaces change with each Bind, so callers never keep one.
	Look(ctx context.Context, owner FunctionOwner, f Function) (FunctionState, error)
	// Reset resets the owner's function, and gives it its settings again. Nothing may use it meanwhile.
	Reset(ctx context.Context, owner FunctionOwner, f Function) error
	// Release takes the function from its driver, resets it and restores its defaults. It returns nil once all of that is read back, and at once
	// for an owner that does not hold the function: a late release never touches the next owner's.
	Release(ctx context.Context, owner FunctionOwner, f Function) error
	// Readmit lets an assignment that has released functions have them again. Its member begins anew after a start that failed, so the caller knows
	// that no order of the earlier start can still come.
	Readmit(ctx context.Context, assignment string) error
}

// FunctionAttacher makes functions ports. It is a part of a node's Fabric that has adapters, beside Attacher, which releases them by Detach.
type FunctionAttacher interface {
	// AttachFunction makes the function of a port its assignment's, sets it up for the port's network, gives it to a driver, and returns where it
	// is. It may be repeated. Errors are those of Attach and of Functions; ErrPortKind reports a node that hands out no functions.
	AttachFunction(ctx context.Context, port Port, driver string) (FunctionState, error)
	// ParkFunction leads the traffic of a port that has a standby to the node's bridge: its function becomes, or stays, its assignment's, and has no MAC
	// address, so that the adapter keeps no frames for it. It is for a machine that runs here without its function. AttachFunction undoes it. It may be
	// repeated; errors are those of AttachFunction.
	ParkFunction(ctx context.Context, port Port) error
	// Readmit is as in Functions. It is for agents, before each start of a member.
	Readmit(ctx context.Context, assignment string) error
}

// The drivers that Bind knows by a role. Any other name is a driver of the kernel's PCI bus.
const (
	// DriverVFIO hands functions to virtual machines.
	DriverVFIO = "vfio-pci"
	// DriverNative stands for the driver that belongs to the adapter, such as igbvf.
	DriverNative = ""
)

// Errors of Functions.
var (
	// ErrNoFunction reports that the node has no such function.
	ErrNoFunction = errors.New("no such function")
	// ErrFunctionHeld reports that another owner holds the function, or somebody who is not Nearmetal.
	ErrFunctionHeld = errors.New("the function is held by another owner")
	// ErrFunctionOutdated reports that the caller's order is older than one that was carried out.
	ErrFunctionOutdated = errors.New("the order is outdated")
	// ErrFunctionQuarantined reports that the adapter did not answer in time, and is left alone until the node reboots or an operator says otherwise.
	ErrFunctionQuarantined = errors.New("the adapter is quarantined")
	// ErrFunctionUnfit reports that the adapter, its driver or the node can't do what is asked for.
	ErrFunctionUnfit = errors.New("the function can't be used like this")
)

// FunctionOwner is who holds a function.
type FunctionOwner struct {
	// Assignment is the ID of the assignment. Generation is that of its cluster; an order of a lower one than was seen is refused.
	Assignment string `json:"assignment"`
	Generation int64  `json:"generation"`
}

// OwnerOf returns the owner of a port's function. The ID of an assignment ends with its generation.
func OwnerOf(portID string) (FunctionOwner, error) {
	id := AssignmentOf(portID)
	generation, err := strconv.ParseInt(id[strings.LastIndexByte(id, '.')+1:], 10, 64)
	if err != nil || generation < 0 {
		return FunctionOwner{}, fmt.Errorf("assignment ID %q does not end with a generation", id)
	}
	return FunctionOwner{Assignment: id, Generation: generation}, nil
}

// FunctionLink is the link state that a virtual function sees.
type FunctionLink string

// The link states of virtual functions (linux/if_link.h, IFLA_VF_LINK_STATE).
const (
	FunctionLinkAuto FunctionLink = "auto" // that of the adapter's port
	FunctionLinkUp   FunctionLink = "enable"
	FunctionLinkDown FunctionLink = "disable"
)

// FunctionSettings is the configuration of a function on its adapter. A function without an owner has the zero value, with SpoofCheck on.
type FunctionSettings struct {
	// MAC is the address on Ethernet. GUID is the port's on InfiniBand, 16 hexadecimal digits; the node's GUID is the same.
	MAC  string `json:"mac,omitempty"`
	GUID string `json:"guid,omitempty"`
	// VLAN is the tag that the adapter adds and takes away; 0: none.
	VLAN int `json:"vlan,omitempty"`
	// PKey is the partition key without its membership bit; 0: none. Limited leaves the bit off.
	PKey    int  `json:"pkey,omitempty"`
	Limited bool `json:"limited,omitempty"`
	// MinMbps and MaxMbps bound what the function sends, in Mbit/s; 0: no bound.
	MinMbps int `json:"min_mbps,omitempty"`
	MaxMbps int `json:"max_mbps,omitempty"`
	// Trusted functions may change their own MAC and be promiscuous. SpoofCheck drops what they send from other addresses.
	Trusted    bool         `json:"trusted,omitempty"`
	SpoofCheck bool         `json:"spoof_check,omitempty"`
	Link       FunctionLink `json:"link,omitempty"`
}

// SettingsOf returns the configuration of a port's function on a network, or the reason why the port can't be on that network. The owner is never trusted, and
// what it sends from other addresses is dropped. An adapter bounds rates in whole Mbit/s: a maximum is rounded down, a minimum up.
func SettingsOf(n Network, p Port) (FunctionSettings, error) {
	s := FunctionSettings{Link: FunctionLinkAuto}
	if p.DSCP != "" {
		return s, fmt.Errorf("%w: no adapter marks packets, and those of port %s are to have DSCP %s", ErrFunctionUnfit, p.ID, p.DSCP)
	}
	switch n.Technology {
	case api.TechnologyVLAN:
		s.MAC, s.VLAN, s.SpoofCheck = NormalMAC(p.MAC), n.VLAN, true
		s.MinMbps, s.MaxMbps = int((int64(p.MinRate)+mega-1)/mega), int(int64(p.MaxRate)/mega)
	case api.TechnologyInfiniBand:
		s.GUID, s.PKey, s.Limited = p.Function.GUID, n.PKey, p.Function.Limited
		if s.GUID == "" {
			return s, fmt.Errorf("%w: port %s has no GUID", ErrFunctionUnfit, p.ID)
		}
	default:
		return s, fmt.Errorf("%w: network %d is made of tunnels, which an adapter's switch does not know; use a network on a VLAN or an InfiniBand partition",
			ErrFunctionUnfit, n.Index)
	}
	return s, nil
}

// mega is how many bit/s are one Mbit/s.
const mega = 1_000_000

// FunctionState is where a function is on its node now.
type FunctionState struct {
	// PCI is its address, such as 0000:3b:10.2. Driver is the kernel's driver of it, empty for none.
	PCI    string
	Driver string
	// IOMMUGroup is the number of its group, such as "17": /dev/vfio/17; empty without an IOMMU.
	IOMMUGroup string
	// Interface and RDMA are the names of its network interface and RDMA device, empty where it has none at the moment.
	Interface string
	RDMA      string
	NUMANode  int
	// Simulated: it carries no data, and members get no interface of it.
	Simulated bool
}

// partPrefix begins the names of parts that are virtual functions.
const partPrefix = "vf"

// Part returns the name of the virtual function with an index of the kernel, such as vf3.
func Part(index int) string { return partPrefix + strconv.Itoa(index) }

// Index returns the number that the kernel gives the virtual function, and -1 for the whole port.
func (f Function) Index() (int, error) {
	if f.Part == "" {
		return -1, nil
	}
	digits, found := strings.CutPrefix(f.Part, partPrefix)
	n, err := strconv.Atoi(digits)
	if !found || err != nil || n < 0 || Part(n) != f.Part {
		return 0, fmt.Errorf("%q is no part of adapter %s: virtual functions are named like vf3", f.Part, f.Device)
	}
	return n, nil
}

// String names the function for people.
func (f Function) String() string {
	if f.Part == "" {
		return "adapter " + f.Device
	}
	return f.Part + " of adapter " + f.Device
}
