// Package modelhost is a kernel with SR-IOV adapters, in memory: its sysfs and netlink react to writes as Linux and the drivers do.
//
// It implements sriov.Host for tests and for machines without adapters. It models what can go wrong, too: calls that hang, writes that change
// nothing, interfaces that are renamed late, operators who change things by hand, reboots. It must accept nothing that Linux refuses. Start with New,
// and see the methods of Host in faults.go for what can be made to happen.
package modelhost

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov"
)

// Kind is a kind of adapter.
type Kind string

// The kinds. Each reacts as its driver does, as far as package sriov uses it: IGB as seen in an emulated machine, MLX4 as in the source of its sysfs files
// (linux/drivers/infiniband/hw/mlx4/sysfs.c). Neither MLX4 nor MLX5 was compared with hardware.
const (
	// IGB is Intel 82576: Ethernet, 7 functions, no link state and no minimum rate of functions.
	IGB Kind = "igb"
	// MLX4 is ConnectX-3 on InfiniBand: the number of functions is a module option; alias GUIDs and maps of partition keys in sysfs.
	MLX4 Kind = "mlx4"
	// MLX5 is ConnectX-5 on InfiniBand, MLX5Ethernet the same on Ethernet.
	MLX5         Kind = "mlx5"
	MLX5Ethernet Kind = "mlx5-ethernet"
)

// Config is one adapter.
type Config struct {
	PCI  string
	Kind Kind
	// TotalVFs is the highest number of functions.
	TotalVFs int
	NUMANode int
	// AtLoad is the number that a driver makes when it is loaded (mlx4).
	AtLoad int
	// Company puts another device into the IOMMU groups of all functions; NoIOMMU leaves groups out.
	Company string
	NoIOMMU bool
	// Switchdev is the mode of the embedded switch.
	Switchdev bool
	// Addressed: the node uses the adapter's interface.
	Addressed bool
}

// Event is something that happened to a function of an adapter; Index is -1 for the adapter itself.
type Event struct {
	PF    string
	Index int
	// What is reset, unbind, bind, or the name of a setting.
	What string
}

// Host is the model.
type Host struct {
	mu       sync.Mutex
	root     *node
	adapters map[string]*adapter
	devices  map[string]*device
	boots    int
	names    int
	group    int
	faults   []*fault
	// crash counts down to the end of the program that calls; 0: it does not end.
	crash   int
	crashed bool
	// Watch is called for each event, with the model locked.
	Watch func(Event)
}

var _ sriov.Host = (*Host)(nil)

// New returns a model with adapters. Its drivers vfio-pci, igbvf and those of the adapters are loaded.
func New(adapters ...Config) *Host {
	h := &Host{root: &node{below: map[string]*node{}}, adapters: map[string]*adapter{}, devices: map[string]*device{}}
	h.root.put("/proc/sys/kernel/random/boot_id", shown(func() string { return fmt.Sprintf("boot-%d", h.boots) }))
	for _, driver := range []string{"vfio-pci", "igb", "igbvf", "mlx4_core", "mlx5_core"} {
		h.root.put("/sys/bus/pci/drivers/"+driver+"/unbind", only(func(text string) error { return h.unbind(driver, text) }))
	}
	h.root.put("/sys/bus/pci/drivers_probe", only(h.probe))
	for _, c := range adapters {
		h.add(c)
	}
	return h
}

// device is a PCI function.
type device struct {
	pci      string
	pf       *adapter
	index    int
	driver   string
	override string
	group    string
	// netdev and rdma are there while a native driver has it. up: the interface is in use by the node.
	netdev, rdma string
	up           bool
	// noCarrier: its cable is out.
	noCarrier bool
	// open: a machine has its IOMMU group.
	open bool
	// memory is what its last user left in it.
	memory string
	// hardware is the address that its driver took when it started. deaf: so many of its next starts don't hear the adapter.
	hardware string
	deaf     int
}

type adapter struct {
	device
	config    Config
	functions []*device
	autoprobe bool
	// reports are by index, and survive as long as the functions do.
	reports map[int]*sriov.Report
	// Of mlx4: the alias GUIDs, those in force, the port's table, and the functions' tables by slave.
	admin, granted map[int]string
	pkeys          []int
	maps           map[int][]int
	// virtual: GUIDs given to functions of mlx5.
	virtual map[int]string
}

// pkeyTable is the number of entries of a port's table of partition keys.
const pkeyTable = 128

// functionPKeys is the number of entries of a function's table that the model shows; Linux shows as many as the port has.
const functionPKeys = 4

func (k Kind) driver() string {
	switch k {
	case IGB:
		return "igb"
	case MLX4:
		return "mlx4_core"
	}
	return "mlx5_core"
}

func (k Kind) virtualDriver() string {
	if k == IGB {
		return "igbvf"
	}
	return k.driver()
}

func (k Kind) infiniband() bool { return k == MLX4 || k == MLX5 }

func (h *Host) event(d *device, what string) {
	if h.Watch != nil {
		h.Watch(Event{PF: d.pf.pci, Index: d.index, What: what})
	}
}

