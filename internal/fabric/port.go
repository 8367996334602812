package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Port is the identity a port is pinned to.
type Port struct {
	// ID is the assignment's ID; the node names the port's link by it.
	ID      string     `json:"id"`
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
	// Interface is the name of the member's end, where the member's end has a name.
	Interface string `json:"interface,omitempty"`
	// Function is the adapter's part that the port is, or is on; zero for ports that only the node's kernel makes.
	Function Function `json:"function,omitzero"`
	// Standby: beside its function, the port is a TAP device on the network's bridge. The member has both under one MAC and address, and uses the
	// device while it has no function.
	Standby bool `json:"standby,omitempty"`
	// Quality is the port's quality of service.
	api.Quality
}

// Function is a whole port of an adapter, or a virtual function of it. Its traffic never passes the node's bridges: the adapter's embedded switch, or
// the fabric's subnet manager, keeps it in its network.
type Function struct {
	// Kind is PortVF, PortPF or PortMACVTAP.
	Kind api.PortKind `json:"kind"`
	// Device and Part are those of the DeviceClaim; Part is empty for a whole port.
	Device string `json:"device"`
	Part   string `json:"part,omitempty"`
	// GUID is the port GUID on InfiniBand, empty elsewhere. Limited is that of the PortClaim.
	GUID    string `json:"guid,omitempty"`
	Limited bool   `json:"limited,omitempty"`
}

// Shaped reports whether the node has to act on the port's packets for its quality of service.
func (p Port) Shaped() bool { return p.Quality != api.Quality{} }

// identity is what a port is pinned to, for error messages.
func (p Port) identity() string {
	text := fmt.Sprintf("address %v and MAC %s", p.Address, p.MAC)
	if p.Interface != "" {
		text += " at " + p.Interface
	}
	if p.Standby {
		text += ", with a standby"
	}
	if quality := p.QualityText(); quality != "" {
		text += ", " + quality
	}
	return text
}

// PortOf returns the n-th port of an assignment. Its ID is the assignment's for the first, and follows from it for others.
func PortOf(a *api.Assignment, n int) Port {
	p := &a.Ports[n]
	port := Port{ID: portID(a.ID, n), Address: p.Address, MAC: p.MAC, Interface: "eth" + strconv.Itoa(n), Quality: p.Quality}
	if p.OnFunction(a.Whole) {
		port.Function = Function{Kind: p.Kind, Device: p.Device, Part: p.Part, GUID: p.GUID, Limited: p.Limited}
		port.Standby = p.Standby
	}
	return port
}

// MACVTAP returns the place of a MACVTAP port: the device that is named for it.
func MACVTAP(port Port) Place {
	return Place{Kind: api.PortMACVTAP, At: macvtapPrefix + strings.TrimPrefix(DeviceName(port.ID), DevicePrefix)}
}

// macvtapPrefix begins the names of MACVTAP devices, which are none of the ports on bridges.
const macvtapPrefix = "nmv"

// portMark parts the number of a port from the ID of its assignment, in which it can't be.
const portMark = "+"

func portID(assignment string, n int) string {
	if n == 0 {
		return assignment
	}
	return assignment + portMark + strconv.Itoa(n)
}

// PortsOf returns the IDs of the ports that an assignment has or may have: its first, and those that are in networks.
func PortsOf(networks []Network, assignment string) []string {
	ids := []string{assignment}
	for _, n := range networks {
		for _, p := range n.Ports {
			if p.ID != assignment && AssignmentOf(p.ID) == assignment {
				ids = append(ids, p.ID)
			}
		}
	}
	return ids
}

// AssignmentOf returns the ID of the assignment whose port has an ID.
func AssignmentOf(portID string) string {
	id, _, _ := strings.Cut(portID, portMark)
	return id
}

// DevicePrefix begins the names of all devices of ports.
const DevicePrefix = "nmp"

// DeviceName returns the name of a port's device on the node. Rules know the port by it.
func DeviceName(portID string) string {
	sum := sha256.Sum256([]byte(portID))
	return DevicePrefix + hex.EncodeToString(sum[:5])
}

// TAP returns the place of a TAP port: the device that is named for it.
func TAP(port Port) Place { return Place{Kind: api.PortTAP, At: DeviceName(port.ID)} }

// PortKinds lists all kinds of ports.
func PortKinds() []api.PortKind {
	return []api.PortKind{api.PortVeth, api.PortTAP, api.PortMACVTAP, api.PortVF, api.PortPF}
}

// Place is where a member's port is.
type Place struct {
	Kind api.PortKind
	// At names the place: of a veth port a path that opens the member's network namespace, such as /proc/PID/ns/net; of a TAP or MACVTAP port
	// the device's name on the node; of a function its PCI address, such as 0000:3b:00.2.
	At string
	// Namespace, of a function only, is a path that opens the network namespace that gets its network interface and its RDMA device. Without one the
	// function is a virtual machine's, by VFIO.
	Namespace string
	// Queues are those of a TAP port. A device has either one, or several that its hypervisor opens one by one; 0 is one.
	Queues int
}

// Namespace returns the place of a veth port: the network namespace that path opens.
func Namespace(path string) Place { return Place{Kind: api.PortVeth, At: path} }

// String writes the place for error messages.
func (p Place) String() string { return string(p.Kind) + " " + p.At }

// ErrPortKind reports that the node can't make ports of the requested kind.
var ErrPortKind = errors.New("ports of this kind can't be made on this node")

// deviceName is a name that the kernel takes for a link: IFNAMSIZ of linux/if.h is 16 with its closing zero, and dev_valid_name
// refuses slashes, colons and white space. Only what this product has use for is allowed.
var deviceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$`)

// pciAddress is domain:bus:device.function, as the kernel writes it.
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

// Validate reports what is wrong with a place, before anything is done about it.
func (p Place) Validate() error {
	switch p.Kind {
	case api.PortVeth:
		if !path.IsAbs(p.At) || strings.ContainsRune(p.At, 0) {
			return fmt.Errorf("a veth port needs the absolute path of a network namespace, not %q", p.At)
		}
	case api.PortTAP, api.PortMACVTAP:
		if !deviceName.MatchString(p.At) {
			return fmt.Errorf("a %s port needs the name of a device, of at most 15 letters, digits, '_', '.' and '-', not %q", p.Kind, p.At)
		}
	case api.PortVF, api.PortPF:
		if !pciAddress.MatchString(p.At) {
			return fmt.Errorf("a %s port needs a PCI address such as 0000:3b:00.2, not %q", p.Kind, p.At)
		}
		if p.Namespace != "" && (!path.IsAbs(p.Namespace) || strings.ContainsRune(p.Namespace, 0)) {
			return fmt.Errorf("a %s port needs the absolute path of a network namespace, not %q", p.Kind, p.Namespace)
		}
	default:
		return fmt.Errorf("%q is no kind of port; the kinds are %v", p.Kind, PortKinds())
	}
	return nil
}
