package vdc

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// The bridges inside, and the inner ends of the cables.
const (
	provisioningBridge = "provisioning"
	dataBridge         = "data"
	// These begin the names of machines' ends of the cables to the bridges.
	provisioningPort   = "p-"
	dataPort           = "d-"
	provisioningUplink = "uplink-prov"
	dataUplink         = "uplink-data"
	bmcUplink          = "uplink-bmc"
)

// wire makes the network namespace, its bridges and the cables out of it.
func (dc *DataCentre) wire() (err error) {
	if dc.config.Namespace == "" {
		dc.outside, err = netns.Current()
	} else {
		dc.outside, err = netns.Open(dc.config.Namespace)
	}
	if err != nil {
		return err
	}
	if dc.inside, err = netns.New(); err != nil {
		return err
	}
	if err := dc.inside.Do(quietIPv6); err != nil {
		return err
	}
	in, err := netlink.NewHandleAt(vnetns.NsHandle(dc.inside.FD()))
	if err != nil {
		return err
	}
	defer in.Close()
	lo, err := in.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := in.LinkSetUp(lo); err != nil {
		return err
	}
	bridges := []string{provisioningBridge}
	for _, m := range dc.machines {
		if !slices.Contains(bridges, m.cable) {
			bridges = append(bridges, m.cable)
		}
	}
	for _, bridge := range bridges {
		if err := in.LinkAdd(&netlink.Bridge{LinkAttrs: named(bridge), MulticastSnooping: new(bool)}); err != nil {
			return fmt.Errorf("making bridge %s: %w", bridge, err)
		}
		if err := raise(in, bridge); err != nil {
			return err
		}
	}
	if err := dc.cable(in, provisioningUplink, dc.config.ProvisioningLink, provisioningBridge); err != nil {
		return err
	}
	if err := dc.wireData(in); err != nil {
		return err
	}
	if err := dc.cable(in, bmcUplink, dc.config.BMCLink, ""); err != nil {
		return err
	}
	return dc.addressBMCs(in)
}

// wireData makes the cable out of the data network if there is to be one, and where the network is a switch, the cables from machines to its ports.
func (dc *DataCentre) wireData(in *netlink.Handle) error {
	if dc.config.DataLink != "" {
		bridge := dataBridge
		if dc.config.Switch {
			bridge = "" // the switch takes it
		}
		if err := dc.cable(in, dataUplink, dc.config.DataLink, bridge); err != nil {
			return err
		}
	}
	if !dc.config.Switch {
		return nil
	}
	if err := dc.cableMachines(in); err != nil {
		return err
	}
	if dc.config.DataLink == "" {
		return nil
	}
	return dc.outside.Do(func() error { return fillChecksums(dc.config.DataLink) })
}

// quietIPv6 keeps the inside from speaking by itself.
func quietIPv6() error {
	for _, which := range []string{"all", "default"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func named(name string) netlink.LinkAttrs {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return attrs
}

func raise(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err == nil {
		err = h.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("raising link %s: %w", name, err)
	}
	return nil
}

// cable makes a veth pair: one end inside, at a bridge unless that is empty, the other where the caller wants it.
func (dc *DataCentre) cable(in *netlink.Handle, inner, outer, bridge string) error {
	veth := &netlink.Veth{LinkAttrs: named(inner), PeerName: outer, PeerNamespace: netlink.NsFd(dc.outside.FD())}
	if err := in.LinkAdd(veth); err != nil {
		return fmt.Errorf("making the cable %s (is there a link of that name already?): %w", outer, err)
	}
	if bridge != "" {
		master, err := in.LinkByName(bridge)
		if err != nil {
			return err
		}
		if err := in.LinkSetMaster(veth, master); err != nil {
			return err
		}
	}
	if err := raise(in, inner); err != nil {
		return err
	}
	out, err := netlink.NewHandleAt(vnetns.NsHandle(dc.outside.FD()))
	if err != nil {
		return err
	}
	defer out.Close()
	return raise(out, outer)
}

// addressBMCs gives the BMCs their addresses, and the outer end of their cable one in their network.
func (dc *DataCentre) addressBMCs(in *netlink.Handle) error {
	network := dc.config.BMCNetwork
	link, err := in.LinkByName(bmcUplink)
	if err != nil {
		return err
	}
	for _, m := range dc.machines {
		if err := in.AddrAdd(link, &netlink.Addr{IPNet: ipNet(m.bmc, network.Bits())}); err != nil {
			return err
		}
	}
	out, err := netlink.NewHandleAt(vnetns.NsHandle(dc.outside.FD()))
	if err != nil {
		return err
	}
	defer out.Close()
	if link, err = out.LinkByName(dc.config.BMCLink); err != nil {
		return err
	}
	return out.AddrAdd(link, &netlink.Addr{IPNet: ipNet(addressAt(network, gatewayBMC), network.Bits())})
}

// unwire removes the cables at once; the kernel removes the rest with the namespace, when it gets to it.
func (dc *DataCentre) unwire() error {
	if dc.inside == (netns.Handle{}) {
		if dc.outside != (netns.Handle{}) {
			return dc.outside.Close()
		}
		return nil
	}
	in, err := netlink.NewHandleAt(vnetns.NsHandle(dc.inside.FD()))
	if err == nil {
		defer in.Close()
		for _, name := range []string{provisioningUplink, dataUplink, bmcUplink} {
			link, lookErr := in.LinkByName(name)
			var absent netlink.LinkNotFoundError
			if errors.As(lookErr, &absent) {
				continue
			}
			if lookErr == nil {
				lookErr = in.LinkDel(link)
			}
			err = errors.Join(err, lookErr)
		}
	}
	return errors.Join(err, dc.inside.Close(), dc.outside.Close())
}

func ipNet(addr interface{ AsSlice() []byte }, bits int) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(bits, 32)}
}
