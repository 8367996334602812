// Package power tries the power switches on emulated machines: every kind on every firmware, and every fault of a BMC.
//
// It needs root and what setup/install.sh testbed installs, and takes minutes: it runs with NEARMETAL_TESTBED=1 only.
package power

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/console"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
	"github.com/nearmetal/nearmetal/internal/machine/power/switches"
	"github.com/nearmetal/nearmetal/internal/machine/power/wol"
	"github.com/nearmetal/nearmetal/internal/machine/provisioner"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

const provisioningLink = "pwrprov0"

func start(t *testing.T) *vdc.DataCentre {
	t.Helper()
	needs.Request(t, "NEARMETAL_TESTBED", "make test-testbed")
	dc, err := vdc.Start(t.Context(), vdc.Config{
		Name: "power", ProvisioningLink: provisioningLink, BMCLink: "pwrbmc0", BMCNetwork: netip.MustParsePrefix("10.98.44.0/24"),
		Machines: []vdc.MachineConfig{{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: 256}, {Name: "u1", Firmware: api.FirmwareUEFI, MemoryMiB: 256}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dc.Close(); err != nil {
			t.Error(err)
		}
	})
	return dc
}

// targets are a machine's, by each way to reach its power.
func targets(m vdc.Machine) map[string]power.Target {
	target := func(control api.PowerControl) power.Target {
		return power.Target{Name: m.Name, Control: control, Credentials: power.Credentials{User: m.User, Password: m.Password}, MACs: []string{m.MAC}}
	}
	return map[string]power.Target{
		"ipmi":         target(api.PowerControl{Kind: api.PowerIPMI, Address: m.IPMI}),
		"redfish":      target(api.PowerControl{Kind: api.PowerRedfish, Address: m.RedfishURL, System: m.UUID}),
		"redfish, TLS": target(api.PowerControl{Kind: api.PowerRedfish, Address: m.SecureURL, System: m.UUID, CertificateSHA256: m.CertificateSHA256}),
	}
}

func opener() power.Opener {
	return switches.Opener(switches.Options{WakeOnLAN: wol.Options{Interface: provisioningLink}})
}

func state(t *testing.T, dc *vdc.DataCentre, machine string) api.PowerState {
	t.Helper()
	state, err := dc.Power(machine)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// eventually waits for what a machine does by itself.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	limit := time.After(time.Minute)
	for !is() {
		select {
		case <-ticker.C:
		case <-limit:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func TestEachKindMeetsTheContractOnEachFirmware(t *testing.T) {
	dc := start(t)
	for _, m := range dc.Machines() {
		for kind, target := range targets(m) {
			t.Run(m.Name+" "+kind, func(t *testing.T) {
				powertest.Run(t, func(t *testing.T) powertest.Machine {
					if err := dc.CutPower(m.Name); err != nil {
						t.Fatal(err)
					}
					return powertest.Machine{
						Open: opener(), Target: target, Buttonless: true,
						State: func(t *testing.T) api.PowerState { return state(t, dc, m.Name) },
						Sessions: func(t *testing.T) int {
							redfish, _, err := dc.BMCSessions(m.Name)
							if err != nil {
								t.Fatal(err)
							}
							return redfish
						},
					}
				})
			})
		}
		t.Run(m.Name+" wol", func(t *testing.T) {
			if err := dc.CutPower(m.Name); err != nil {
				t.Fatal(err)
			}
			s, err := opener()(power.Target{Name: m.Name, Control: api.PowerControl{Kind: api.PowerWakeOnLAN}, MACs: []string{m.MAC}})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.On(t.Context(), power.BootDevice{Network: true}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the magic packet wakes it", func() bool { return state(t, dc, m.Name) == api.PowerOn })
		})
	}
}

func TestAConsoleShowsWhatAMachinePrints(t *testing.T) {
	dc := start(t)
	m := dc.Machines()[0]
	address := m.Console
	if !strings.HasPrefix(address, "tcp://") {
		address = "tcp://" + address
	}
	c, err := console.Dial(t.Context(), address, power.Target{Name: m.Name})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := dc.PressPower(m.Name); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(time.Minute, func() { c.Close() })
	defer stop.Stop()
	var printed []byte
	var buffer [1024]byte
	for !strings.Contains(string(printed), "SeaBIOS") {
		n, err := c.Read(buffer[:])
		if err != nil {
			t.Fatalf("the console ended after %q: %v", printed, err)
		}
		printed = append(printed, buffer[:n]...)
	}
}

func TestEachFaultOfABMCIsToldAndNoneIsTakenForOff(t *testing.T) {
	dc := start(t)
	m := dc.Machines()[0]
	for _, tt := range []struct {
		fault vdc.BMCFault
		// was is the machine's power before it is woken; truth what it is when all was said.
		was, truth api.PowerState
		// done: the order is carried out; problem is what is said otherwise.
		done    bool
		problem string
		final   bool
	}{
		{fault: vdc.BMCFault{Kind: vdc.FaultNone}, was: api.PowerOff, truth: api.PowerOn, done: true},
		{fault: vdc.BMCFault{Kind: vdc.FaultNone}, was: api.PowerOn, truth: api.PowerOn, done: true}, // cycled
		{fault: vdc.BMCFault{Kind: vdc.FaultSlow, Delay: 300 * time.Millisecond}, was: api.PowerOff, truth: api.PowerOn, done: true},
		{fault: vdc.BMCFault{Kind: vdc.FaultSessions, Limit: 1}, was: api.PowerOff, truth: api.PowerOn, done: true},
		{fault: vdc.BMCFault{Kind: vdc.FaultUnknown}, was: api.PowerOn, truth: api.PowerOn, problem: "power"},
		{fault: vdc.BMCFault{Kind: vdc.FaultGarbage}, was: api.PowerOn, truth: api.PowerOn, problem: " at "},
		{fault: vdc.BMCFault{Kind: vdc.FaultSilent}, was: api.PowerOn, truth: api.PowerOn, problem: "does not answer"},
		{fault: vdc.BMCFault{Kind: vdc.FaultRefuse}, was: api.PowerOff, truth: api.PowerOff, problem: "refused the user or the password", final: true},
		{fault: vdc.BMCFault{Kind: vdc.FaultSaysOn}, was: api.PowerOff, truth: api.PowerOff, problem: "still says that the power is on"},
	} {
		for kind, target := range targets(m) {
			t.Run(fmt.Sprintf("%s %s, machine %s", kind, tt.fault.Kind, tt.was), func(t *testing.T) {
				prepare(t, dc, m.Name, tt.was, tt.fault)
				p := provisioner.New(provisioner.Options{Open: opener()})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); _ = p.Run(ctx) }()
				began := time.Now()
				p.Set(provisioner.Desired{Term: 1, Machines: []provisioner.Machine{{
					Name: m.Name, UID: "u", Generation: 1, Order: provisioner.Wake, Target: target, Boot: power.BootDevice{Network: true, Firmware: m.Firmware},
				}}})
				var o provisioner.Observed
				eventually(t, fmt.Sprintf("done %v, problem %q", tt.done, tt.problem), func() bool {
					for _, o = range p.Observed() {
					}
					return tt.done && o.Done || tt.problem != "" && strings.Contains(o.Problem, tt.problem)
				})
				t.Logf("measured: %.2f s; problem %q, %d orders", time.Since(began).Seconds(), o.Problem, o.Attempts)
				cancel()
				<-ended
				if got := state(t, dc, m.Name); got != tt.truth || o.Done != tt.done || o.Final != tt.final {
					t.Errorf("the machine is %s, done %v, final %v; want %s, %v, %v", got, o.Done, o.Final, tt.truth, tt.done, tt.final)
				}
				if redfish, _, err := dc.BMCSessions(m.Name); err != nil || redfish != 0 {
					t.Errorf("%d sessions are open, %v", redfish, err)
				}
			})
		}
	}
}

func prepare(t *testing.T, dc *vdc.DataCentre, machine string, was api.PowerState, fault vdc.BMCFault) {
	t.Helper()
	if err := dc.CutPower(machine); err != nil {
		t.Fatal(err)
	}
	if was == api.PowerOn {
		if err := dc.PressPower(machine); err != nil {
			t.Fatal(err)
		}
	}
	if err := dc.SetBMCFault(machine, fault); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dc.SetBMCFault(machine, vdc.BMCFault{}); err != nil {
			t.Error(err)
		}
	})
}
