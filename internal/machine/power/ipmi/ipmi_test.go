package ipmi_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
)

func open(t power.Target) (power.Switch, error) { return ipmi.New(t) }

func target(address string) power.Target {
	return power.Target{
		Name: "m1", Control: api.PowerControl{Kind: api.PowerIPMI, Address: address},
		Credentials: power.Credentials{User: powertest.User, Password: powertest.Password},
	}
}

func peer(t power.Target, address string) power.Target {
	t.Control.Address = address
	return t
}

func TestOpenIPMIsSimulatorMeetsTheContract(t *testing.T) {
	t.Parallel()
	powertest.Run(t, func(t *testing.T) powertest.Machine {
		sim := powertest.StartSim(t)
		return powertest.Machine{
			Open: open, Target: target(sim.Address), Peer: peer, Datagrams: true,
			State: func(t *testing.T) api.PowerState {
				if sim.Read(t, "power") == "1" {
					return api.PowerOn
				}
				return api.PowerOff
			},
			NextBoot: func(t *testing.T) bool { return sim.Read(t, "boot") == "pxe" },
		}
	})
}

func TestVirtualBMCMeetsTheContract(t *testing.T) {
	t.Parallel()
	names := powertest.Names()
	machines := powertest.StartMachines(t, names...)
	powertest.Run(t, func(t *testing.T) powertest.Machine {
		address := machines.IPMI[names[0]]
		names = names[1:]
		return powertest.Machine{
			Open: open, Target: target(address), Peer: peer, Datagrams: true, SilentToStrangers: true,
			State: func(t *testing.T) api.PowerState {
				if strings.Contains(powertest.IPMITool(t, address, "chassis", "power", "status"), "is on") {
					return api.PowerOn
				}
				return api.PowerOff
			},
			NextBoot: func(t *testing.T) bool {
				return strings.Contains(powertest.IPMITool(t, address, "chassis", "bootparam", "get", "5"), "PXE")
			},
		}
	})
}

func TestAddressesAreCompletedOrRefused(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"10.0.0.7": "10.0.0.7:623", "10.0.0.7:6230": "10.0.0.7:6230", "bmc1.example": "bmc1.example:623", "fd00::7": "[fd00::7]:623",
		"[fd00::7]": "[fd00::7]:623", "[fd00::7]:6230": "[fd00::7]:6230",
	} {
		if got, err := ipmi.Address(address); err != nil || got != want {
			t.Errorf("%q: got %q, %v; want %q", address, got, err, want)
		}
	}
	for _, address := range []string{"", "https://10.0.0.7", "10.0.0.7/x"} {
		if got, err := ipmi.Address(address); err == nil {
			t.Errorf("%q: got %q, want an error", address, got)
		}
	}
}
