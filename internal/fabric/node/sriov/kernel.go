package sriov

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/kerneltree"
)

// Kernel is the running kernel as a Host.
type Kernel struct{ kerneltree.Tree }

var _ Host = Kernel{}

// Eswitch implements Host, by devlink.
func (k Kernel) Eswitch(pf string) (string, error) {
	device, err := netlink.DevLinkGetDeviceByName("pci", pf)
	if err != nil {
		// Neither kernel nor driver need have devlink; then there is no mode to be in.
		return "", nil //nolint:nilerr // as above
	}
	return device.Attrs.Eswitch.Mode, nil
}

// link finds an interface. One that is gone is ENODEV, whatever the library calls it.
func link(netdev string) (netlink.Link, error) {
	l, err := netlink.LinkByName(netdev)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return nil, fmt.Errorf("interface %s: %w", netdev, unix.ENODEV)
	}
	return l, err
}

// Addressed implements Host. The address that each interface gives itself (fe80::/10) does not count.
func (k Kernel) Addressed(netdev string) (bool, error) {
	l, err := link(netdev)
	if err != nil {
		return false, err
	}
	if l.Attrs().MasterIndex != 0 {
		return true, nil
	}
	addresses, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	for _, a := range addresses {
		if !a.IP.IsLinkLocalUnicast() {
			return true, err
		}
	}
	return false, err
}

// SetUp implements Host.
func (k Kernel) SetUp(netdev string) error {
	l, err := link(netdev)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// SetVF implements Host.
func (k Kernel) SetVF(netdev string, index int, s Setting, to Report) error {
	l, err := link(netdev)
	if err != nil {
		return err
	}
	switch s {
	case SettingMAC:
		mac, err := net.ParseMAC(orZero(to.MAC, zeroMAC))
		if err != nil {
			return err
		}
		return netlink.LinkSetVfHardwareAddr(l, index, mac)
	case SettingGUID:
		guid, err := guidBytes(orZero(to.GUID, zeroGUID))
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetVfNodeGUID(l, index, guid), netlink.LinkSetVfPortGUID(l, index, guid))
	case SettingVLAN:
		return netlink.LinkSetVfVlan(l, index, to.VLAN)
	case SettingRate:
		return netlink.LinkSetVfRate(l, index, to.MinMbps, to.MaxMbps)
	case SettingSpoofCheck:
		return netlink.LinkSetVfSpoofchk(l, index, to.SpoofCheck == On)
	case SettingTrusted:
		return netlink.LinkSetVfTrust(l, index, to.Trusted == On)
	case SettingLink:
		return netlink.LinkSetVfState(l, index, linkNumber(to.Link))
	}
	return fmt.Errorf("%q is no setting of a virtual function", s)
}

func orZero(text, zero string) string {
	if text == "" {
		return zero
	}
	return text
}

func guidBytes(guid string) (net.HardwareAddr, error) {
	var n uint64
	if _, err := fmt.Sscanf(guid, "%016x", &n); err != nil {
		return nil, fmt.Errorf("%q is no GUID: %w", guid, err)
	}
	return net.HardwareAddr(binary.BigEndian.AppendUint64(nil, n)), nil
}

func linkNumber(link fabric.FunctionLink) uint32 {
	switch link {
	case fabric.FunctionLinkUp:
		return nl.IFLA_VF_LINK_STATE_ENABLE
	case fabric.FunctionLinkDown:
		return nl.IFLA_VF_LINK_STATE_DISABLE
	}
	return nl.IFLA_VF_LINK_STATE_AUTO
}

// VFs implements Host. The library reads neither GUIDs nor what an adapter does not have, so the answer is read here (linux/if_link.h, IFLA_VF_*).
func (k Kernel) VFs(netdev string) (map[int]Report, error) {
	l, err := link(netdev)
	if err != nil {
		return nil, err
	}
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	info := nl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Index = int32(l.Attrs().Index)
	request.AddData(info)
	request.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(nl.RTEXT_FILTER_VF)))
	answers, err := request.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return nil, err
	}
	all := map[int]Report{}
	for _, answer := range answers {
		if len(answer) < unix.SizeofIfInfomsg {
			continue
		}
		attributes, err := nl.ParseRouteAttr(answer[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, err
		}
		for _, a := range attributes {
			if a.Attr.Type&typeMask == unix.IFLA_VFINFO_LIST {
				if err := readList(a.Value, all); err != nil {
					return nil, err
				}
			}
		}
	}
	return all, nil
}

func readList(list []byte, all map[int]Report) error {
	functions, err := nl.ParseRouteAttr(list)
	if err != nil {
		return err
	}
	for _, f := range functions {
		attributes, err := nl.ParseRouteAttr(f.Value)
		if err != nil {
			return err
		}
		index, r := readReport(attributes)
		if index >= 0 {
			all[index] = r
		}
	}
	return nil
}

// typeMask leaves out the flags in the type of an attribute (NLA_TYPE_MASK of linux/netlink.h).
const typeMask = 0x3fff

// notKnown is what the kernel reports of a switch that an adapter does not have (rtnl_fill_vfinfo).
const notKnown = 0xffffffff

// readReport reads one function. Each attribute begins with the function's index; index is -1 where there is none.
func readReport(attributes []syscall.NetlinkRouteAttr) (index int, r Report) {
	index = -1
	r.Link = fabric.FunctionLinkAuto
	for _, a := range attributes {
		v := a.Value
		if len(v) < 8 {
			continue
		}
		number := func(at int) uint32 {
			if len(v) < at+4 {
				return 0
			}
			return nl.NativeEndian().Uint32(v[at:])
		}
		switch a.Attr.Type & typeMask {
		case nl.IFLA_VF_MAC:
			index = int(number(0))
			if len(v) >= 10 {
				r.MAC = net.HardwareAddr(v[4:10]).String()
			}
			if r.MAC == zeroMAC {
				r.MAC = ""
			}
		case nl.IFLA_VF_VLAN:
			r.VLAN = int(number(4))
		case nl.IFLA_VF_RATE:
			r.MinMbps, r.MaxMbps = int(number(4)), int(number(8))
		case nl.IFLA_VF_SPOOFCHK:
			r.SpoofCheck = switchNumber(number(4))
		case nl.IFLA_VF_TRUST:
			r.Trusted = switchNumber(number(4))
		case nl.IFLA_VF_LINK_STATE:
			r.Link = linkNamed(number(4))
		case nl.IFLA_VF_IB_PORT_GUID:
			if len(v) >= 16 {
				r.HasGUID = true
				r.GUID = nonZero(fmt.Sprintf("%016x", nl.NativeEndian().Uint64(v[8:])))
			}
		}
	}
	return index, r
}

func switchNumber(n uint32) Switch {
	switch n {
	case notKnown:
		return None
	case 0:
		return Off
	}
	return On
}

func linkNamed(n uint32) fabric.FunctionLink {
	switch n {
	case nl.IFLA_VF_LINK_STATE_ENABLE:
		return fabric.FunctionLinkUp
	case nl.IFLA_VF_LINK_STATE_DISABLE:
		return fabric.FunctionLinkDown
	}
	return fabric.FunctionLinkAuto
}
