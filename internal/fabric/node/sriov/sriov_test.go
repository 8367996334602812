package sriov_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov/modelhost"
)

const (
	pf    = "0000:3b:00.0"
	other = "0000:5e:00.0"
)

func vf(index int) fabric.Function {
	return fabric.Function{Kind: api.PortVF, Device: pf, Part: fabric.Part(index)}
}

func owner(name string) fabric.FunctionOwner {
	return fabric.FunctionOwner{Assignment: name, Generation: 1}
}

func ethernet(n int) fabric.FunctionSettings {
	return fabric.FunctionSettings{MAC: fmt.Sprintf("02:00:00:00:00:%02x", n+1), VLAN: 100 + n, MaxMbps: 500, SpoofCheck: true}
}

// open returns a manager of a model host, whose owners are in memory: a disk that syncs would take most of the tests' time.
func open(t *testing.T, h *modelhost.Host) (*sriov.Manager, func() *sriov.Manager) {
	t.Helper()
	dir := t.TempDir()
	if shared, err := os.MkdirTemp("/dev/shm", "sriov"); err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(shared) })
		dir = shared
	}
	again := func() *sriov.Manager {
		m, err := sriov.Open(sriov.Config{Host: h, Dir: dir, VirtualPorts: func(string) bool { return true }})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	return again(), again
}

// in runs a test on a virtual clock, on an igb adapter with 7 functions.
func in(t *testing.T, test func(t *testing.T, h *modelhost.Host, m *sriov.Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := modelhost.New(modelhost.Config{PCI: pf, Kind: modelhost.IGB, TotalVFs: 7}, modelhost.Config{PCI: other, Kind: modelhost.IGB, TotalVFs: 7})
		defer h.Unhang()
		m, _ := open(t, h)
		must(t, m.SetCount(t.Context(), pf, 7))
		test(t, h, m)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func assign(t *testing.T, m *sriov.Manager, name string, f fabric.Function, s fabric.FunctionSettings) fabric.FunctionState {
	t.Helper()
	state, err := m.Assign(t.Context(), owner(name), f, s)
	must(t, err)
	return state
}

func wantError(t *testing.T, err, target error, words ...string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got error %v, want one that is %v", err, target)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q does not say %q", err, word)
		}
	}
}

func TestAFunctionIsSetUpAndGivenToAMachine(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		assign(t, m, "a", vf(3), ethernet(3))
		state, err := m.Bind(t.Context(), owner("a"), vf(3), fabric.DriverVFIO)
		must(t, err)
		got := h.Truth(pf, 3)
		if got.MAC != "02:00:00:00:00:04" || got.VLAN != 103 || got.MaxMbps != 500 || got.SpoofCheck != sriov.On || got.Trusted != sriov.Off {
			t.Errorf("the adapter has %+v", got.Report)
		}
		if state.Driver != fabric.DriverVFIO || state.IOMMUGroup == "" || state.PCI == "" || state.Interface != "" {
			t.Errorf("the function is at %+v", state)
		}
		must(t, m.Release(t.Context(), owner("a"), vf(3)))
		got = h.Truth(pf, 3)
		if got.MAC != "" || got.VLAN != 0 || got.MaxMbps != 0 || got.Driver != "" {
			t.Errorf("after the release, the adapter has %+v", got)
		}
	})
}

func TestAFunctionBecomesAnInterfaceOfTheNode(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		assign(t, m, "a", vf(0), ethernet(0))
		first, err := m.Bind(t.Context(), owner("a"), vf(0), fabric.DriverNative)
		must(t, err)
		_, err = m.Bind(t.Context(), owner("a"), vf(0), fabric.DriverVFIO)
		must(t, err)
		second, err := m.Bind(t.Context(), owner("a"), vf(0), fabric.DriverNative)
		must(t, err)
		if first.Driver != "igbvf" || first.Interface == "" || second.Interface == first.Interface {
			t.Errorf("got %+v, then %+v: want another interface of igbvf after each bind", first, second)
		}
	})
}

func TestADriverThatDidNotHearTheAdapterIsStartedAgainByTheNextAttempt(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		assign(t, m, "a", vf(0), ethernet(0))
		h.Deafen(pf, 0, 1)
		_, err := m.Bind(t.Context(), owner("a"), vf(0), fabric.DriverNative)
		if want := "the address of the network interface of"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a driver that did not hear the adapter: got %v, want %q", err, want)
		}
		state, err := m.Bind(t.Context(), owner("a"), vf(0), fabric.DriverNative)
		must(t, err)
		if got, err := h.ReadFile("/sys/bus/pci/devices/" + state.PCI + "/net/" + state.Interface + "/address"); err != nil || strings.TrimSpace(got) != ethernet(0).MAC {
			t.Errorf("after the next attempt, the address is %q, %v, want %s", got, err, ethernet(0).MAC)
		}
	})
}