// add puts an adapter into the machine.
func (h *Host) add(c Config) {
	a := &adapter{config: c}
	a.device = device{pci: c.PCI, pf: a, index: -1, driver: c.Kind.driver()}
	h.adapters[c.PCI], h.devices[c.PCI] = a, &a.device
	h.show(&a.device)
	dir := "/sys/bus/pci/devices/" + c.PCI
	h.root.put(dir+"/sriov_totalvfs", value(strconv.Itoa(c.TotalVFs)))
	h.root.put(dir+"/sriov_numvfs", &node{
		read:  func() (string, error) { return strconv.Itoa(len(a.functions)), nil },
		write: func(text string) error { return h.writeCount(a, text) },
	})
	h.root.put(dir+"/sriov_drivers_autoprobe", &node{
		read: func() (string, error) {
			if a.autoprobe {
				return "1", nil
			}
			return "0", nil
		},
		write: func(text string) error {
			a.autoprobe = text == "1"
			return nil
		},
	})
	if c.Kind == MLX4 {
		h.root.put(dir+"/mlx4_port1", value("ib"))
	}
	h.start(a)
}

// start loads the adapter's driver at a boot.
func (h *Host) start(a *adapter) {
	a.driver, a.override, a.open, a.memory, a.autoprobe = a.config.Kind.driver(), "", false, "", true
	a.admin, a.granted, a.maps, a.virtual = map[int]string{}, map[int]string{}, map[int][]int{}, map[int]string{}
	a.pkeys = make([]int, pkeyTable)
	a.pkeys[0] = 0xffff
	h.driven(&a.device)
	if a.config.Kind == MLX4 {
		h.makeFunctions(a, a.config.AtLoad)
	}
}

// show makes the files that each PCI function has.
func (h *Host) show(d *device) {
	dir := "/sys/bus/pci/devices/" + d.pci
	kind := d.pf.config.Kind
	class, vendor, id := "0x020000", "0x15b3", "0x1019"
	if kind == IGB {
		vendor, id = "0x8086", "0x10c9"
	}
	if kind == MLX5 {
		class = "0x020700"
	}
	if kind == MLX4 {
		class, id = "0x028000", "0x1003"
	}
	h.root.put(dir+"/class", value(class))
	h.root.put(dir+"/vendor", value(vendor))
	h.root.put(dir+"/device", value(id))
	h.root.put(dir+"/numa_node", value(strconv.Itoa(d.pf.config.NUMANode)))
	h.root.put(dir+"/reset_method", &node{read: func() (string, error) { return "flr", nil }, write: func(string) error { return nil }})
	h.root.put(dir+"/reset", only(func(string) error { return h.reset(d) }))
	h.root.put(dir+"/driver_override", &node{
		read: func() (string, error) {
			if d.override == "" {
				return "(null)", nil
			}
			return d.override, nil
		},
		write: func(text string) error {
			d.override = strings.TrimSpace(text)
			return nil
		},
	})
	if !d.pf.config.NoIOMMU {
		h.group++
		d.group = strconv.Itoa(h.group)
		h.root.put(dir+"/iommu_group", linkTo(d.group))
		h.root.put("/sys/kernel/iommu_groups/"+d.group+"/devices/"+d.pci, linkTo(d.pci))
		if other := d.pf.config.Company; other != "" && d.index >= 0 {
			h.root.put("/sys/kernel/iommu_groups/"+d.group+"/devices/"+other, linkTo(other))
			h.root.put("/sys/bus/pci/devices/"+other+"/class", value("0x010802"))
		}
	}
}

// driven makes what a function's driver makes of it.
func (h *Host) driven(d *device) {
	dir := "/sys/bus/pci/devices/" + d.pci
	h.root.remove(dir + "/driver")
	h.root.remove(dir + "/net")
	h.root.remove("/sys/class/net/" + d.netdev)
	h.root.remove(dir + "/infiniband")
	if d.rdma != "" {
		h.root.remove("/sys/class/infiniband/" + d.rdma)
	}
	d.netdev, d.rdma, d.up = "", "", false
	if d.driver == "" {
		return
	}
	h.root.put(dir+"/driver", linkTo(d.driver))
	if d.driver == fabric.DriverVFIO {
		return
	}
	d.hardware = "52:54:00:00:00:01"
	if r := d.pf.reports[d.index]; r != nil && r.MAC != "" {
		d.hardware = r.MAC
	}
	if d.deaf > 0 {
		d.deaf--
		d.hardware = "66:10:b4:5e:a8:c0" // one of its own
	}
	h.names++
	h.named(d, fmt.Sprintf("eth%d", h.names))
	if d.pf.config.Kind == IGB {
		return
	}
	d.rdma = fmt.Sprintf("%s_%d", strings.TrimSuffix(d.driver, "_core"), h.names)
	h.root.put(dir+"/infiniband/"+d.rdma, &node{below: map[string]*node{}})
	h.showRDMA(d)
}

