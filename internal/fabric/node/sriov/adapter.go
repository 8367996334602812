package sriov

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// LinkLayer is what a port speaks. A port of a VPI adapter speaks one or the other, by its configuration.
type LinkLayer string

// The link layers, as the kernel writes them.
const (
	Ethernet   LinkLayer = "Ethernet"
	InfiniBand LinkLayer = "InfiniBand"
)

// Drivers of adapters that differ from the others.
const (
	driverMLX4 = "mlx4_core"
	driverMLX5 = "mlx5_core"
)

// Adapter is a physical function that can have virtual ones.
type Adapter struct {
	// PCI is its address, Driver the kernel's driver, empty for none, and Device VENDOR:DEVICE in hexadecimal digits.
	PCI, Driver, Device string
	// NUMANode is -1 where the kernel does not tell.
	NUMANode int
	// Interface and RDMA are the names of its network interface and RDMA device at the moment, empty for none.
	Interface, RDMA string
	MAC             string
	// GUID is the port's on InfiniBand, 16 hexadecimal digits.
	GUID  string
	Layer LinkLayer
	// VPI: the port's link layer can be chosen here, by the driver mlx4_core.
	VPI bool
	// RoCEv2: the port carries RDMA over UDP (InfiniBand Architecture Specification, annex A17).
	RoCEv2 bool
	Up     bool
	// RateMbps is that of the link, 0 while it is down or not known.
	RateMbps int64
	// Eswitch is legacy, switchdev, or empty for an adapter without a mode.
	Eswitch string
	// TotalVFs is the highest number of virtual functions, and VFs the present one.
	TotalVFs, VFs int
	IOMMUGroup    string
	// Company are the other devices in its IOMMU group that are no bridges.
	Company   []string
	Functions []VirtualFunction
	// Owner holds the whole port; nil: nobody does. Where it is a container, its interface can't be seen from here.
	Owner *fabric.FunctionOwner
	// Quarantine is the step that did not end in time; empty for an adapter that is not quarantined.
	Quarantine string
	// Problem is why it could not be read.
	Problem string
}

// VirtualFunction is one of an adapter's virtual functions.
type VirtualFunction struct {
	Index int
	fabric.FunctionState
	Company []string
	// Owner holds it; nil: it is free. Problem is why its release has not ended.
	Owner   *fabric.FunctionOwner
	Problem string
	// Foreign is who uses it without being its owner: the node, or a program that is not Nearmetal's.
	Foreign string
}

