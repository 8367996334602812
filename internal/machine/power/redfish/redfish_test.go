package redfish_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
	"github.com/nearmetal/nearmetal/internal/machine/power/redfish"
)

func open(t power.Target) (power.Switch, error) { return redfish.New(t) }

func target(address, system string) power.Target {
	return power.Target{
		Name: "m1", Control: api.PowerControl{Kind: api.PowerRedfish, Address: address, System: system},
		Credentials: power.Credentials{User: powertest.User, Password: powertest.Password},
	}
}

func peer(t power.Target, address string) power.Target {
	t.Control.Address = "http://" + address
	return t
}

func TestSushyToolsMeetTheContract(t *testing.T) {
	t.Parallel()
	names := powertest.Names()
	machines := powertest.StartMachines(t, names...)
	powertest.Run(t, func(*testing.T) powertest.Machine {
		name := names[0]
		names = names[1:]
		bmc := machines.IPMI[name] // virtualbmc, with ipmitool, is the other reader
		return powertest.Machine{
			Open: open, Target: target(machines.Redfish, name), Peer: peer,
			State: func(t *testing.T) api.PowerState {
				if strings.Contains(powertest.IPMITool(t, bmc, "chassis", "power", "status"), "is on") {
					return api.PowerOn
				}
				return api.PowerOff
			},
			NextBoot: func(t *testing.T) bool {
				return strings.Contains(fetch(t, machines.Redfish, machines.Systems[name]), `"BootSourceOverrideTarget": "Pxe"`)
			},
		}
	})
}

func TestAStrictServiceMeetsTheContract(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			t.Parallel()
			powertest.Run(t, func(t *testing.T) powertest.Machine {
				s := serve(t, secure)
				one := target(s.URL, "one")
				one.Control.CertificateSHA256 = s.certificate
				return powertest.Machine{
					Open: open, Target: one,
					Peer: func(t power.Target, address string) power.Target {
						t = peer(t, address)
						t.Control.CertificateSHA256 = ""
						return t
					},
					State: func(*testing.T) api.PowerState {
						s.mu.Lock()
						defer s.mu.Unlock()
						return api.PowerState(strings.ToLower(fmt.Sprint(s.power)))
					},
					NextBoot: func(*testing.T) bool {
						s.mu.Lock()
						defer s.mu.Unlock()
						return s.boot["BootSourceOverrideTarget"] == "Pxe" && s.boot["BootSourceOverrideEnabled"] == "Once" && s.boot["BootSourceOverrideMode"] == nil
					},
					Sessions: func(*testing.T) int {
						s.mu.Lock()
						defer s.mu.Unlock()
						return len(s.sessions)
					},
				}
			})
		})
	}
}

// fetch reads a system as any client does.
func fetch(t *testing.T, service, system string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, service+"/redfish/v1/Systems/"+system, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth(powertest.User, powertest.Password)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", answer.Status, err)
	}
	return string(text)
}

func switchOf(t *testing.T, target power.Target) power.Switch {
	t.Helper()
	s, err := redfish.New(target)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOnlyOnAndOffAreOnAndOff(t *testing.T) {
	t.Parallel()
	s := serve(t, false)
	one := switchOf(t, target(s.URL, "one"))
	for said, want := range map[any]api.PowerState{
		"On": api.PowerOn, "Off": api.PowerOff, "PoweringOn": api.PowerUnknown, "PoweringOff": api.PowerUnknown, "Paused": api.PowerUnknown,
		nil: api.PowerUnknown, "off": api.PowerUnknown, "": api.PowerUnknown,
	} {
		s.mu.Lock()
		s.power = said
		s.mu.Unlock()
		if got, err := one.Observe(t.Context()); err != nil || got != want {
			t.Errorf("%v: got %s, %v; want %s", said, got, err, want)
		}
	}
}

func TestASystemIsFoundByIdUUIDOrName(t *testing.T) {
	t.Parallel()
	s := serve(t, false)
	for system, want := range map[string]string{
		"one": "off", "two": "on", "38947555-7742-3448-3784-823347823834": "on", "38947555-7742-3448-3784-823347823835": "off",
		"Server": "2 systems of the service are named", "three": "its systems are two, one", "": "the service has 2 systems (two, one)",
	} {
		state, err := switchOf(t, target(s.URL, system)).Observe(t.Context())
		if got := fmt.Sprint(state, err); !strings.Contains(got, want) {
			t.Errorf("%q: got %s, want %s", system, got, want)
		}
	}
}

func TestBootIsOverriddenAsTheServiceAllows(t *testing.T) {
	t.Parallel()
	const uri = "http://10.0.0.1/boot.efi"
	for _, tt := range []struct {
		name    string
		boot    power.BootDevice
		change  func(*service)
		want    string
		problem string
	}{
		{"PXE", power.BootDevice{Network: true}, nil, "Pxe", ""},
		{"UEFI HTTP", power.BootDevice{Network: true, URI: uri, Firmware: api.FirmwareUEFI}, nil, "UefiHttp " + uri, ""},
		{"a BIOS does not boot by HTTP", power.BootDevice{URI: uri, Firmware: api.FirmwareBIOS}, nil, "Pxe", ""},
		{"HTTP is not offered", power.BootDevice{URI: uri}, func(s *service) { s.targets = []string{"Pxe"} }, "Pxe", ""},
		{"HTTP is offered and refused", power.BootDevice{URI: uri}, func(s *service) { s.refuse["PATCH UefiHttp"] = 400 }, "Pxe", ""},
		{"nothing is told", power.BootDevice{URI: uri}, func(s *service) { s.targets = nil }, "Pxe", ""},
		{"no network boot", power.BootDevice{Network: true}, func(s *service) { s.targets = []string{"Hdd", "Cd"} }, "", "only from Hdd, Cd"},
		{"If-Match", power.BootDevice{Network: true}, func(s *service) { s.needsETag = true }, "Pxe", ""},
		{"its own order", power.BootDevice{}, nil, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, false)
			if tt.change != nil {
				tt.change(s)
			}
			err := switchOf(t, target(s.URL, "one")).On(t.Context(), tt.boot)
			if tt.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tt.problem) || len(s.resets) != 0 {
					t.Errorf("got %v after %v", err, s.resets)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if target := s.boot["BootSourceOverrideTarget"]; target != nil {
				got = fmt.Sprint(target)
			}
			if uri := s.boot["HttpBootUri"]; uri != nil {
				got += " " + fmt.Sprint(uri)
			}
			if got != tt.want || len(s.resets) != 1 || s.resets[0] != "On" {
				t.Errorf("got %q and resets %v, want %q", got, s.resets, tt.want)
			}
		})
	}
}

