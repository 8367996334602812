package redfish_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/bmcguard"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
	"github.com/nearmetal/nearmetal/internal/machine/power/redfish"
)

// Paths of the service's manager and users.
const (
	bmc      = "/redfish/v1/Managers/bmc"
	accounts = "/redfish/v1/AccountService/Accounts"
	kcs      = bmc + "/Oem/Supermicro/KCSInterface"
	usb      = bmc + "/HostInterfaces/usb"
)

// withUsers gives a service users and a manager. It keeps what is changed, as DSP0268 says.
func withUsers(s *service) {
	s.root = values{"AccountService": at("/redfish/v1/AccountService")}
	s.managers = []any{at(bmc)}
	s.resources = map[string]values{
		"/redfish/v1/AccountService": {"Accounts": at(accounts), "LocalAccountAuth": "Enabled"},
		accounts:                     {"Members": []any{at(accounts + "/1")}},
		accounts + "/1":              {"Id": "1", "UserName": powertest.User, "Enabled": true, "RoleId": "Administrator"},
		bmc:                          {"HostInterfaces": at(bmc + "/HostInterfaces"), "NetworkProtocol": at(bmc + "/NetworkProtocol")},
		bmc + "/HostInterfaces":      {"Members": []any{at(usb)}},
		usb:                          {"InterfaceEnabled": true},
		bmc + "/NetworkProtocol":     {"SSH": values{"ProtocolEnabled": false, "Port": 22}},
		kcs:                          {"Privilege": "Administrator"},
	}
	s.more = func(w http.ResponseWriter, r *http.Request, body []byte) bool {
		resource := s.resources[r.URL.Path]
		switch {
		case resource == nil:
			return false
		case r.Method == http.MethodPatch:
			var change values
			_ = json.Unmarshal(body, &change)
			if password, ok := change["Password"].(string); ok {
				s.password = password
				delete(change, "Password")
			}
			maps.Copy(resource, change)
		case r.Method == http.MethodDelete:
			delete(s.resources, r.URL.Path)
			members := s.resources[accounts]["Members"].([]any)
			s.resources[accounts]["Members"] = slices.DeleteFunc(members, func(m any) bool { return m.(values)["@odata.id"] == r.URL.Path })
		default:
			return false
		}
		w.WriteHeader(204)
		return true
	}
}

// addUser is what a tenant does.
func (s *service) addUser(id, name string, enabled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := accounts + "/" + id
	if s.resources[path] == nil {
		s.resources[accounts]["Members"] = append(s.resources[accounts]["Members"].([]any), at(path))
	}
	s.resources[path] = values{"Id": id, "UserName": name, "Enabled": enabled, "RoleId": "Administrator"}
}

// guarded is a switch of a service with one system.
func guarded(t *testing.T, s *service, next string) *redfish.Switch {
	t.Helper()
	sw, err := redfish.New(power.Target{
		Name: "one", Control: api.PowerControl{Kind: api.PowerRedfish, Address: s.URL},
		Credentials: power.Credentials{User: powertest.User, Password: powertest.Password, Next: next},
	})
	if err != nil {
		t.Fatal(err)
	}
	return sw
}

// single makes a service that has one system only.
func single(t *testing.T) *service {
	s := serve(t, false)
	withUsers(s)
	s.root["Systems"] = at("/redfish/v1/Single")
	s.resources["/redfish/v1/Single"] = values{"Members": []any{at("/redfish/v1/Systems/one")}}
	return s
}

func TestKCSIsClosedWhereItsMakerHasASettingForIt(t *testing.T) {
	s := single(t)
	sw := guarded(t, s, "")
	state, reason, err := sw.CloseHost(t.Context())
	if state != api.HostFixed || !strings.Contains(reason, "KCS") || err != nil {
		t.Errorf("without such a setting: got %q (%s), %v", state, reason, err)
	}
	if s.resources[usb]["InterfaceEnabled"] != false {
		t.Error("Redfish's own host interface is still enabled")
	}
	s.resources[bmc]["Oem"] = values{"Supermicro": values{"KCSInterface": at(kcs)}}
	state, reason, err = sw.CloseHost(t.Context())
	if state != api.HostClosed || err != nil || s.resources[kcs]["Privilege"] != "Callback" {
		t.Errorf("with one: got %q (%s), %v; KCS has %v", state, reason, err, s.resources[kcs])
	}
	if err := sw.OpenHost(t.Context()); err != nil || s.resources[kcs]["Privilege"] != "Administrator" {
		t.Errorf("opened again: %v; KCS has %v", err, s.resources[kcs])
	}
}

