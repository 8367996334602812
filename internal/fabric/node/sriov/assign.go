package sriov

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Assign makes the function the owner's, and sets it up.
func (m *Manager) Assign(ctx context.Context, owner fabric.FunctionOwner, f fabric.Function, s fabric.FunctionSettings) (fabric.FunctionState, error) {
	none := fabric.FunctionState{}
	if err := validate(f, s); err != nil {
		return none, err
	}
	o, err := m.begin(ctx, f)
	if err != nil {
		return none, err
	}
	defer o.end()
	if err := o.record.admit(owner); err != nil {
		return none, err
	}
	if err := o.alone(); err != nil {
		return none, err
	}
	if o.index >= 0 && o.vf == nil {
		return none, fmt.Errorf("%w: adapter %s has no virtual function %d at the moment; it has %d", fabric.ErrNoFunction, f.Device, o.index, o.adapter.VFs)
	}
	if err := o.can(s); err != nil {
		return none, err
	}
	first := o.record.Owner == nil
	if first {
		if err := o.free(); err != nil {
			return none, err
		}
	}
	wasClean := o.record.Clean
	o.record.Owner, o.record.Settings, o.record.Clean = &owner, s, false
	if o.index < 0 && first {
		o.record.VFs = o.adapter.VFs
	}
	// From here on the function may carry the owner's settings, so it is written down first: whoever comes back after a crash must know whom to
	// release.
	if err := m.ledger.claim(o.record); err != nil {
		return none, err
	}
	if first && !wasClean {
		if err := o.cleanse(ctx); err != nil {
			return none, err
		}
	}
	if err := o.settings(ctx, s); err != nil {
		return none, err
	}
	return o.look()
}

// operation is work on one function, with its adapter locked.
type operation struct {
	bounded
	f     fabric.Function
	index int
	// adapter is as it was read at the beginning; vf is nil where the adapter has none of that index.
	adapter Adapter
	vf      *VirtualFunction
	record  record
	end     func()
}

// begin locks the adapter of a function and reads both.
func (m *Manager) begin(ctx context.Context, f fabric.Function) (*operation, error) {
	index, err := f.Index()
	if err != nil {
		return nil, err
	}
	if !IsAddress(f.Device) {
		return nil, fmt.Errorf("%q is no PCI address such as 0000:3b:00.0", f.Device)
	}
	unlock, err := m.lock(ctx, f.Device)
	if err != nil {
		return nil, err
	}
	o := &operation{bounded: m.on(f.Device), f: f, index: index, record: m.ledger.get(f), end: unlock}
	if err := o.open(); err != nil {
		unlock()
		return nil, err
	}
	return o, nil
}

func (o *operation) open() error {
	if err := o.m.quarantined(o.pf); err != nil {
		return err
	}
	there, err := o.exists(pciDevices + o.pf + "/sriov_totalvfs")
	if err != nil {
		return err
	}
	if !there {
		return fmt.Errorf("%w: the node has no adapter %s with SR-IOV", fabric.ErrNoFunction, o.pf)
	}
	o.adapter = Adapter{PCI: o.pf}
	if o.adapter.VFs, err = o.number(pciDevices + o.pf + "/sriov_numvfs"); err != nil {
		return err
	}
	state, company, err := o.state(o.pf)
	if err != nil {
		return err
	}
	o.adapter.Driver, o.adapter.Interface, o.adapter.RDMA = state.Driver, state.Interface, state.RDMA
	o.adapter.IOMMUGroup, o.adapter.Company, o.adapter.NUMANode = state.IOMMUGroup, company, state.NUMANode
	if err := o.port(&o.adapter); err != nil {
		return err
	}
	if o.index < 0 {
		return nil
	}
	vf, found, err := o.function(o.pf, o.index)
	if found {
		o.vf = &vf
	}
	return err
}

// pci is the address of the function; "" for a virtual one that is not there.
func (o *operation) pci() string {
	switch {
	case o.index < 0:
		return o.pf
	case o.vf == nil:
		return ""
	}
	return o.vf.PCI
}

// look reads where the function is now.
func (o *operation) look() (fabric.FunctionState, error) {
	s, _, err := o.state(o.pci())
	return s, err
}

// alone reports whether the owner of the whole port excludes those of its virtual functions, or the other way round.
func (o *operation) alone() error {
	for _, other := range o.m.ledger.of(o.pf) {
		if (o.index < 0) != (other.Part == "") {
			return fmt.Errorf("%w: assignment %s has %s", fabric.ErrFunctionHeld, other.Owner.Assignment, other.function())
		}
	}
	return nil
}