// named gives a function's interface a name.
func (h *Host) named(d *device, name string) {
	dir := "/sys/bus/pci/devices/" + d.pci + "/net"
	h.root.remove(dir)
	h.root.remove("/sys/class/net/" + d.netdev)
	d.netdev = name
	h.root.put("/sys/class/net/"+name+"/device", linkTo(d.pci))
	h.root.put(dir+"/"+name+"/dev_port", value("0"))
	h.root.put(dir+"/"+name+"/ifindex", value(strconv.Itoa(100+h.names)))
	h.root.put(dir+"/"+name+"/iflink", value(strconv.Itoa(100+h.names)))
	h.root.put(dir+"/"+name+"/carrier", &node{read: func() (string, error) {
		if !d.up {
			return "", unix.EINVAL
		}
		if d.noCarrier {
			return "0", nil
		}
		return "1", nil
	}})
	h.root.put(dir+"/"+name+"/speed", value("1000"))
	h.root.put(dir+"/"+name+"/address", value(d.hardware))
	h.root.put(dir+"/"+name+"/flags", shown(func() string {
		if d.up {
			return "0x1003"
		}
		return "0x1002"
	}))
}

// makeFunctions makes the virtual functions of an adapter.
func (h *Host) makeFunctions(a *adapter, n int) {
	a.reports = map[int]*sriov.Report{}
	for index := range n {
		d := &device{pci: fmt.Sprintf("%s%02x.%d", a.pci[:len("0000:3b:")], 0x10+index/8, index%8), pf: a, index: index}
		a.functions = append(a.functions, d)
		h.devices[d.pci] = d
		h.root.put("/sys/bus/pci/devices/"+a.pci+"/virtfn"+strconv.Itoa(index), linkTo(d.pci))
		h.show(d)
		r := sriov.Report{SpoofCheck: sriov.On, Trusted: sriov.Off, Link: fabric.FunctionLinkAuto}
		if a.config.Kind == MLX5 {
			r = sriov.Report{SpoofCheck: sriov.Off, Trusted: sriov.Off, Link: fabric.FunctionLinkDown, HasGUID: true, GUID: a.virtual[index]}
		}
		a.reports[index] = &r
		if a.autoprobe {
			d.driver = a.config.Kind.virtualDriver()
			h.driven(d)
		}
	}
	if a.config.Kind == MLX4 {
		h.showSlaves(a)
	}
}

// dropFunctions takes the virtual functions away.
func (h *Host) dropFunctions(a *adapter) {
	for _, d := range a.functions {
		d.driver = ""
		h.driven(d)
		h.root.remove("/sys/bus/pci/devices/" + a.pci + "/virtfn" + strconv.Itoa(d.index))
		h.root.remove("/sys/bus/pci/devices/" + d.pci)
		h.root.remove("/sys/kernel/iommu_groups/" + d.group)
		delete(h.devices, d.pci)
	}
	a.functions, a.reports = nil, nil
}

func (h *Host) writeCount(a *adapter, text string) error {
	n, err := strconv.Atoi(text)
	switch {
	case err != nil || n < 0 || n > a.config.TotalVFs:
		return unix.ERANGE
	case a.config.Kind == MLX4 || a.driver != a.config.Kind.driver():
		return unix.ENOENT // it has no sriov_configure
	case n == len(a.functions):
		return nil
	case n > 0 && len(a.functions) > 0:
		return unix.EBUSY
	}
	for _, d := range a.functions {
		if d.open {
			return unix.EBUSY
		}
	}
	if n == 0 {
		h.dropFunctions(a)
		return nil
	}
	h.makeFunctions(a, n)
	return nil
}

func (h *Host) unbind(driver, text string) error {
	d := h.devices[strings.TrimSpace(text)]
	if d == nil || d.driver != driver {
		return unix.ENODEV
	}
	if d.index < 0 && d.driver != fabric.DriverVFIO && d.pf.config.Kind != MLX4 {
		h.dropFunctions(d.pf) // the drivers disable SR-IOV when they go
	}
	d.driver = ""
	h.driven(d)
	h.event(d, "unbind")
	return nil
}

// probe looks for a driver, as pci_device_can_probe and driver_override say.
func (h *Host) probe(text string) error {
	d := h.devices[strings.TrimSpace(text)]
	if d == nil {
		return unix.ENODEV
	}
	if d.driver != "" || d.index >= 0 && !d.pf.autoprobe && d.override == "" {
		return nil
	}
	native := d.pf.config.Kind.driver()
	if d.index >= 0 {
		native = d.pf.config.Kind.virtualDriver()
	}
	switch d.override {
	case "", native:
		d.driver = native
	case fabric.DriverVFIO:
		if d.group == "" {
			return nil // it finds no group, and does not take the device
		}
		d.driver = fabric.DriverVFIO
	default:
		return nil
	}
	h.driven(d)
	h.event(d, "bind")
	return nil
}

func (h *Host) reset(d *device) error {
	d.memory = ""
	h.event(d, "reset")
	return nil
}
