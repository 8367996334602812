package ipmi_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/bmcguard"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
)

const app, invalidCommand = 0x06, 0xC1

// evil is what root of a machine does to get in later: a user of its own with all rights (IPMI 2.0, sections 22.26 to 22.30).
func evil(t *testing.T, sim *powertest.Sim) {
	t.Helper()
	name, password := make([]byte, 16), make([]byte, 16)
	copy(name, "evil")
	copy(password, "evilpassword")
	for _, request := range [][]byte{
		append([]byte{0x45, 3}, name...), append([]byte{0x47, 3, 2}, password...),
		{0x43, 0x80 | 0x30 | 1, 3, 4, 0},
		append([]byte{0x47, 3, 1}, make([]byte, 16)...),
	} {
		if answer := sim.ByHost(t, app, request[0], request[1:]...); answer[0] != 0 {
			t.Fatalf("command %02xh by the host interface: completion code %02xh", request[0], answer[0])
		}
	}
}

func opened(t *testing.T, sim *powertest.Sim) *ipmi.Switch {
	t.Helper()
	s, err := ipmi.New(target(sim.Address))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAClosedHostInterfaceAnswersNothingToTheMachine(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSimWithHost(t, powertest.HostClosable)
	s := opened(t, sim)
	if answer := sim.ByHost(t, app, 0x46, 2); answer[0] != 0 || !strings.HasPrefix(string(answer[1:]), powertest.User) {
		t.Fatalf("open, it says % x of the site's user", answer)
	}
	for range 2 { // once more changes nothing
		if state, reason, err := s.CloseHost(t.Context()); state != api.HostClosed || err != nil {
			t.Fatalf("got %q (%s), %v; want it closed", state, reason, err)
		}
	}
	for _, command := range []byte{0x44, 0x45, 0x46, 0x47, 0x60, 0x01} {
		if answer := sim.ByHost(t, app, command, 1, 2, 0, 0); answer[0] != invalidCommand {
			t.Errorf("closed, command %02xh is answered with % x", command, answer)
		}
	}
	if state, err := s.Observe(t.Context()); state != api.PowerOff || err != nil {
		t.Errorf("over the network it says %s, %v", state, err)
	}
	if err := s.OpenHost(t.Context()); err != nil {
		t.Fatal(err)
	}
	if answer := sim.ByHost(t, app, 0x46, 2); answer[0] != 0 {
		t.Errorf("open again, it answers % x", answer)
	}
}

func TestAHostInterfaceThatCanNotBeClosedIsNeverCalledClosed(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSimWithHost(t, powertest.HostFixed)
	s := opened(t, sim)
	state, reason, err := s.CloseHost(t.Context())
	if state != api.HostFixed || !strings.Contains(reason, "firmware firewall") || err != nil {
		t.Errorf("got %q (%s), %v; want it fixed, with the reason", state, reason, err)
	}
	if err := s.OpenHost(t.Context()); !errors.Is(err, power.ErrCannot) {
		t.Errorf("opening it: got %v, want that it can't", err)
	}
}

func TestAUserThatATenantAddedIsNoticedAndLockedOut(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSimWithHost(t, powertest.HostFixed)
	s := opened(t, sim)
	before, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(before.Accounts, func(a api.BMCAccount) bool {
		return a.ID == "2" && a.Name == powertest.User && a.Enabled && strings.Contains(a.Rights["channel 1"], "administrator")
	}) || len(before.Accounts) != 1 || len(before.Settings) == 0 {
		t.Fatalf("the baseline is %+v", before)
	}
	again, err := s.Look(t.Context())
	if d := bmcguard.Differences(before, again); len(d) > 0 || err != nil {
		t.Fatalf("nothing was changed: got %v, %v", d, err)
	}
	evil(t, sim)
	evils := target(sim.Address)
	evils.Credentials = power.Credentials{User: "evil", Password: "evilpassword"}
	in, err := ipmi.New(evils)
	if err != nil {
		t.Fatal(err)
	}
	if state, err := in.Observe(t.Context()); err != nil {
		t.Fatalf("the tenant's user gets in: got %s, %v", state, err)
	}
	after, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if text := bmcguard.Text(bmcguard.Differences(before, after)); text != `user 3 "evil" (channel 1: administrator IPMI link) was added` {
		t.Errorf("the difference is %q", text)
	}
	if err := s.Restore(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	restored, err := s.Look(t.Context())
	if d := bmcguard.Differences(before, restored); len(d) > 0 || err != nil {
		t.Errorf("restored: got %v, %v", bmcguard.Text(d), err)
	}
	if _, err := in.Observe(t.Context()); !errors.Is(err, power.ErrCredentials) {
		t.Errorf("the tenant's user after it: got %v, want it refused", err)
	}
}

func TestAnAccountThatCouldLogInAndWasChangedIsLeftToAnOperator(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSimWithHost(t, powertest.HostFixed)
	s := opened(t, sim)
	evil(t, sim) // an operator's this time
	before, err := s.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if answer := sim.ByHost(t, app, 0x43, 0x80|0x30|1, 3, 2, 0); answer[0] != 0 {
		t.Fatalf("changing its privilege: % x", answer)
	}
	if err := s.Restore(t.Context(), before); !errors.Is(err, bmcguard.ErrUnrestored) || !strings.Contains(err.Error(), "evil") {
		t.Errorf("got %v, want that it can't be set right, with its name", err)
	}
}

func TestAPasswordIsChangedAndProved(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSim(t)
	next := bmcguard.NewPassword()
	to := target(sim.Address)
	to.Credentials.Next = next
	s, err := ipmi.New(to)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // once more, as after a crash, changes nothing
		if err := s.SetPassword(t.Context(), next); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := opened(t, sim).Observe(t.Context()); !errors.Is(err, power.ErrCredentials) {
		t.Errorf("with the former password: got %v, want it refused", err)
	}
	other, err := ipmi.New(to) // one that does not know which of them is right
	if err != nil {
		t.Fatal(err)
	}
	if state, err := other.Observe(t.Context()); state != api.PowerOff || err != nil {
		t.Errorf("with both: got %s, %v", state, err)
	}
}

func TestWhatABMCDoesNotTellCanNotBeWatched(t *testing.T) {
	t.Parallel()
	machines := powertest.StartMachines(t, "m1")
	s, err := ipmi.New(target(machines.IPMI["m1"]))
	if err != nil {
		t.Fatal(err)
	}
	if state, reason, err := s.CloseHost(t.Context()); state != api.HostFixed || reason == "" || err != nil {
		t.Errorf("closing it: got %q (%s), %v", state, reason, err)
	}
	if b, err := s.Look(t.Context()); !errors.Is(err, power.ErrCannot) {
		t.Errorf("looking: got %+v, %v; want that it can't", b, err)
	}
	if err := s.SetPassword(t.Context(), "anotherpassword1"); !errors.Is(err, power.ErrCannot) {
		t.Errorf("changing the password: got %v; want that it can't", err)
	}
}

func TestWhatABMCTakesAndDoesNotFollowIsNotDone(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSimWithHost(t, powertest.HostDeaf)
	next := bmcguard.NewPassword()
	to := target(sim.Address)
	to.Credentials.Next = next
	s, err := ipmi.New(to)
	if err != nil {
		t.Fatal(err)
	}
	if state, reason, err := s.CloseHost(t.Context()); state != api.HostFixed || !strings.Contains(reason, "47h of NetFn 06h") && !strings.Contains(reason, "more") || err != nil {
		t.Errorf("closing it: got %q (%s), %v", state, reason, err)
	}
	if err := s.SetPassword(t.Context(), next); err == nil || !strings.Contains(err.Error(), "former password") {
		t.Errorf("changing the password: got %v, want that the BMC takes the former one", err)
	}
	if state, err := s.Observe(t.Context()); state != api.PowerOff || err != nil {
		t.Errorf("afterwards it says %s, %v", state, err)
	}
}
