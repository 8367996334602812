package sriov

import (
	"path"
	"regexp"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Host is a kernel. Paths are absolute, and patterns those of path/filepath.Match. Any call may hang: Manager bounds them.
type Host interface {
	// ReadFile returns a file's text without the white space around it.
	ReadFile(name string) (string, error)
	// WriteFile writes to a file that exists.
	WriteFile(name, text string) error
	// Readlink returns the last part of a symbolic link's target, which is the name of a driver or device.
	Readlink(name string) (string, error)
	// Glob returns what matches a pattern, sorted; nothing is no error.
	Glob(pattern string) ([]string, error)
	// VFs returns what the adapter with a network interface says of its virtual functions, by index.
	VFs(netdev string) (map[int]Report, error)
	// SetVF writes one setting of a virtual function.
	SetVF(netdev string, index int, s Setting, to Report) error
	// Eswitch returns the mode of an adapter's embedded switch: legacy, switchdev, or "" where it has none.
	Eswitch(pf string) (string, error)
	// GroupInUse reports whether a process has an IOMMU group open.
	GroupInUse(group string) (bool, error)
	// SetUp sets a network interface up.
	SetUp(netdev string) error
	// Addressed reports whether the node itself uses a network interface: it has addresses, or belongs to another interface.
	Addressed(netdev string) (bool, error)
}

// Setting is one that SetVF can write.
type Setting string

// The settings. Minimum and maximum rate are written together.
const (
	SettingMAC        Setting = "MAC"
	SettingGUID       Setting = "GUID"
	SettingVLAN       Setting = "VLAN"
	SettingRate       Setting = "rate"
	SettingSpoofCheck Setting = "spoof check"
	SettingTrusted    Setting = "trust"
	SettingLink       Setting = "link state"
)

// Switch is on or off, where an adapter has it.
type Switch string

// The positions of a Switch; an adapter without it reports none.
const (
	On   Switch = "on"
	Off  Switch = "off"
	None Switch = ""
)

func switchOf(on bool) Switch {
	if on {
		return On
	}
	return Off
}

// Report is what an adapter says of a virtual function.
type Report struct {
	// MAC is "" for the zero address. GUID is the port's, 16 hexadecimal digits, "" for the zero GUID.
	MAC, GUID           string
	VLAN                int
	MinMbps, MaxMbps    int
	SpoofCheck, Trusted Switch
	Link                fabric.FunctionLink
	// HasGUID: the adapter reports GUIDs (Linux 5.5 and later, on InfiniBand).
	HasGUID bool
}

const (
	bootIDFile = "/proc/sys/kernel/random/boot_id"
	pciDevices = "/sys/bus/pci/devices/"
	pciDrivers = "/sys/bus/pci/drivers/"
	rdmaClass  = "/sys/class/infiniband/"
)

// address is a PCI function's as Linux writes it: domain, bus, device, function.
var address = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

// IsAddress reports whether text is the address of a PCI function, such as 0000:3b:00.0.
func IsAddress(text string) bool { return address.MatchString(text) }

// bounded is a host whose calls end in time, or quarantine an adapter.
type bounded struct {
	m  *Manager
	pf string
}

func (m *Manager) on(pf string) bounded { return bounded{m, pf} }

func (b bounded) read(name string) (text string, err error) {
	err = b.m.call(b.pf, "reading "+name, func() (err error) {
		text, err = b.m.cfg.Host.ReadFile(name)
		return err
	})
	return text, err
}

func (b bounded) write(name, text string) error {
	return b.m.call(b.pf, "writing "+name, func() error { return b.m.cfg.Host.WriteFile(name, text) })
}

// link returns "" where there is no link.
func (b bounded) link(name string) (target string, err error) {
	err = b.m.call(b.pf, "reading "+name, func() (err error) {
		target, err = b.m.cfg.Host.Readlink(name)
		if notThere(err) {
			return nil
		}
		return err
	})
	return target, err
}

func (b bounded) glob(pattern string) (names []string, err error) {
	err = b.m.call(b.pf, "listing "+pattern, func() (err error) {
		names, err = b.m.cfg.Host.Glob(pattern)
		return err
	})
	return names, err
}

// base returns the names of what matches, without their folder.
func (b bounded) base(pattern string) ([]string, error) {
	names, err := b.glob(pattern)
	for i := range names {
		names[i] = path.Base(names[i])
	}
	return names, err
}

// first returns the first that matches, without its folder; "" if nothing does.
func (b bounded) first(pattern string) (string, error) {
	names, err := b.base(pattern)
	if err != nil || len(names) == 0 {
		return "", err
	}
	return names[0], nil
}

func (b bounded) exists(name string) (bool, error) {
	found, err := b.glob(name)
	return len(found) > 0, err
}

// driver returns the driver of a PCI function, "" for none.
func (b bounded) driver(pci string) (string, error) { return b.link(pciDevices + pci + "/driver") }

// netdev returns the network interface of a PCI function, "" for none. A function with two ports has two: the first port's comes first. Children for
// partitions of InfiniBand, which Linux lists here as well, are none of its own: they are on another interface (iflink of sysfs-class-net).
func (b bounded) netdev(pci string) (string, error) {
	found, err := b.base(pciDevices + pci + "/net/*")
	if err != nil {
		return "", err
	}
	var names []string
	for _, name := range found {
		if len(found) == 1 || !b.isChild(pciDevices+pci+"/net/"+name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if port, err := b.read(pciDevices + pci + "/net/" + name + "/dev_port"); err == nil && port == "0" {
			return name, nil
		}
	}
	if len(names) == 0 {
		return "", nil
	}
	return names[0], nil
}

// isChild reports whether a network interface, by its folder, is on another one. One that can't be read is not.
func (b bounded) isChild(dir string) bool {
	own, err := b.read(dir + "/ifindex")
	if err != nil {
		return false
	}
	on, err := b.read(dir + "/iflink")
	return err == nil && own != on
}

func hexadecimal(text string) string { return strings.TrimPrefix(strings.ToLower(text), "0x") }
