package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// A port that is a virtual function, or an adapter's whole port, is a PCI device of the machine (VFIO). The node's fabric has set it up and given it
// to vfio-pci before there is a machine, and nothing but the fabric ever writes to the adapter: libvirt's own interfaces of type hostdev and direct
// would set MAC and VLAN of functions, to none where none is named. So libvirt gets plain devices, and devices of MACVTAP that exist.
//
// No machine takes a function along. It is unplugged before the machine is saved or moved, and plugged in where the machine goes on. All machines
// with functions have a root port for each, so that the rest of the machine is the same with a function and without.
//
// A port with a standby is a NIC besides, under the same MAC address. QEMU keeps the function from a guest that does not know of such pairs
// (VIRTIO_NET_F_STANDBY, virtio 1.2, section 5.1.3), and the guest's kernel joins both to one interface (net_failover.rst).

// hostDevice is a function as a device of a machine.
type hostDevice struct {
	// Domain, Bus, Slot and Function are its PCI address on the host, hexadecimal.
	Domain, Bus, Slot, Function string
	// Port is the number of the root port that it is behind, 0 for any.
	Port int
	// Standby is the alias of the NIC that stands in for it, "" for none.
	Standby string
	// GPU is the number of a function of a GPU, from 1 on, 0 for functions of adapters.
	GPU int
}

// isPassedThrough reports whether a port is a PCI device of the machine.
func isPassedThrough(p fabric.Port) bool {
	return p.Function.Kind == api.PortVF || p.Function.Kind == api.PortPF
}

// hasNIC reports whether a port is a NIC of the machine, alone or beside a function.
func hasNIC(p fabric.Port) bool { return !isPassedThrough(p) || p.Standby }

// aliasPrefix begins the aliases of devices that libvirt lets others choose.
const aliasPrefix = "ua-"

// standbyAlias returns the alias of the NIC that is the standby of a member's n-th port, "" without one.
func standbyAlias(p fabric.Port, n int) string {
	if !p.Standby {
		return ""
	}
	return aliasPrefix + "standby" + strconv.Itoa(n)
}

// passedThrough returns the numbers of the ports of an assignment that are PCI devices of the machine.
func passedThrough(a *api.Assignment) (ports []int) {
	for n := range a.Ports {
		if isPassedThrough(fabric.PortOf(a, n)) {
			ports = append(ports, n)
		}
	}
	return ports
}

// placeOf is where a port is that has a device on the node.
func placeOf(p fabric.Port, queues int) fabric.Place {
	if p.Function.Kind == api.PortMACVTAP {
		return fabric.MACVTAP(p)
	}
	place := fabric.TAP(p)
	place.Queues = queues
	return place
}

// attachFunctions makes the functions of a member its own, and lets its QEMU open them.
func (d *Driver) attachFunctions(ctx context.Context, m driver.Member) ([]hostDevice, error) {
	a := &m.Assignment
	ports := passedThrough(a)
	if len(ports) == 0 {
		return nil, nil
	}
	attacher, ok := d.cfg.Attacher.(fabric.FunctionAttacher)
	if !ok {
		return nil, fmt.Errorf("%w: this node hands out no functions of adapters", fabric.ErrPortKind)
	}
	var devices []hostDevice
	for _, n := range ports {
		port := fabric.PortOf(a, n)
		state, err := attacher.AttachFunction(ctx, port, fabric.DriverVFIO)
		if err != nil {
			return nil, err
		}
		device, err := newHostDevice(state.PCI)
		if err != nil {
			return nil, err
		}
		if err := d.openGroup(state, a.UserIDs.First); err != nil {
			return nil, fmt.Errorf("%s: %w", port.Function, err)
		}
		device.Standby = standbyAlias(port, n)
		devices = append(devices, device)
	}
	return devices, nil
}

// parkFunctions lets the standbys of a member carry its traffic: no adapter keeps it for a function that the machine does not have.
func (d *Driver) parkFunctions(ctx context.Context, m driver.Member) error {
	for n := range m.Assignment.Ports {
		port := fabric.PortOf(&m.Assignment, n)
		if !port.Standby {
			continue
		}
		attacher, ok := d.cfg.Attacher.(fabric.FunctionAttacher)
		if !ok {
			return fmt.Errorf("%w: this node hands out no functions of adapters", fabric.ErrPortKind)
		}
		if err := attacher.ParkFunction(ctx, port); err != nil {
			return err
		}
	}
	return nil
}

// leaveStandbys ends that frames to a member that has gone on elsewhere come to its standbys here.
func (d *Driver) leaveStandbys(ctx context.Context, m driver.Member) error {
	for n := range m.Assignment.Ports {
		if fabric.PortOf(&m.Assignment, n).Standby {
			return d.cfg.Attacher.Detach(ctx, m.Assignment.ID)
		}
	}
	return nil
}

// vfioDir is where the kernel shows IOMMU groups, and the container that they are put into.
const vfioDir = "/dev/vfio"

// openGroup lets the cluster's user, who QEMU is, open the function's IOMMU group. The kernel makes the file anew, as root's, with each binding to
// vfio-pci, so there is nothing to restore.
func (d *Driver) openGroup(state fabric.FunctionState, user uint32) error {
	if state.IOMMUGroup == "" {
		return fmt.Errorf("%w: the node has no IOMMU; boot it with intel_iommu=on or amd_iommu=on", fabric.ErrFunctionUnfit)
	}
	if err := openToAll(filepath.Join(vfioDir, "vfio")); err != nil {
		return err
	}
	return os.Chown(filepath.Join(vfioDir, state.IOMMUGroup), int(user), int(user))
}

