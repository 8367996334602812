package fake_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/fake"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
)

func TestFakesMeetTheContract(t *testing.T) {
	t.Parallel()
	powertest.Run(t, func(t *testing.T) powertest.Machine {
		site := fake.NewSite()
		m := site.Add("m1", fake.Behaviour{User: "admin", Password: "secret"})
		site.Add("silent", fake.Behaviour{Silent: true})
		return powertest.Machine{
			Open: site.Open,
			Target: power.Target{
				Name: "m1", Control: api.PowerControl{Kind: api.PowerIPMI, Address: "bmc1"},
				Credentials: power.Credentials{User: "admin", Password: "secret"},
			},
			State:    func(*testing.T) api.PowerState { return m.State() },
			NextBoot: func(*testing.T) bool { boots := m.Boots(); return len(boots) > 0 && boots[len(boots)-1].Network },
			Peer: func(t power.Target, address string) power.Target {
				t.Name = "silent"
				return t
			},
		}
	})
}

func TestAFakeHasFewSessionsAndLocksUsersOut(t *testing.T) {
	t.Parallel()
	site := fake.NewSite()
	site.Sessions = 1
	m := site.Add("m1", fake.Behaviour{Password: "secret", LockAfter: 2})
	open := func(password string) power.Switch {
		s, err := site.Open(power.Target{Name: "m1", Control: api.PowerControl{Address: "bmc"}, Credentials: power.Credentials{User: "admin", Password: password}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for range 2 {
		if _, err := open("wrong").Observe(t.Context()); err == nil {
			t.Error("a wrong password was taken")
		}
	}
	if _, err := open("secret").Observe(t.Context()); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the account is not locked: %v", err)
	}
	m.SetBehaviour(fake.Behaviour{})
	if got, err := open("").Observe(t.Context()); err != nil || got != api.PowerOff {
		t.Errorf("got %s, %v", got, err)
	}
	if site.MostSessions("bmc") != 1 || site.OpenSessions() != 0 {
		t.Errorf("%d sessions at once, %d open", site.MostSessions("bmc"), site.OpenSessions())
	}
}
