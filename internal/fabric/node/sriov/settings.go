package sriov

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

const zeroMAC = "00:00:00:00:00:00"

// settings gives the function settings: the difference to what the adapter reports is written, and read back.
func (o *operation) settings(ctx context.Context, s fabric.FunctionSettings) error {
	switch {
	case o.index < 0:
		return nil // a whole port has its own
	case o.adapter.Layer == InfiniBand && o.adapter.Driver == driverMLX4:
		return o.alias(ctx, s)
	}
	settings, want := o.wanted(s)
	return o.report(ctx, settings, want)
}

// wanted returns the settings that the adapter's interface has to report for an owner.
func (o *operation) wanted(s fabric.FunctionSettings) ([]Setting, Report) {
	if o.adapter.Layer == InfiniBand {
		return []Setting{SettingGUID, SettingLink}, Report{GUID: s.GUID, Link: linkOf(s.Link)}
	}
	return ethernetSettings(), Report{
		MAC: strings.ToLower(s.MAC), VLAN: s.VLAN, MinMbps: s.MinMbps, MaxMbps: s.MaxMbps,
		SpoofCheck: switchOf(s.SpoofCheck), Trusted: switchOf(s.Trusted), Link: linkOf(s.Link),
	}
}

// defaults gives the function the settings of one without an owner.
func (o *operation) defaults(ctx context.Context) error {
	switch {
	case o.index < 0:
		return nil
	case o.adapter.Layer == InfiniBand && o.adapter.Driver == driverMLX4:
		return o.alias(ctx, fabric.FunctionSettings{})
	case o.vf == nil:
		return nil // it went with what the adapter knew of it
	case o.adapter.Layer == InfiniBand:
		return o.report(ctx, []Setting{SettingGUID, SettingLink}, Report{Link: fabric.FunctionLinkDown})
	}
	return o.report(ctx, ethernetSettings(), Report{SpoofCheck: On, Trusted: Off, Link: fabric.FunctionLinkAuto})
}

// ethernetSettings are in the order in which they are written: a function is pinned before it is trusted.
func ethernetSettings() []Setting {
	return []Setting{SettingMAC, SettingVLAN, SettingSpoofCheck, SettingTrusted, SettingRate, SettingLink}
}

func linkOf(link fabric.FunctionLink) fabric.FunctionLink {
	if link == "" {
		return fabric.FunctionLinkAuto
	}
	return link
}

// text is a setting of a report in words, by which it is compared.
func (r Report) text(s Setting) string {
	switch s {
	case SettingMAC:
		return r.MAC
	case SettingGUID:
		return r.GUID
	case SettingVLAN:
		return strconv.Itoa(r.VLAN)
	case SettingRate:
		return fmt.Sprintf("%d to %d Mbit/s", r.MinMbps, r.MaxMbps)
	case SettingSpoofCheck:
		return string(r.SpoofCheck)
	case SettingTrusted:
		return string(r.Trusted)
	case SettingLink:
		return string(linkOf(r.Link))
	}
	return ""
}

// report brings what the adapter reports of the function to what is wanted, setting by setting.
func (o *operation) report(ctx context.Context, settings []Setting, want Report) error {
	now, err := o.reported()
	if err != nil {
		return err
	}
	for _, s := range settings {
		if s == SettingGUID && !now.HasGUID {
			return fmt.Errorf("%w: the kernel does not report the GUIDs of functions of adapter %s, so none can be read back; boot Linux 5.5 or later", fabric.ErrFunctionUnfit, o.pf)
		}
		if same(now, want, s, o.record.Owner == nil || o.record.Releasing) {
			continue
		}
		if err := o.set(s, want); err != nil {
			return err
		}
		err := o.m.settle(ctx, fmt.Sprintf("%s of %s", s, o.f), want.text(s), func() (string, error) {
			r, err := o.reported()
			return r.text(s), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// same reports whether a setting needs no write. An adapter without a switch stands for off; and for on where the function gets no owner.
func same(now, want Report, s Setting, free bool) bool {
	if s == SettingTrusted && now.Trusted == None || s == SettingSpoofCheck && now.SpoofCheck == None {
		return free || want.text(s) == string(Off)
	}
	return now.text(s) == want.text(s)
}

// set writes one setting. The interface may be renamed at any moment, so it is looked up, and again if it was gone.
func (o *operation) set(s Setting, want Report) error {
	err := error(unix.ENODEV)
	for attempt := 0; attempt < 3 && errors.Is(err, unix.ENODEV); attempt++ {
		var name string
		if name, err = o.netdev(o.pf); err != nil {
			return err
		}
		if name == "" {
			return fmt.Errorf("adapter %s has no network interface, so %s of %s can't be set", o.pf, s, o.f)
		}
		err = o.m.call(o.pf, fmt.Sprintf("setting %s of %s", s, o.f), func() error { return o.m.cfg.Host.SetVF(name, o.index, s, want) })
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: the driver of adapter %s does not support %s %s of a function: %w", fabric.ErrFunctionUnfit, o.pf, s, want.text(s), err)
	case err != nil:
		return fmt.Errorf("%s of %s can't be set to %s: %w", s, o.f, orNone(want.text(s)), err)
	}
	return nil
}

// reported is what the adapter says of the function now.
func (o *operation) reported() (Report, error) {
	name, err := o.netdev(o.pf)
	if err != nil {
		return Report{}, err
	}
	if name == "" {
		return Report{}, fmt.Errorf("adapter %s has no network interface at the moment", o.pf)
	}
	var all map[int]Report
	err = o.m.call(o.pf, "reading the settings of "+o.f.String(), func() (err error) {
		all, err = o.m.cfg.Host.VFs(name)
		return err
	})
	if err != nil {
		return Report{}, fmt.Errorf("the settings of %s can't be read: %w", o.f, err)
	}
	r, there := all[o.index]
	if !there {
		return Report{}, fmt.Errorf("%w: interface %s does not report %s", fabric.ErrNoFunction, name, o.f)
	}
	return r, nil
}
