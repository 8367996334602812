package vdc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"

	"github.com/nearmetal/nearmetal/api"
)

// hypervisor is the private libvirt daemon.
type hypervisor struct {
	rpc *libvirt.Libvirt
}

// errInsideEnded: the programs inside ended while they were waited for.
var errInsideEnded = errors.New("the data centre's programs ended")

// retryEvery is how often something that comes up is looked at.
const retryEvery = 50 * time.Millisecond

// until calls try until it succeeds; its last error is told when ctx or the data centre ends first.
func until(ctx context.Context, ended <-chan struct{}, try func() error) error {
	ticker := time.NewTicker(retryEvery)
	defer ticker.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ended:
			return errors.Join(errInsideEnded, err)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// connectHypervisor waits for the daemon.
func connectHypervisor(ctx context.Context, dir string, ended <-chan struct{}) (*hypervisor, error) {
	socket := filepath.Join(dir, "run", "libvirt-sock")
	h := &hypervisor{}
	err := until(ctx, ended, func() error {
		h.rpc = libvirt.NewWithDialer(dialers.NewLocal(dialers.WithSocket(socket)))
		return h.rpc.ConnectToURI(libvirt.QEMUSystem)
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to libvirt: %w", err)
	}
	return h, nil
}

func (h *hypervisor) close() { _ = h.rpc.Disconnect() }

// define makes a machine known, powered off.
func (h *hypervisor) define(m *Machine, dir string, kvm bool) error {
	text, err := domainXML(m, dir, kvm)
	if err != nil {
		return err
	}
	if _, err := h.rpc.DomainDefineXML(text); err != nil {
		return fmt.Errorf("defining machine %s: %w", m.Name, err)
	}
	return nil
}

// do looks a machine up and calls f with it.
func (h *hypervisor) do(what, machine string, f func(libvirt.Domain) error) error {
	domain, err := h.rpc.DomainLookupByName(machine)
	if err == nil {
		err = f(domain)
	}
	if err != nil {
		return fmt.Errorf("%s machine %s: %w", what, machine, err)
	}
	return nil
}

// state is on also for a machine that is halted, as at a BMC.
func (h *hypervisor) state(machine string) (state api.PowerState, halted bool, err error) {
	state = api.PowerUnknown
	err = h.do("looking at", machine, func(d libvirt.Domain) error {
		number, _, err := h.rpc.DomainGetState(d, 0)
		if err != nil {
			return err
		}
		switch libvirt.DomainState(number) {
		case libvirt.DomainShutoff, libvirt.DomainCrashed:
			state = api.PowerOff
		default:
			state, halted = api.PowerOn, libvirt.DomainState(number) == libvirt.DomainPaused
		}
		return nil
	})
	return state, halted, err
}

func (h *hypervisor) on(machine string) error {
	return h.do("starting", machine, func(d libvirt.Domain) error {
		if err := h.rpc.DomainCreate(d); err != nil && !invalidOperation(err) {
			return err
		}
		return nil
	})
}

func (h *hypervisor) off(machine string) error {
	return h.do("cutting the power of", machine, func(d libvirt.Domain) error {
		if err := h.rpc.DomainDestroy(d); err != nil && !invalidOperation(err) {
			return err
		}
		return nil
	})
}

func (h *hypervisor) halt(machine string) error {
	return h.do("halting", machine, func(d libvirt.Domain) error {
		if err := h.rpc.DomainSuspend(d); err != nil && !invalidOperation(err) {
			return err
		}
		return nil
	})
}

func (h *hypervisor) resume(machine string) error {
	return h.do("resuming", machine, func(d libvirt.Domain) error {
		if err := h.rpc.DomainResume(d); err != nil && !invalidOperation(err) {
			return err
		}
		return nil
	})
}

// invalidOperation is libvirt's answer when a machine is in the asked state already.
func invalidOperation(err error) bool {
	var problem libvirt.Error
	return errors.As(err, &problem) && problem.Code == uint32(libvirt.ErrOperationInvalid)
}

// setLink raises or cuts a NIC's link, now and for later starts.
func (h *hypervisor) setLink(machine, mac string, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	return h.do("changing a NIC of", machine, func(d libvirt.Domain) error {
		active, err := h.rpc.DomainIsActive(d)
		if err != nil {
			return err
		}
		if active != 0 {
			if err := h.updateNIC(d, mac, state, 0, libvirt.DomainDeviceModifyLive); err != nil {
				return err
			}
		}
		return h.updateNIC(d, mac, state, libvirt.DomainXMLInactive, libvirt.DomainDeviceModifyConfig)
	})
}

func (h *hypervisor) updateNIC(d libvirt.Domain, mac, state string, which libvirt.DomainXMLFlags, how libvirt.DomainDeviceModifyFlags) error {
	text, err := h.rpc.DomainGetXMLDesc(d, which)
	if err != nil {
		return err
	}
	nic, err := interfaceXML(text, mac, state)
	if err != nil {
		return err
	}
	return h.rpc.DomainUpdateDeviceFlags(d, nic, how)
}
