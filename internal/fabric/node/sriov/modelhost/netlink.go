package modelhost

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov"
)

// ReadFile implements sriov.Host.
func (h *Host) ReadFile(name string) (text string, err error) {
	err = h.do("read "+name, func() error {
		n := h.root.find(name)
		switch {
		case n == nil:
			return unix.ENOENT
		case n.read == nil:
			return unix.EISDIR
		}
		text, err = n.read()
		return err
	})
	return text, err
}

// WriteFile implements sriov.Host.
func (h *Host) WriteFile(name, text string) error {
	return h.do("write "+name+" "+strings.TrimSpace(text), func() error {
		n := h.root.find(name)
		switch {
		case n == nil:
			return unix.ENOENT
		case n.write == nil:
			return unix.EACCES
		}
		return n.write(text)
	})
}

// Readlink implements sriov.Host.
func (h *Host) Readlink(name string) (target string, err error) {
	err = h.do("read "+name, func() error {
		n := h.root.find(name)
		if n == nil {
			return unix.ENOENT
		}
		if n.link == "" {
			return unix.EINVAL
		}
		target = n.link
		return nil
	})
	return target, err
}

// Glob implements sriov.Host.
func (h *Host) Glob(pattern string) (names []string, err error) {
	err = h.do("list "+pattern, func() error {
		names = h.root.match("", strings.Split(strings.Trim(pattern, "/"), "/"), nil)
		return nil
	})
	return names, err
}

// interfaceOf finds an adapter by the present name of its interface.
func (h *Host) interfaceOf(netdev string) (*adapter, error) {
	for _, a := range h.adapters {
		if a.netdev == netdev && netdev != "" {
			return a, nil
		}
	}
	return nil, unix.ENODEV
}

// VFs implements sriov.Host.
func (h *Host) VFs(netdev string) (all map[int]sriov.Report, err error) {
	err = h.do("netlink read "+netdev, func() error {
		a, err := h.interfaceOf(netdev)
		if err != nil {
			return err
		}
		all = map[int]sriov.Report{}
		for index, r := range a.reports {
			all[index] = *r
		}
		return nil
	})
	return all, err
}

// SetVF implements sriov.Host.
func (h *Host) SetVF(netdev string, index int, s sriov.Setting, to sriov.Report) error {
	a, err := h.byInterface(netdev)
	if err != nil {
		return err
	}
	return h.do("netlink set "+a.pci+" "+string(s), func() error {
		if a.netdev != netdev {
			return unix.ENODEV
		}
		r := a.reports[index]
		if r == nil {
			return unix.EINVAL
		}
		if err := refused(a.config.Kind, s, to); err != nil {
			return err
		}
		switch s {
		case sriov.SettingMAC:
			r.MAC = to.MAC
		case sriov.SettingGUID:
			r.GUID, a.virtual[index] = to.GUID, to.GUID // mlx5 gives it to the functions of the same index that are made later
		case sriov.SettingVLAN:
			r.VLAN = to.VLAN
		case sriov.SettingRate:
			r.MinMbps, r.MaxMbps = to.MinMbps, to.MaxMbps
		case sriov.SettingSpoofCheck:
			r.SpoofCheck = to.SpoofCheck
		case sriov.SettingTrusted:
			r.Trusted = to.Trusted
		case sriov.SettingLink:
			r.Link = to.Link
		}
		h.event(a.functions[index], string(s))
		return nil
	})
}

func (h *Host) byInterface(netdev string) (*adapter, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.interfaceOf(netdev)
}

// refused is what the drivers do not support.
func refused(kind Kind, s sriov.Setting, to sriov.Report) error {
	switch {
	case kind == MLX4:
		return unix.EOPNOTSUPP
	case kind == IGB && (s == sriov.SettingLink || s == sriov.SettingGUID):
		return unix.EOPNOTSUPP
	case kind == IGB && s == sriov.SettingRate && (to.MinMbps != 0 || to.MaxMbps > 1000):
		return unix.EINVAL
	case kind == MLX5 && s != sriov.SettingGUID && s != sriov.SettingLink:
		return unix.EOPNOTSUPP
	case kind == MLX5Ethernet && s == sriov.SettingGUID:
		return unix.EOPNOTSUPP
	case s == sriov.SettingLink && to.Link == "":
		return unix.EINVAL
	}
	return nil
}

// Eswitch implements sriov.Host.
func (h *Host) Eswitch(pf string) (mode string, err error) {
	err = h.do("devlink read "+pf, func() error {
		a := h.adapters[pf]
		if a == nil || a.config.Kind == IGB || a.config.Kind == MLX4 {
			return nil
		}
		if mode = "legacy"; a.config.Switchdev {
			mode = "switchdev"
		}
		return nil
	})
	return mode, err
}

// GroupInUse implements sriov.Host.
func (h *Host) GroupInUse(group string) (used bool, err error) {
	err = h.do("open group "+group, func() error {
		for _, d := range h.devices {
			if d.group == group && d.driver == fabric.DriverVFIO {
				used = d.open
			}
		}
		return nil
	})
	return used, err
}

// Addressed implements sriov.Host.
func (h *Host) Addressed(netdev string) (used bool, err error) {
	err = h.do("netlink addresses "+netdev, func() error {
		a, err := h.interfaceOf(netdev)
		if err == nil {
			used = a.config.Addressed
		}
		return err
	})
	return used, err
}

// SetUp implements sriov.Host.
func (h *Host) SetUp(netdev string) error {
	return h.do("netlink up "+netdev, func() error {
		a, err := h.interfaceOf(netdev)
		if err == nil {
			a.up = true
		}
		return err
	})
}