func TestResetTypesAreThoseTheServiceAllows(t *testing.T) {
	t.Parallel()
	s := serve(t, false)
	s.types, s.actioned = []string{"ForceOn", "GracefulRestart"}, true
	one := switchOf(t, target(s.URL, "one"))
	if err := one.On(t.Context(), power.BootDevice{}); err != nil || fmt.Sprint(s.resets) != "[ForceOn]" {
		t.Errorf("on: %v, %v", err, s.resets)
	}
	for name, err := range map[string]error{"off": one.Off(t.Context()), "shutdown": one.Shutdown(t.Context())} {
		if !errors.Is(err, power.ErrCannot) || !strings.Contains(err.Error(), "only ForceOn, GracefulRestart") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSessionsAreFewAndAllAreClosed(t *testing.T) {
	t.Parallel()
	s := serve(t, false)
	s.limit = 1
	one := switchOf(t, target(s.URL, "one"))
	s.sessions["somebody"] = "/else"
	if state, err := one.Observe(t.Context()); !errors.Is(err, power.ErrBusy) || state != api.PowerUnknown {
		t.Errorf("with no session left: %s, %v", state, err)
	}
	delete(s.sessions, "somebody")
	gate := power.NewGate(power.GateOptions{})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := gate.Observe(t.Context(), power.Key{UID: "u", Address: s.URL}, time.Minute, func(ctx context.Context) error {
				_, err := one.Observe(ctx)
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := one.On(t.Context(), power.BootDevice{Network: true}); err != nil {
		t.Error(err)
	}
	s.refuse["GET /redfish/v1/Systems/one"] = 500
	if _, err := one.Observe(t.Context()); err == nil {
		t.Error("no error")
	}
	if len(s.sessions) != 0 {
		t.Errorf("left open: %v", s.sessions)
	}
}

func TestASessionThatCouldNotBeEndedIsEndedBeforeTheNext(t *testing.T) {
	t.Parallel()
	for _, answer := range []int{http.StatusServiceUnavailable, http.StatusOK} {
		const first = "DELETE /redfish/v1/SessionService/Sessions/1"
		s := serve(t, false)
		s.limit = 1 // with one left open, nobody gets in
		s.refuse[first] = answer
		sw := switchOf(t, target(s.URL, "one"))
		if _, err := sw.Observe(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(s.sessions) != 1 {
			t.Fatalf("%d sessions are open, want the one that could not be ended", len(s.sessions))
		}
		if _, err := sw.Observe(t.Context()); !errors.Is(err, power.ErrBusy) {
			t.Errorf("while it can't be ended: %v", err)
		}
		delete(s.refuse, first)
		if _, err := sw.Observe(t.Context()); err != nil || len(s.sessions) != 0 {
			t.Errorf("after %d: %v; %d sessions are open", answer, err, len(s.sessions))
		}
	}
}

func TestALoginThatIsGivenUpLeavesNoSession(t *testing.T) {
	t.Parallel()
	s := serve(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s.loggedIn = cancel
	if _, err := switchOf(t, target(s.URL, "one")).Observe(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made != 1 || len(s.sessions) != 0 {
		t.Errorf("of %d sessions, left open: %v", s.made, s.sessions)
	}
}

func TestAnotherCertificateIsRefusedBeforeThePasswordIsSent(t *testing.T) {
	t.Parallel()
	s := serve(t, true)
	other := target(s.URL, "one")
	for pin, want := range map[string]string{"": "certificate", strings.Repeat("ab", 32): "the BMC's certificate has SHA-256 " + s.certificate} {
		other.Control.CertificateSHA256 = pin
		if state, err := switchOf(t, other).Observe(t.Context()); err == nil || !strings.Contains(err.Error(), want) || state != api.PowerUnknown {
			t.Errorf("pin %q: got %s, %v", pin, state, err)
		}
	}
	if s.logins != 0 {
		t.Error("the password was sent")
	}
}

func TestAnAddressThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "10.0.0.7", "ftp://10.0.0.7", "https://", "https://admin:secret@10.0.0.7", "https://10.0.0.7/other", "https://10.0.0.7?x"} {
		if _, err := redfish.New(target(address, "")); err == nil {
			t.Errorf("%q was taken", address)
		} else if strings.Contains(err.Error(), "admin:secret") {
			t.Errorf("the error contains a password: %v", err)
		}
	}
	bad := target("https://10.0.0.7", "")
	bad.Control.CertificateSHA256 = "abc"
	if _, err := redfish.New(bad); err == nil {
		t.Error("a pin of three digits was taken")
	}
	for _, address := range []string{"https://10.0.0.7", "http://10.0.0.7:8000/", "https://bmc1/redfish/v1"} {
		if _, err := redfish.New(target(address, "")); err != nil {
			t.Errorf("%q: %v", address, err)
		}
	}
}