// Adapters reads the node's adapters, sorted by address. An adapter that can't be read has a Problem.
func (m *Manager) Adapters(ctx context.Context) ([]Adapter, error) {
	files, err := m.cfg.Host.Glob(pciDevices + "*/sriov_totalvfs")
	if err != nil {
		return nil, fmt.Errorf("list the adapters: %w", err)
	}
	var all []Adapter
	for _, file := range files {
		pf := strings.Split(strings.TrimPrefix(file, pciDevices), "/")[0]
		class, err := m.cfg.Host.ReadFile(pciDevices + pf + "/class")
		if err != nil || !strings.HasPrefix(hexadecimal(class), "02") { // network controllers (PCI Code and ID Assignment Specification)
			continue
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		all = append(all, m.adapter(pf))
	}
	return all, nil
}

// adapter reads one adapter. It touches none that is quarantined: a reader would hang, too.
func (m *Manager) adapter(pf string) Adapter {
	a := Adapter{PCI: pf, NUMANode: -1, Owner: m.ledger.get(fabric.Function{Device: pf}).Owner}
	if q, there := m.ledger.quarantine(pf); there && q.Boot == m.boot {
		a.Quarantine = q.Step
		return a
	}
	if err := m.on(pf).adapter(&a); err != nil {
		a.Problem = err.Error()
		if q, there := m.ledger.quarantine(pf); there && q.Boot == m.boot {
			a.Quarantine = q.Step
		}
	}
	return a
}

func (b bounded) adapter(a *Adapter) (err error) {
	dir := pciDevices + a.PCI
	if a.TotalVFs, err = b.number(dir + "/sriov_totalvfs"); err != nil {
		return err
	}
	if a.VFs, err = b.number(dir + "/sriov_numvfs"); err != nil {
		return err
	}
	vendor, _ := b.read(dir + "/vendor")
	device, _ := b.read(dir + "/device")
	a.Device = hexadecimal(vendor) + ":" + hexadecimal(device)
	state, company, err := b.state(a.PCI)
	if err != nil {
		return err
	}
	a.Driver, a.NUMANode, a.IOMMUGroup, a.Company, a.Interface, a.RDMA = state.Driver, state.NUMANode, state.IOMMUGroup, company, state.Interface, state.RDMA
	if err := b.port(a); err != nil {
		return err
	}
	for index := range a.VFs {
		vf, there, err := b.function(a.PCI, index)
		if err != nil {
			return err
		}
		if there {
			a.Functions = append(a.Functions, vf)
		}
	}
	return nil
}

// port reads what an adapter's first port is, and whether it is up.
func (b bounded) port(a *Adapter) (err error) {
	dir := pciDevices + a.PCI
	a.Layer = Ethernet
	if a.RDMA != "" {
		port := rdmaClass + a.RDMA + "/ports/1"
		if layer, err := b.read(port + "/link_layer"); err == nil {
			a.Layer = LinkLayer(layer)
		}
		types, err := b.glob(port + "/gid_attrs/types/*")
		if err != nil {
			return err
		}
		for _, file := range types {
			if text, err := b.read(file); err == nil && text == "RoCE v2" { // EINVAL where the table has no entry
				a.RoCEv2 = true
				break
			}
		}
		if a.Layer == InfiniBand {
			state, _ := b.read(port + "/state")
			rate, _ := b.read(port + "/rate")
			a.Up, a.RateMbps = strings.HasSuffix(state, "ACTIVE"), gigabits(rate)
			gid, _ := b.read(port + "/gids/0")
			a.GUID = guidOf(gid)
		}
	}
	if a.VPI, err = b.exists(dir + "/mlx4_port1"); err != nil {
		return err
	}
	if a.Eswitch, err = b.eswitch(); err != nil {
		return err
	}
	if a.Interface != "" && a.Layer == Ethernet {
		at := dir + "/net/" + a.Interface
		a.MAC, _ = b.read(at + "/address")
		carrier, _ := b.read(at + "/carrier") // EINVAL while it is down
		a.Up = carrier == "1"
		if rate, err := b.number(at + "/speed"); err == nil && a.Up {
			a.RateMbps = int64(max(rate, 0)) // -1: not known
		}
	}
	return nil
}

func (b bounded) eswitch() (mode string, err error) {
	err = b.m.call(b.pf, "reading the mode of the embedded switch", func() (err error) {
		mode, err = b.m.cfg.Host.Eswitch(b.pf)
		return err
	})
	return mode, err
}

// function reads a virtual function; false if the adapter has none of that index at the moment.
func (b bounded) function(pf string, index int) (VirtualFunction, bool, error) {
	pci, err := b.link(pciDevices + pf + "/virtfn" + strconv.Itoa(index))
	if err != nil || pci == "" {
		return VirtualFunction{}, false, err
	}
	state, company, err := b.state(pci)
	if err != nil {
		return VirtualFunction{}, false, err
	}
	r := b.m.ledger.get(fabric.Function{Device: pf, Part: fabric.Part(index)})
	vf := VirtualFunction{Index: index, FunctionState: state, Company: company, Owner: r.Owner, Problem: r.Problem}
	if r.Owner == nil {
		if err := b.foreign(state); err != nil {
			vf.Foreign = err.Error()
		}
	}
	return vf, true, nil
}

// state reads where a PCI function is now, and what else is in its IOMMU group.
func (b bounded) state(pci string) (s fabric.FunctionState, company []string, err error) {
	dir := pciDevices + pci
	s.PCI = pci
	if s.Driver, err = b.driver(pci); err != nil {
		return s, nil, err
	}
	if s.Interface, err = b.netdev(pci); err != nil {
		return s, nil, err
	}
	if s.RDMA, err = b.first(dir + "/infiniband/*"); err != nil {
		return s, nil, err
	}
	if s.IOMMUGroup, err = b.link(dir + "/iommu_group"); err != nil {
		return s, nil, err
	}
	s.NUMANode = -1
	if node, err := b.number(dir + "/numa_node"); err == nil {
		s.NUMANode = max(node, -1)
	}
	if s.IOMMUGroup != "" {
		company, err = b.company(s.IOMMUGroup, pci)
	}
	return s, company, err
}

// company lists the other devices of an IOMMU group. Bridges may stay with their drivers (Documentation/driver-api/vfio.rst).
func (b bounded) company(group, pci string) ([]string, error) {
	others, err := b.base("/sys/kernel/iommu_groups/" + group + "/devices/*")
	return slices.DeleteFunc(others, func(other string) bool {
		class, err := b.read(pciDevices + other + "/class")
		return other == pci || err == nil && strings.HasPrefix(hexadecimal(class), "0604")
	}), err
}

func (b bounded) number(name string) (int, error) {
	text, err := b.read(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("%s has %q, not a number", name, text)
	}
	return n, nil
}

// gigabits reads a rate such as "100 Gb/sec (4X EDR)", in Mbit/s.
func gigabits(text string) int64 {
	amount, _, _ := strings.Cut(text, " ")
	n, _ := strconv.ParseFloat(amount, 64)
	return int64(n * 1000)
}

// guidOf returns the lower half of a GID in eight groups, "" for a zero one.
func guidOf(gid string) string {
	groups := strings.Split(strings.TrimSpace(gid), ":")
	if len(groups) != 8 {
		return ""
	}
	return nonZero(strings.Join(groups[4:], ""))
}

const zeroGUID = "0000000000000000"

func nonZero(guid string) string {
	if guid == zeroGUID {
		return ""
	}
	return guid
}