func TestAFunctionWhoseInterfaceAContainerHasIsNotBoundAgain(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		assign(t, m, "a", vf(0), ethernet(0))
		_, err := m.Bind(t.Context(), owner("a"), vf(0), fabric.DriverNative)
		must(t, err)
		h.Hide(pf, 0)
		h.Watch = func(e modelhost.Event) { t.Errorf("the repeated orders did: %+v", e) }
		assign(t, m, "a", vf(0), ethernet(0))
		state, err := m.Bind(t.Context(), owner("a"), vf(0), fabric.DriverNative)
		must(t, err)
		if state.Interface != "" || state.Driver != "igbvf" {
			t.Errorf("got %+v", state)
		}
		h.Watch = nil
		must(t, m.Release(t.Context(), owner("a"), vf(0)))
	})
}

func TestALateReleaseTouchesNothingOfTheNextOwner(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		assign(t, m, "a", vf(1), ethernet(1))
		must(t, m.Release(t.Context(), owner("a"), vf(1)))
		assign(t, m, "b", vf(1), ethernet(2))
		h.Use(pf, 1, "of b", false)
		h.Watch = func(e modelhost.Event) { t.Errorf("the late release did: %+v", e) }
		must(t, m.Release(t.Context(), owner("a"), vf(1)))
		_, err := m.Assign(t.Context(), owner("a"), vf(1), ethernet(1))
		wantError(t, err, fabric.ErrFunctionOutdated, "a has released")
		_, err = m.Bind(t.Context(), owner("a"), vf(1), fabric.DriverVFIO)
		wantError(t, err, fabric.ErrFunctionOutdated)
		wantError(t, m.Reset(t.Context(), owner("c"), vf(1)), fabric.ErrFunctionHeld, "assignment b")
		if got := h.Truth(pf, 1); got.Memory != "of b" || got.MAC != "02:00:00:00:00:03" {
			t.Errorf("b's function is now %+v", got)
		}
	})
}

func TestAnOwnerThatBeginsAnewHasItsFunctionAgain(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		for _, name := range []string{"a", "b"} {
			assign(t, m, name, vf(1), ethernet(1))
			must(t, m.Release(t.Context(), owner(name), vf(1)))
		}
		must(t, m.Readmit(t.Context(), owner("a").Assignment))
		assign(t, m, "a", vf(1), ethernet(1))
		if got := h.Truth(pf, 1); got.MAC != "02:00:00:00:00:02" {
			t.Errorf("its function is %+v", got)
		}
		must(t, m.Release(t.Context(), owner("a"), vf(1)))
		_, err := m.Assign(t.Context(), owner("b"), vf(1), ethernet(1))
		wantError(t, err, fabric.ErrFunctionOutdated, "b has released")
	})
}

func TestTheNextOwnerFindsNothingOfTheLast(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		s := ethernet(1)
		s.Trusted, s.SpoofCheck = true, false
		assign(t, m, "a", vf(1), s)
		h.Use(pf, 1, "secret of a", false)
		must(t, m.Release(t.Context(), owner("a"), vf(1)))
		got := h.Truth(pf, 1)
		if got.Memory != "" || got.Trusted != sriov.Off || got.SpoofCheck != sriov.On {
			t.Errorf("a free function is %+v", got)
		}
	})
}

func TestAFunctionOfUnknownPastIsResetBeforeItsFirstOwner(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		h.Use(pf, 2, "from before", false)
		assign(t, m, "a", vf(2), ethernet(2))
		if got := h.Truth(pf, 2); got.Memory != "" {
			t.Errorf("the first owner finds %q", got.Memory)
		}
	})
}

func TestOneFunctionHasOneOwner(t *testing.T) {
	in(t, func(t *testing.T, _ *modelhost.Host, m *sriov.Manager) {
		assign(t, m, "a", vf(1), ethernet(1))
		_, err := m.Assign(t.Context(), owner("b"), vf(1), ethernet(2))
		wantError(t, err, fabric.ErrFunctionHeld, "assignment a has vf1")
		_, err = m.Assign(t.Context(), owner("b"), vf(2), ethernet(1))
		wantError(t, err, fabric.ErrFunctionHeld, "02:00:00:00:00:02", "assignment a")
		older := fabric.FunctionOwner{Assignment: "a", Generation: 0}
		wantError(t, m.Release(t.Context(), older, vf(1)), fabric.ErrFunctionOutdated)
		assign(t, m, "a", vf(1), ethernet(3)) // its owner may change the settings
		whole := fabric.Function{Kind: api.PortPF, Device: pf}
		_, err = m.Assign(t.Context(), owner("c"), whole, fabric.FunctionSettings{})
		wantError(t, err, fabric.ErrFunctionHeld, "vf1")
	})
}