// openToAll gives VFIO's container file the mode that udev gives it. The file provides nothing without a group, and the kernel expects it to be open to
// all (Documentation/driver-api/vfio.rst); on a node without udev, it is root's alone.
func openToAll(path string) error {
	const all = 0o666
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&all == all {
		return err
	}
	return os.Chmod(path, all)
}

// newHostDevice parses a PCI address, such as 0000:3b:10.2.
func newHostDevice(pci string) (hostDevice, error) {
	fields := strings.FieldsFunc(pci, func(r rune) bool { return r == ':' || r == '.' })
	if err := (fabric.Place{Kind: api.PortVF, At: pci}).Validate(); err != nil || len(fields) != 4 {
		return hostDevice{}, errors.Join(fmt.Errorf("%q is no PCI address", pci), err)
	}
	return hostDevice{Domain: fields[0], Bus: fields[1], Slot: fields[2], Function: fields[3]}, nil
}

// XML describes the device to libvirt, as a part of a machine or alone.
func (h hostDevice) XML() string {
	at, teaming := "", ""
	if h.Standby != "" {
		// The name stays: QEMU takes no function of another name for a standby that had one.
		teaming = fmt.Sprintf("<teaming type='transient' persistent='%s'/><alias name='%s'/>", h.Standby, aliasPrefix+"function-of-"+strings.TrimPrefix(h.Standby, aliasPrefix))
	}
	if h.GPU != 0 {
		teaming = fmt.Sprintf("<alias name='%s%d'/>", gpuAlias, h.GPU)
	}
	if h.Port != 0 {
		at = fmt.Sprintf("<address type='pci' domain='0x0000' bus='0x%02x' slot='0x00' function='0x0'/>", h.Port)
	}
	return fmt.Sprintf("<hostdev mode='subsystem' type='pci' managed='no'><driver name='vfio'/>"+
		"<source><address domain='0x%s' bus='0x%s' slot='0x%s' function='0x%s'/></source>%s<rom enabled='no'/>%s</hostdev>",
		h.Domain, h.Bus, h.Slot, h.Function, teaming, at)
}

// otherRootPorts bounds how many root ports libvirt makes for what is in every machine besides disks and NICs: a bridge for the watchdog, the ports of
// its channels, random numbers, memory that is plugged in, and two to spare.
const otherRootPorts = 6

// keepRootPorts keeps a root port for each function of an assignment. They are beyond those that libvirt makes by itself, so that libvirt puts nothing
// else there while there is no function.
func (d *domain) keepRootPorts(a *api.Assignment) {
	first := otherRootPorts + len(d.Roots) + len(d.NICs) + portsForGPUs*len(gpusOf(a))
	for i := range passedThrough(a) {
		d.RootPorts = append(d.RootPorts, first+i)
	}
}

// take puts functions behind the root ports that are kept for them.
func (d *domain) take(functions []hostDevice) {
	for i := range functions {
		functions[i].Port = d.RootPorts[i]
	}
	d.Functions = functions
}

// verb is what is done to a running machine and may be too much for its functions.
type verb string

const (
	verbSave verb = "saved"
	verbMove verb = "moved while it runs"
	// verbSnapshot: the machine stands still for it, and lets no function go.
	verbSnapshot verb = "captured in a snapshot"
)

var errFunctionStays = errors.New("its function keeps it here")

// survives returns nil if a port's function survives a verb, or why not. Each survives start, stop, pause, resume and reboot.
//
//	                saved        moved while it runs                                      snapshot
//	vf, Ethernet    unplugged    unplugged                                                refused: a machine that stands still lets nothing go
//	vf, InfiniBand  unplugged    refused: queue pairs do not move, and programs hold them  refused
//	pf              unplugged    refused: another node has other ports                    refused
//	macvtap         taken along  taken along                                              taken along
func survives(p fabric.Port, network api.Network, v verb) error {
	if !isPassedThrough(p) || v == verbSave {
		return nil
	}
	if v == verbSnapshot {
		return fmt.Errorf("%w: a machine that stands still does not let %s go; save the member, and restore it", errFunctionStays, p.Function)
	}
	if network.Technology == api.TechnologyInfiniBand {
		return fmt.Errorf("%w: %s is on InfiniBand, whose queue pairs and local identifiers do not move with a running machine; save it and restore it elsewhere", errFunctionStays, p.Function)
	}
	if p.Function.Kind == api.PortPF {
		return fmt.Errorf("%w: %s is a whole port; save the member and restore it elsewhere", errFunctionStays, p.Function)
	}
	return nil
}

// surviveAll is survives of all ports of a member.
func surviveAll(m driver.Member, v verb) error {
	if err := gpusStay(m, v); err != nil {
		return err
	}
	if v == verbMove && len(m.Disks) > 0 {
		return fmt.Errorf("it has the block volume %q, which one machine at a time has, and QEMU opens it at both ends of a move; move it offline", m.Disks[0].Name)
	}
	for n := range m.Assignment.Ports {
		i := slices.IndexFunc(m.Networks, func(network networkOf) bool { return network.UID == m.Assignment.Ports[n].Network })
		if i < 0 {
			continue // setupOf refuses it
		}
		if err := survives(fabric.PortOf(&m.Assignment, n), m.Networks[i], v); err != nil {
			return err
		}
	}
	return nil
}

// ipoibOf returns the partition key and the mode of a guest's interface on a network that carries IP over InfiniBand. 0: the network does not.
func ipoibOf(n networkOf) (key int, connected bool) {
	if n.Technology != api.TechnologyInfiniBand || !n.Partition.IPoIB {
		return 0, false
	}
	return n.PKey, n.Partition.IPoIBMode == api.IPoIBConnected
}
