package inspection

import (
	"context"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/adapter"
)

// arphrdEther is the type of Ethernet interfaces (linux/if_arp.h); IPoIB has another one.
const arphrdEther = "1"

// readNICs reads the Ethernet interfaces with a device behind them, but for virtual functions.
func readNICs(_ context.Context, s source) (func(*api.Hardware), []string) {
	nics := []api.NIC{}
	var problems []string
	for _, name := range s.tree.Names("sys/class/net") {
		dir := "sys/class/net/" + name
		if s.tree.Text(dir+"/type") != arphrdEther || !s.tree.Exists(dir+"/device") || s.tree.Exists(dir+"/device/physfn") {
			continue
		}
		real := s.tree.Real(dir + "/device")
		nic := api.NIC{
			Name:     name,
			MAC:      strings.ToLower(s.tree.Text(dir + "/address")),
			Driver:   s.tree.Link(dir + "/device/driver"),
			Carrier:  s.tree.Text(dir+"/carrier") == "1",
			PCI:      pciAddress(real),
			NUMANode: s.numaNode(real),
		}
		if speed, ok := s.tree.Int(dir + "/speed"); ok && speed > 0 { // -1: unknown
			nic.SpeedMbps = speed
		}
		if nic.PCI != "" {
			nic.TotalVFs, nic.IOMMU = s.functions(nic.PCI)
		}
		if s.Devices != nil {
			letters, err := s.Devices.WakeOn(name)
			if err != nil {
				problems = append(problems, err.Error())
			}
			nic.WakeOn = letters
		}
		nics = append(nics, nic)
	}
	return func(hw *api.Hardware) { hw.NICs = nics }, problems
}

// functions returns how many virtual functions the adapter at an address can have, and what keeps them apart; nil: nothing.
func (s source) functions(address string) (total int, iommu *api.IOMMU) {
	a, has := adapter.Of(s.tree, address)
	if !has || a.TotalVFs <= 0 {
		return 0, nil
	}
	if a.Group != "" {
		iommu = &api.IOMMU{Group: a.Group, Company: a.Company}
	}
	return a.TotalVFs, iommu
}

// readHCAs reads the RDMA adapters that are functions of a bus: software ones (rxe, siw) are no hardware.
func readHCAs(_ context.Context, s source) (func(*api.Hardware), []string) {
	hcas := []api.HCA{}
	for _, name := range s.tree.Names("sys/class/infiniband") {
		dir := "sys/class/infiniband/" + name
		if !s.tree.Exists(dir+"/device") || s.tree.Exists(dir+"/device/physfn") {
			continue
		}
		real := s.tree.Real(dir + "/device")
		hca := api.HCA{
			Name:     name,
			Type:     s.tree.Text(dir + "/hca_type"),
			Firmware: s.tree.Text(dir + "/fw_ver"),
			GUID:     s.tree.Text(dir + "/node_guid"),
			Ports:    []string{},
			PCI:      pciAddress(real),
			NUMANode: s.numaNode(real),
		}
		if hca.PCI != "" {
			hca.TotalVFs, hca.IOMMU = s.functions(hca.PCI)
		}
		for _, port := range s.tree.Names(dir + "/ports") {
			at := dir + "/ports/" + port
			// The kernel writes "4: ACTIVE" and "100 Gb/sec (4X EDR)".
			_, state, _ := strings.Cut(s.tree.Text(at+"/state"), ": ")
			rate, _, _ := strings.Cut(s.tree.Text(at+"/rate"), " (")
			layer := s.tree.Text(at + "/link_layer")
			hca.Ports = append(hca.Ports, port+": "+strings.Join([]string{layer, strings.ToLower(state), rate}, ", "))
			if guid := portGUID(s.tree.Text(at + "/gids/0")); layer == "InfiniBand" && guid != "" {
				hca.PortGUIDs = append(hca.PortGUIDs, guid)
			}
		}
		hcas = append(hcas, hca)
	}
	return func(hw *api.Hardware) { hw.HCAs = hcas }, nil
}

// portGUID is the GUID in the first GID of a port, whose lower half it is (InfiniBand Architecture Specification 1.2.1, section 4.1.1); "" for none.
func portGUID(gid string) string {
	digits := strings.ReplaceAll(gid, ":", "")
	if len(digits) != 32 || strings.Trim(digits[16:], "0") == "" {
		return ""
	}
	return strings.ToLower(digits[16:])
}
