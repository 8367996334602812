package vm

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// unplugPatience is for a guest to let a function go: its kernel takes the driver off first.
const unplugPatience = 30 * time.Second

// unplugFunctions takes all functions out of a machine that is about to be saved or moved, and returns once libvirt has none of them any more. A machine that
// stands still lets nothing go, so a paused one runs meanwhile. Standbys carry the traffic then. The caller plugs in again what an error left out.
func (d *Driver) unplugFunctions(ctx context.Context, host *daemon, id string, seen sight) error {
	devices, err := pluggedIn(ctx, host, id)
	if err != nil {
		return err
	}
	if len(devices) == 0 {
		return d.parkFunctions(ctx, *seen.member)
	}
	ctx, cancel := context.WithTimeout(ctx, unplugPatience)
	defer cancel()
	if seen.state == driver.StatePaused {
		if err := d.goOn(ctx, host, id); err != nil {
			return err
		}
		defer func() {
			_ = host.domain(context.WithoutCancel(ctx), id, func(rpc *libvirt.Libvirt, domain libvirt.Domain) error { return rpc.DomainSuspend(domain) })
		}()
	}
	for _, device := range devices {
		err := host.domain(ctx, id, func(rpc *libvirt.Libvirt, domain libvirt.Domain) error {
			return rpc.DomainDetachDeviceFlags(domain, device.XML(), uint32(libvirt.DomainDeviceModifyLive))
		})
		if err != nil {
			return fmt.Errorf("unplugging %s: %w", device, err)
		}
	}
	for {
		left, err := pluggedIn(ctx, host, id)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return d.parkFunctions(ctx, *seen.member)
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return fmt.Errorf("the guest has not let %s go within %v; unload what uses it in the guest, and repeat", left[0], unplugPatience)
		}
	}
}

// plugFunctions gives a machine those functions of its member that it lacks, behind their root ports. The guest's boot agent sets them up as they come.
func (d *Driver) plugFunctions(ctx context.Context, host *daemon, m driver.Member, roots int) error {
	functions, err := d.attachFunctions(ctx, m)
	if err != nil || len(functions) == 0 {
		return err
	}
	has, err := pluggedIn(ctx, host, m.Assignment.ID)
	if err != nil {
		return err
	}
	machine := domain{Roots: make([]rootDisk, roots), NICs: nicsOf(m)}
	machine.keepRootPorts(&m.Assignment)
	machine.take(functions)
	for _, device := range machine.Functions {
		if isAmong(has, device) {
			continue
		}
		err := host.domain(ctx, m.Assignment.ID, func(rpc *libvirt.Libvirt, domain libvirt.Domain) error {
			return rpc.DomainAttachDeviceFlags(domain, device.XML(), uint32(libvirt.DomainDeviceModifyLive))
		})
		if err != nil {
			return fmt.Errorf("plugging in %s: %w", device, err)
		}
	}
	return nil
}

// plugAgain is plugFunctions into a machine that stays, or goes on, here.
func (d *Driver) plugAgain(ctx context.Context, host *daemon, m driver.Member) error {
	if len(passedThrough(&m.Assignment)) == 0 {
		return nil
	}
	image, err := d.image(m)
	if err != nil {
		return err
	}
	if err := d.plugFunctions(ctx, host, m, len(image.Layers)); err != nil {
		return fmt.Errorf("it runs without its function: %w", err)
	}
	return nil
}

// plugOrLater is plugAgain into a machine that is this host's, whatever happens. What can't be plugged in now is by Mend.
func (d *Driver) plugOrLater(ctx context.Context, host *daemon, m driver.Member) {
	if err := d.plugAgain(ctx, host, m); err != nil {
		d.log.WarnContext(ctx, "a function is not plugged in yet; it is tried again", "member", m.Assignment.ID, "error", err)
	}
}