func TestWritesThatChangeNothingAreNotBelieved(t *testing.T) {
	for _, c := range []struct{ fault, says string }{
		{"netlink set " + pf + " MAC", "MAC of vf1 of adapter " + pf + " was changed, but reads back as none"},
		{"netlink set " + pf + " VLAN", "reads back as 0, not 101"},
		{"netlink set " + pf + " rate", "reads back as 0 to 0 Mbit/s, not 0 to 500"},
	} {
		in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
			h.Ignore(c.fault, 1)
			_, err := m.Assign(t.Context(), owner("a"), vf(1), ethernet(1))
			var unsettled *sriov.UnsettledError
			if !errors.As(err, &unsettled) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s ignored: got %v", c.fault, err)
			}
			must(t, m.Release(t.Context(), owner("a"), vf(1)))
		})
	}
	for _, fault := range []string{"netlink set " + pf + " MAC", "netlink set " + pf + " spoof check", "write /sys/bus/pci/drivers/vfio-pci/unbind"} {
		in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
			s := ethernet(1)
			s.SpoofCheck = false
			assign(t, m, "a", vf(1), s)
			_, err := m.Bind(t.Context(), owner("a"), vf(1), fabric.DriverVFIO)
			must(t, err)
			h.Ignore(fault, 1)
			if m.Release(t.Context(), owner("a"), vf(1)) == nil {
				t.Errorf("%s ignored: the release succeeded", fault)
			}
			if held := m.Holdings(); len(held) != 1 || !held[0].Releasing || held[0].Problem == "" {
				t.Errorf("%s ignored: got holdings %+v", fault, held)
			}
			_, err = m.Assign(t.Context(), owner("b"), vf(1), ethernet(2))
			wantError(t, err, fabric.ErrFunctionHeld)
			must(t, m.Release(t.Context(), owner("a"), vf(1)))
		})
	}
}

func TestAnAdapterThatHangsIsQuarantinedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := modelhost.New(modelhost.Config{PCI: pf, Kind: modelhost.IGB, TotalVFs: 7}, modelhost.Config{PCI: other, Kind: modelhost.IGB, TotalVFs: 7})
		defer h.Unhang()
		m, again := open(t, h)
		must(t, m.SetCount(t.Context(), pf, 7))
		must(t, m.SetCount(t.Context(), other, 7))
		assign(t, m, "a", vf(1), ethernet(1))
		h.Hang("/reset 1")
		err := m.Release(t.Context(), owner("a"), vf(1))
		wantError(t, err, fabric.ErrFunctionQuarantined, pf, "reset did not end in time")
		m = again() // the agent's restart ends nothing of it
		_, err = m.Assign(t.Context(), owner("b"), vf(2), ethernet(2))
		wantError(t, err, fabric.ErrFunctionQuarantined)
		wantError(t, m.SetCount(t.Context(), pf, 3), fabric.ErrFunctionQuarantined)
		must(t, m.Release(t.Context(), owner("stranger"), vf(1)))
		adapters, err := m.Adapters(t.Context())
		must(t, err)
		if len(adapters) != 2 || adapters[0].Quarantine == "" || adapters[1].Quarantine != "" || len(m.Quarantines()) != 1 {
			t.Errorf("got adapters %+v", adapters)
		}
		assign(t, m, "b", fabric.Function{Kind: api.PortVF, Device: other, Part: "vf0"}, ethernet(4))
		h.Reboot()
		m = again()
		must(t, m.SetCount(t.Context(), pf, 7))
		must(t, m.Release(t.Context(), owner("a"), vf(1)))
		assign(t, m, "c", vf(1), ethernet(1))
	})
}