// can reports why an adapter can't have settings.
func (o *operation) can(s fabric.FunctionSettings) error {
	unfit := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{fabric.ErrFunctionUnfit}, args...)...)
	}
	a := &o.adapter
	if o.index < 0 {
		used, err := o.addressed(a.Interface)
		if err != nil {
			return err
		}
		if used {
			return unfit("the node itself uses interface %s of adapter %s", a.Interface, o.pf)
		}
		if s.GUID != "" && a.GUID != "" && s.GUID != a.GUID { // unknown while a member has it
			return unfit("the port of adapter %s has GUID %s, not %s", o.pf, a.GUID, s.GUID)
		}
		return nil
	}
	switch {
	case a.Eswitch == "switchdev":
		return unfit("the embedded switch of adapter %s is in switchdev mode, in which it takes no VLAN or MAC of a function; run: devlink dev eswitch set pci/%s mode legacy", o.pf, o.pf)
	case a.Layer == InfiniBand && s.GUID == "":
		return unfit("adapter %s is on InfiniBand, so its functions need a GUID", o.pf)
	case a.Layer == InfiniBand && (s.VLAN != 0 || s.MinMbps != 0 || s.MaxMbps != 0):
		return unfit("adapter %s is on InfiniBand, which has neither VLANs nor rates of functions", o.pf)
	case a.Layer == InfiniBand && a.Driver == driverMLX4:
		return nil
	case a.Layer == InfiniBand && (o.m.cfg.VirtualPorts == nil || !o.m.cfg.VirtualPorts(o.pf)):
		return unfit("the virtual ports of adapter %s (%s) need a subnet manager with virtualization, and the one of its cell has none", o.pf, a.Driver)
	case a.Layer != InfiniBand && (s.GUID != "" || s.PKey != 0):
		return unfit("adapter %s is on Ethernet, which has neither GUIDs nor partition keys", o.pf)
	case a.Layer != InfiniBand && a.Interface == "":
		return unfit("adapter %s has no network interface, by which its functions are set up; bind its driver", o.pf)
	}
	return nil
}

func (o *operation) addressed(netdev string) (used bool, err error) {
	if netdev == "" {
		return false, nil
	}
	err = o.m.call(o.pf, "reading the addresses of "+netdev, func() (err error) {
		used, err = o.m.cfg.Host.Addressed(netdev)
		return err
	})
	return used, err
}

// free reports who uses a function that nobody owns.
func (o *operation) free() error {
	if o.index < 0 {
		return o.m.unused(o.bounded, o.pf, o.adapter.VFs)
	}
	return o.foreign(o.vf.FunctionState)
}

// validate reports what is wrong with an order, whatever the adapter.
func validate(f fabric.Function, s fabric.FunctionSettings) error {
	if f.Kind != api.PortVF && f.Kind != api.PortPF && f.Kind != api.PortMACVTAP {
		return fmt.Errorf("a port of kind %q is on no function of an adapter", f.Kind)
	}
	if (f.Kind == api.PortPF) != (f.Part == "") {
		return fmt.Errorf("a port of kind %s can't be %s", f.Kind, f)
	}
	if s.MAC != "" {
		mac, err := net.ParseMAC(s.MAC)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 || mac.String() == zeroMAC {
			return fmt.Errorf("%q is no MAC of one interface", s.MAC)
		}
	}
	if s.GUID != "" && (!guidPattern.MatchString(s.GUID) || s.GUID == zeroGUID || s.GUID == deletedGUID) {
		return fmt.Errorf("%q is no GUID: write 16 hexadecimal digits, such as 0e6d000000000003", s.GUID)
	}
	switch {
	case s.VLAN < 0 || s.VLAN > api.MaxVLAN:
		return fmt.Errorf("VLAN %d is not from 1 to %d", s.VLAN, api.MaxVLAN)
	case s.PKey < 0 || s.PKey > api.MaxPKey:
		return fmt.Errorf("partition key %#x is not from %#x to %#x", s.PKey, api.MinPKey, api.MaxPKey)
	case s.MinMbps < 0 || s.MaxMbps < 0 || s.MaxMbps > 0 && s.MinMbps > s.MaxMbps:
		return errors.New("the rates of a function are from 0 up, the minimum not above the maximum: got " + strconv.Itoa(s.MinMbps) + " and " + strconv.Itoa(s.MaxMbps) + " Mbit/s")
	}
	return nil
}

var guidPattern = regexp.MustCompile(`^[0-9a-f]{16}$`)