func TestASettingThatTheBMCDoesNotFollowIsNotCalledClosed(t *testing.T) {
	s := single(t)
	s.resources[bmc]["Oem"] = values{"Supermicro": values{"KCSInterface": at(kcs)}}
	keep := s.more
	s.more = func(w http.ResponseWriter, r *http.Request, body []byte) bool {
		if r.Method == http.MethodPatch && r.URL.Path == kcs {
			w.WriteHeader(204)
			return true
		}
		return keep(w, r, body)
	}
	if state, _, err := guarded(t, s, "").CloseHost(t.Context()); err == nil || state == api.HostClosed {
		t.Errorf("got %q, %v; want an error", state, err)
	}
}

func TestUsersThatWereAddedAreDeletedAndOthersLeftToAnOperator(t *testing.T) {
	s := single(t)
	s.addUser("2", "spare", false)
	sw := guarded(t, s, "")
	before, err := sw.Look(t.Context())
	if err != nil || len(before.Accounts) != 2 {
		t.Fatalf("got %+v, %v", before, err)
	}
	s.addUser("2", "spare", true)
	s.addUser("3", "evil", true)
	if err := sw.Restore(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	after, err := sw.Look(t.Context())
	if d := bmcguard.Differences(before, after); err != nil || len(d) > 0 {
		t.Errorf("afterwards: %q, %v", bmcguard.Text(d), err)
	}
	s.addUser("1", "root", true)
	s.resources[bmc+"/NetworkProtocol"]["SSH"] = values{"ProtocolEnabled": true, "Port": 22}
	err = sw.Restore(t.Context(), before)
	if !errors.Is(err, bmcguard.ErrUnrestored) || !strings.Contains(fmt.Sprint(err), "root") || !strings.Contains(fmt.Sprint(err), "SSH") {
		t.Errorf("got %v, want that user and protocol are left, by name", err)
	}
}

func TestAUsersPasswordIsChangedAndProved(t *testing.T) {
	s := single(t)
	next := bmcguard.NewPassword()
	sw := guarded(t, s, next)
	for range 2 {
		if err := sw.SetPassword(t.Context(), next); err != nil {
			t.Fatal(err)
		}
	}
	if s.password != next {
		t.Error("the service has another password")
	}
	if _, err := guarded(t, s, "").Observe(t.Context()); !errors.Is(err, power.ErrCredentials) {
		t.Errorf("with the former password: got %v, want it refused", err)
	}
	if state, err := guarded(t, s, next).Observe(t.Context()); state != api.PowerOff || err != nil {
		t.Errorf("with both: got %s, %v", state, err)
	}
}

func TestThePasswordOfAServiceForSeveralSystemsIsLeftAlone(t *testing.T) {
	s := serve(t, false)
	withUsers(s)
	sw, err := redfish.New(power.Target{
		Name: "one", Control: api.PowerControl{Kind: api.PowerRedfish, Address: s.URL, System: "one"},
		Credentials: power.Credentials{User: powertest.User, Password: powertest.Password},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sw.SetPassword(t.Context(), "another-password"); !errors.Is(err, power.ErrCannot) || s.password != powertest.Password {
		t.Errorf("got %v, want that it can't", err)
	}
}

func TestSushyToolsTellsNothingOfUsers(t *testing.T) {
	t.Parallel()
	machines := powertest.StartMachines(t, "m1")
	sw, err := redfish.New(power.Target{
		Name: "m1", Control: api.PowerControl{Kind: api.PowerRedfish, Address: machines.Redfish},
		Credentials: power.Credentials{User: powertest.User, Password: powertest.Password},
	})
	if err != nil {
		t.Fatal(err)
	}
	if state, reason, err := sw.CloseHost(t.Context()); state != api.HostFixed || reason == "" || err != nil {
		t.Errorf("closing its host interface: got %q (%s), %v", state, reason, err)
	}
	if b, err := sw.Look(t.Context()); !errors.Is(err, power.ErrCannot) {
		t.Errorf("looking: got %+v, %v; want that it can't", b, err)
	}
	if err := sw.SetPassword(t.Context(), "another-password"); !errors.Is(err, power.ErrCannot) {
		t.Errorf("changing the password: got %v; want that it can't", err)
	}
}
