package boot

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// Each kind of power control with each kind of firmware, from off to ready and off again. Machines go in pairs, as many as fit into a common
// machine's memory.
func TestEachKindOfPowerControlBootsEachKindOfFirmware(t *testing.T) {
	firmwares := []api.Firmware{api.FirmwareBIOS, api.FirmwareUEFI}
	kinds := []struct {
		name string
		kind api.PowerKind
		more []string
	}{
		{"redfish", api.PowerRedfish, nil},
		{"ipmi", api.PowerIPMI, nil},
		{"wol", api.PowerWakeOnLAN, nil},
		{"manual", api.PowerManual, nil},
		// Told beforehand what it is, a UEFI machine is told by Redfish to boot over HTTP; its firmware loads iPXE without DHCP's word on it.
		{"http", api.PowerRedfish, []string{"--firmware", "uefi"}},
	}
	var machines []vdc.MachineConfig
	for _, k := range kinds {
		for _, f := range firmwares {
			if k.name == "http" && f == api.FirmwareBIOS {
				continue // BIOS firmware has no HTTP client
			}
			machines = append(machines, vdc.MachineConfig{Name: k.name + "-" + string(f), Firmware: f, MemoryMiB: memoryMiB})
		}
	}
	s := newSite(t, machines)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			s.during(t)
			var names []string
			for _, m := range machines {
				if strings.HasPrefix(m.Name, k.name+"-") {
					names = append(names, m.Name)
				}
			}
			for _, name := range names {
				s.enroll(name, k.kind, k.more...)
			}
			s.run(slices.Concat([]string{"node", "power", "on", "--env", "debian-mpi"}, names)...)
			for _, name := range names {
				if k.kind == api.PowerManual {
					s.waitUntil(name, "waiting for its button", time.Minute, func(r api.MachineRecord) bool { return strings.Contains(r.PowerMessage, "press") })
					s.wantPower(name, api.PowerOff)
					must(t, s.dc.PressPower(name))
				}
			}
			for _, name := range names {
				wantWholeBoot(t, s.waitFor(name, api.MachineReady, bootDeadline))
				if k.name == "http" && !strings.Contains(s.printed(name), "Start HTTP Boot") {
					t.Errorf("no HTTP boot on the console of %s:\n%s", name, s.console(name))
				}
			}
			if k.kind == api.PowerWakeOnLAN {
				// One that is on can't be woken: it goes off, and is looked at then.
				s.run("node", "inspect", names[0])
				s.waitUntil(names[0], "inspected", 2*bootDeadline, func(r api.MachineRecord) bool {
					return r.InspectedAt != nil && r.Phase == api.MachineOff
				})
			}
			s.run(slices.Concat([]string{"node", "power", "off"}, names)...)
			for _, name := range names {
				s.waitFor(name, api.MachineOff, 5*time.Minute)
				s.wantPower(name, api.PowerOff)
			}
		})
	}
	s.wantUntouched()
}