func TestTheNumberOfFunctionsIsSetOnceAndKeptFromUse(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		ctx := t.Context()
		must(t, m.SetCount(ctx, pf, 4)) // by way of 0
		must(t, m.Up(ctx, pf))
		adapters, err := m.Adapters(ctx)
		must(t, err)
		a := adapters[0]
		if a.VFs != 4 || len(a.Functions) != 4 || a.TotalVFs != 7 || a.Layer != sriov.Ethernet || a.Device != "8086:10c9" || !a.Up || a.RateMbps != 1000 {
			t.Errorf("got %+v", a)
		}
		if a.Functions[0].Driver != "" {
			t.Errorf("a new function was given to %s", a.Functions[0].Driver)
		}
		wantError(t, m.SetCount(ctx, pf, 8), fabric.ErrFunctionUnfit, "at most 7")
		wantError(t, m.SetCount(ctx, "0000:00:00.0", 1), fabric.ErrFunctionUnfit, "firmware")
		assign(t, m, "a", vf(1), ethernet(1))
		wantError(t, m.SetCount(ctx, pf, 7), fabric.ErrFunctionHeld, "assignment a has vf1")
		must(t, m.SetCount(ctx, pf, 4))
		h.Reboot()
		must(t, m.SetCount(ctx, pf, 4)) // the owner of before the reboot keeps nothing of it
		must(t, m.Release(ctx, owner("a"), vf(1)))
	})
}

func TestWhatTheNodeUsesIsLeftAlone(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		must(t, m.SetCount(t.Context(), pf, 0))
		h.CountByHand(pf, 7)
		must(t, h.WriteFile("/sys/bus/pci/devices/"+pf+"/sriov_drivers_autoprobe", "1"))
		h.CountByHand(pf, 5) // by hand, so the kernel gave them to igbvf
		h.Up(pf, 2)
		wantError(t, m.SetCount(t.Context(), pf, 7), fabric.ErrFunctionHeld, "is up", "can't change")
		_, err := m.Assign(t.Context(), owner("a"), vf(2), ethernet(2))
		wantError(t, err, fabric.ErrFunctionHeld, "is up")
		assign(t, m, "a", vf(3), ethernet(3))
		if got := h.Truth(pf, 3); got.Driver != "" {
			t.Errorf("the assigned function is with %s", got.Driver)
		}
	})
}

func TestMachinesGetOnlyFunctionsThatTheIOMMUKeepsApart(t *testing.T) {
	for _, c := range []struct {
		name   string
		config modelhost.Config
		says   string
	}{
		{"no IOMMU", modelhost.Config{NoIOMMU: true}, "intel_iommu=on"},
		{"company in the group", modelhost.Config{Company: "0000:3c:00.0"}, "also holds 0000:3c:00.0"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.config.PCI, c.config.Kind, c.config.TotalVFs = pf, modelhost.IGB, 7
			h := modelhost.New(c.config)
			m, _ := open(t, h)
			must(t, m.SetCount(t.Context(), pf, 2))
			assign(t, m, "a", vf(1), ethernet(1))
			_, err := m.Bind(t.Context(), owner("a"), vf(1), fabric.DriverVFIO)
			wantError(t, err, fabric.ErrFunctionUnfit, c.says)
			_, err = m.Bind(t.Context(), owner("a"), vf(1), fabric.DriverNative)
			must(t, err)
		})
	}
}

func TestAFunctionIsNotTakenFromARunningMachine(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		assign(t, m, "a", vf(1), ethernet(1))
		_, err := m.Bind(t.Context(), owner("a"), vf(1), fabric.DriverVFIO)
		must(t, err)
		h.Use(pf, 1, "of a", true)
		h.Watch = func(e modelhost.Event) { t.Errorf("a running machine's function: %+v", e) }
		if err := m.Release(t.Context(), owner("a"), vf(1)); err == nil || !strings.Contains(err.Error(), "a machine still has it") {
			t.Errorf("got %v", err)
		}
		if err := m.Reset(t.Context(), owner("a"), vf(1)); err == nil {
			t.Error("it was reset")
		}
		h.Watch = nil
		h.Use(pf, 1, "of a", false)
		must(t, m.Release(t.Context(), owner("a"), vf(1)))
	})
}

func TestRenamedInterfacesAreFoundAgain(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		assign(t, m, "a", vf(1), ethernet(1))
		h.Rename(pf)
		h.Fail("netlink set "+pf, 2, unix.ENODEV) // renamed between the look and the call, twice
		assign(t, m, "a", vf(1), ethernet(2))
		if got := h.Truth(pf, 1).MAC; got != "02:00:00:00:00:03" {
			t.Errorf("got MAC %s", got)
		}
	})
}

func TestOwnersOutlastTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := modelhost.New(modelhost.Config{PCI: pf, Kind: modelhost.IGB, TotalVFs: 7})
		m, again := open(t, h)
		must(t, m.SetCount(t.Context(), pf, 7))
		for calls := 1; calls < 80; calls++ {
			h.CrashAfter(calls)
			name := fmt.Sprint("a", calls)
			_, failed := m.Assign(t.Context(), owner(name), vf(1), ethernet(1))
			h.Restart()
			m = again()
			if held := m.Holdings(); len(held) == 1 && held[0].Owner.Assignment != name {
				t.Fatalf("after a crash at call %d, %v holds it", calls, held)
			} else if len(held) == 0 {
				if failed == nil {
					t.Fatalf("after call %d, an assigned function has no owner", calls)
				}
				continue
			}
			h.CrashAfter(calls)
			_ = m.Release(t.Context(), owner(name), vf(1))
			h.Restart()
			m = again()
			must(t, m.Release(t.Context(), owner(name), vf(1)))
			if got := h.Truth(pf, 1); got.MAC != "" || got.VLAN != 0 {
				t.Fatalf("after crashes at call %d, the free function is %+v", calls, got)
			}
		}
	})
}

func TestBadOrdersChangeNothing(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		h.Watch = func(e modelhost.Event) { t.Errorf("a bad order did: %+v", e) }
		good := ethernet(1)
		for name, c := range map[string]struct {
			f    fabric.Function
			s    func(s *fabric.FunctionSettings)
			says string
		}{
			"a port of no adapter":    {fabric.Function{Kind: api.PortVeth, Device: pf}, nil, "on no function"},
			"a function without part": {fabric.Function{Kind: api.PortVF, Device: pf}, nil, "can't be adapter"},
			"a strange part":          {fabric.Function{Kind: api.PortVF, Device: pf, Part: "vf01"}, nil, "named like vf3"},
			"a path for an address":   {fabric.Function{Kind: api.PortVF, Device: "../../x", Part: "vf1"}, nil, "no PCI address"},
			"the eighth of seven":     {vf(7), nil, "has no virtual function 7"},
			"another adapter":         {fabric.Function{Kind: api.PortVF, Device: "0000:ff:00.0", Part: "vf1"}, nil, "has no adapter"},
			"a multicast MAC":         {vf(1), func(s *fabric.FunctionSettings) { s.MAC = "01:00:5e:00:00:01" }, "no MAC of one interface"},
			"a MAC of 8 bytes":        {vf(1), func(s *fabric.FunctionSettings) { s.MAC = "02:00:00:00:00:00:00:01" }, "no MAC of one interface"},
			"a VLAN out of range":     {vf(1), func(s *fabric.FunctionSettings) { s.VLAN = 4095 }, "VLAN 4095"},
			"a key out of range":      {vf(1), func(s *fabric.FunctionSettings) { s.PKey = 0x7fff }, "partition key 0x7fff"},
			"a short GUID":            {vf(1), func(s *fabric.FunctionSettings) { s.GUID = "1234" }, "16 hexadecimal digits"},
			"a GUID on Ethernet":      {vf(1), func(s *fabric.FunctionSettings) { s.GUID = "0e6d000000000003" }, "on Ethernet"},
			"rates upside down":       {vf(1), func(s *fabric.FunctionSettings) { s.MinMbps = 501 }, "not above the maximum"},
		} {
			s := good
			if c.s != nil {
				c.s(&s)
			}
			if _, err := m.Assign(t.Context(), owner("a"), c.f, s); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: got %v, want %q", name, err, c.says)
			}
		}
		if held := m.Holdings(); len(held) != 0 || len(m.Held("a")) != 0 {
			t.Errorf("bad orders hold %+v", held)
		}
	})
}

func TestWhatADriverLacksIsRefusedByName(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		s := ethernet(1)
		s.Link = fabric.FunctionLinkDown
		_, err := m.Assign(t.Context(), owner("a"), vf(1), s)
		wantError(t, err, fabric.ErrFunctionUnfit, "does not support link state disable")
		must(t, m.Release(t.Context(), owner("a"), vf(1)))
	})
	synctest.Test(t, func(t *testing.T) {
		m, _ := open(t, modelhost.New(modelhost.Config{PCI: pf, Kind: modelhost.MLX5Ethernet, TotalVFs: 63, Switchdev: true}))
		must(t, m.SetCount(t.Context(), pf, 63))
		_, err := m.Assign(t.Context(), owner("a"), vf(1), ethernet(1))
		wantError(t, err, fabric.ErrFunctionUnfit, "switchdev", "mode legacy")
	})
}

func TestOrdersEndWithTheirContext(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		h.Ignore("netlink set", 1)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := m.Assign(ctx, owner("a"), vf(1), ethernet(1))
		wantError(t, err, context.Canceled)
	})
}
