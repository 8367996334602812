package ipmi_test

import (
	"context"
	"net"
	"testing"

	"github.com/bougou/go-ipmi/pkg/bmc"
	"github.com/bougou/go-ipmi/pkg/clock"
	"github.com/bougou/go-ipmi/pkg/hal/mock"
	"github.com/bougou/go-ipmi/pkg/server"
	"github.com/bougou/go-ipmi/pkg/types"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi/rmcpplus"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
)

// goIPMI is go-ipmi's reference BMC, which speaks cipher suite 17; those of OpenIPMI and virtualbmc speak 3 only.
func goIPMI(t *testing.T) (*mock.HAL, string) {
	t.Helper()
	machine := mock.New()
	b := bmc.New(bmc.DeviceInfo{IPMIVersion: 0x20}, [16]byte{1}, machine, bmc.WithClock(clock.Real), bmc.WithCipherSuites([]types.CipherSuiteID{types.CipherSuiteID17}))
	user, err := b.Users.Add(2, powertest.User)
	if err != nil {
		t.Fatal(err)
	}
	user.SetPassword([]byte(powertest.Password))
	user.Enabled = true
	user.ChannelAccess[1] = bmc.UserChannelAccess{MaxPrivilege: bmc.PrivilegeLevelAdministrator, Enabled: true}
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := server.NewServer(b, conn)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(ctx) }()
	t.Cleanup(func() { cancel(); conn.Close(); <-ended })
	return machine, conn.LocalAddr().String()
}

func TestABMCWithCipherSuite17MeetsTheContract(t *testing.T) {
	t.Parallel()
	powertest.Run(t, func(t *testing.T) powertest.Machine {
		machine, address := goIPMI(t)
		return powertest.Machine{
			Open: open, Target: target(address), Peer: peer, Datagrams: true, Buttonless: true,
			State: func(t *testing.T) api.PowerState {
				on, err := machine.Chassis().PowerState(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if on {
					return api.PowerOn
				}
				return api.PowerOff
			},
			NextBoot: func(t *testing.T) bool {
				flags, err := machine.Chassis().GetBootFlags(t.Context())
				if err != nil || flags == nil {
					return false
				}
				return flags.BootFlagsValid && !flags.Persist && flags.BootDeviceSelector == types.BootDeviceSelectorForcePXE && flags.BIOSBootType == types.BIOSBootTypeEFI
			},
		}
	})
}

func TestTheStrongestSuiteThatBothSpeakIsTaken(t *testing.T) {
	t.Parallel()
	_, strong := goIPMI(t)
	for address, want := range map[string]int{strong: 17, powertest.StartSim(t).Address: 3} {
		s, err := rmcpplus.Dial(t.Context(), address, powertest.User, powertest.Password)
		if err != nil {
			t.Fatal(err)
		}
		if s.Suite() != want {
			t.Errorf("got cipher suite %d, want %d", s.Suite(), want)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