// Portless returns the running members that have functions of adapters, and whose machines lack one; it implements driver.PortExaminer. That is so
// after a move or a failed save when the function could not be plugged in.
func (d *Driver) Portless(ctx context.Context) (map[string]string, error) {
	ids, err := d.members()
	if err != nil {
		return nil, err
	}
	portless := map[string]string{}
	for _, id := range ids {
		r, err := d.recall(id)
		if err != nil || r.Foreign != nil || len(passedThrough(&r.Member.Assignment)) == 0 {
			continue // one without a record is debris, and the disk of another system stays where its functions are
		}
		what, err := d.portless(ctx, &r.Member)
		if err != nil {
			return nil, fmt.Errorf("looking for the functions of member %q: %w", id, err)
		}
		if what != "" {
			portless[id] = what
		}
	}
	return portless, nil
}

func (d *Driver) portless(ctx context.Context, m *driver.Member) (string, error) {
	host, seen, done, err := d.meet(ctx, m.Assignment.ID)
	if err != nil {
		return "", err
	}
	defer done()
	if seen.state != driver.StateRunning {
		return "", nil
	}
	has, err := pluggedIn(ctx, host, m.Assignment.ID)
	if libvirt.IsNotFound(err) { // it has ended meanwhile
		return "", nil
	}
	return lacking(&m.Assignment, has), err
}

// lacking says which functions of an assignment its machine lacks, "" for none. libvirt does not tell whose a device is, and no machine has others.
func lacking(a *api.Assignment, has []hostDevice) string {
	if want := len(passedThrough(a)); len(has) < want {
		return fmt.Sprintf("its virtual machine has %d of its %d functions of adapters", len(has), want)
	}
	return ""
}

// pluggedIn returns the functions that a machine has, as libvirt tells.
func pluggedIn(ctx context.Context, host *daemon, id string) (devices []hostDevice, err error) {
	var text string
	err = host.domain(ctx, id, func(rpc *libvirt.Libvirt, domain libvirt.Domain) (err error) {
		text, err = rpc.DomainGetXMLDesc(domain, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	return parseHostDevices(text)
}

// parseHostDevices returns the PCI devices of the host in a description of a machine, but for GPUs, which are never unplugged.
func parseHostDevices(text string) (devices []hostDevice, err error) {
	type address struct {
		Domain   string `xml:"domain,attr"`
		Bus      string `xml:"bus,attr"`
		Slot     string `xml:"slot,attr"`
		Function string `xml:"function,attr"`
	}
	var machine struct {
		Devices []struct {
			Source  address `xml:"source>address"`
			Address address `xml:"address"`
			Teaming struct {
				Persistent string `xml:"persistent,attr"`
			} `xml:"teaming"`
			Alias struct {
				Name string `xml:"name,attr"`
			} `xml:"alias"`
		} `xml:"devices>hostdev"`
	}
	if err := xml.Unmarshal([]byte(text), &machine); err != nil {
		return nil, fmt.Errorf("libvirt's description of the machine: %w", err)
	}
	for _, d := range machine.Devices {
		if strings.HasPrefix(d.Alias.Name, gpuAlias) {
			continue
		}
		h := hostDevice{Domain: bareHex(d.Source.Domain), Bus: bareHex(d.Source.Bus), Slot: bareHex(d.Source.Slot), Function: bareHex(d.Source.Function), Standby: d.Teaming.Persistent}
		if _, err := fmt.Sscanf(d.Address.Bus, "0x%x", &h.Port); err != nil {
			return nil, errors.Join(errors.New("libvirt's description of the machine has a device without an address"), err)
		}
		devices = append(devices, h)
	}
	return devices, nil
}

func bareHex(text string) string {
	if len(text) > 2 && text[:2] == "0x" {
		return text[2:]
	}
	return text
}

// isAmong reports whether a function is one of these, wherever they are in the machine.
func isAmong(devices []hostDevice, h hostDevice) bool {
	for _, d := range devices {
		if d.String() == h.String() {
			return true
		}
	}
	return false
}

// String is the PCI address on the host.
func (h hostDevice) String() string { return h.Domain + ":" + h.Bus + ":" + h.Slot + "." + h.Function }
