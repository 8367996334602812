package provisioner

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/fake"
)

// duty is a machine with a duty on its BMC, whose password is "old".
func duty(kind api.BMCDutyKind, number int64, baseline *api.BMCBaseline, next string) Machine {
	m := order("m1", 1, Leave)
	m.Target.Credentials = power.Credentials{User: "site", Password: "old", Next: next}
	m.Guard = Guard{Duty: kind, Number: number, Baseline: baseline}
	return m
}

var (
	admin = api.BMCAccount{ID: "2", Name: "site", Enabled: true, Rights: map[string]string{"channel 1": "administrator"}}
	evil  = api.BMCAccount{ID: "3", Name: "evil", Enabled: true, Rights: map[string]string{"channel 1": "administrator"}}
)

// bmcSite runs a test with a machine whose BMC has one user.
func bmcSite(t *testing.T, b fake.Behaviour, test func(r *rig, m *fake.Machine)) {
	t.Helper()
	b.User, b.Password = "site", "old"
	site(t, func(r *rig) {
		m := r.site.Add("m1", b)
		m.AddAccount(admin)
		test(r, m)
	})
}

func TestALockClosesTheHostInterfaceAndReadsWhoCanGetIn(t *testing.T) {
	bmcSite(t, fake.Behaviour{}, func(r *rig, m *fake.Machine) {
		r.set(1, duty(api.BMCLock, 1, nil, ""))
		r.after(time.Second)
		g := r.observed("m1").Guarded
		if !g.Done || g.Host != api.HostClosed || g.Baseline == nil || len(g.Baseline.Accounts) != 1 || !m.HostClosed() {
			t.Errorf("got %+v; closed: %v", g, m.HostClosed())
		}
	})
}

func TestABMCThatFailsIsTriedAgainUntilItsDutyIsDone(t *testing.T) {
	bmcSite(t, fake.Behaviour{FailOrders: 2}, func(r *rig, _ *fake.Machine) {
		r.set(1, duty(api.BMCLock, 1, nil, ""))
		r.after(time.Second)
		if g := r.observed("m1").Guarded; g.Done || !strings.Contains(g.Problem, "scripted") {
			t.Errorf("while it fails: %+v", g)
		}
		r.after(time.Minute)
		if g := r.observed("m1").Guarded; !g.Done {
			t.Errorf("afterwards: %+v", g)
		}
	})
}

func TestWhatATenantChangedIsFoundAndSetRight(t *testing.T) {
	bmcSite(t, fake.Behaviour{HostFixed: true}, func(r *rig, m *fake.Machine) {
		r.set(1, duty(api.BMCLock, 1, nil, ""))
		r.after(time.Second)
		baseline := r.observed("m1").Guarded.Baseline
		watched := duty("", 1, baseline, "")
		watched.Guard.Watch = true
		m.AddAccount(evil)
		r.set(1, watched)
		r.after(2 * watchEvery)
		if g := r.observed("m1").Guarded; !strings.Contains(g.Drift, "evil") {
			t.Errorf("while a tenant has it: %+v", g)
		}
		r.set(1, duty(api.BMCRenew, 2, baseline, "new"))
		r.after(time.Minute)
		g := r.observed("m1").Guarded
		if !g.Done || !g.Rotated || !strings.Contains(g.Restored, "evil") || len(m.Accounts()) != 1 || m.Password() != "new" {
			t.Errorf("afterwards: %+v; users %v, password %q", g, m.Accounts(), m.Password())
		}
	})
}

func TestAPasswordWhoseAnswerIsLostIsProvedByTheNextTry(t *testing.T) {
	bmcSite(t, fake.Behaviour{LockAfter: 3}, func(r *rig, m *fake.Machine) {
		m.SetBehaviour(fake.Behaviour{User: "site", Password: "old", LockAfter: 3, LoseAnswers: 3})
		r.set(1, duty(api.BMCRenew, 1, nil, "new"))
		r.after(5 * time.Minute)
		if g := r.observed("m1").Guarded; !g.Done || !g.Rotated || m.Password() != "new" {
			t.Errorf("got %+v; its password is %q", g, m.Password())
		}
	})
}

// A server that ended after the password was set knows both; its successor finds out which one is right.
func TestARotationThatWasInterruptedGoesOn(t *testing.T) {
	bmcSite(t, fake.Behaviour{}, func(r *rig, m *fake.Machine) {
		m.SetBehaviour(fake.Behaviour{User: "site", Password: "new", LockAfter: 2})
		r.set(2, duty(api.BMCRenew, 1, nil, "new"))
		r.after(time.Minute)
		o := r.observed("m1")
		if !o.Guarded.Done || !o.Guarded.Rotated || o.State != api.PowerOff {
			t.Errorf("got %+v", o)
		}
	})
}

func TestAWrongPasswordEndsADuty(t *testing.T) {
	bmcSite(t, fake.Behaviour{}, func(r *rig, m *fake.Machine) {
		m.SetBehaviour(fake.Behaviour{User: "site", Password: "another"})
		r.set(1, duty(api.BMCRenew, 1, nil, "new"))
		r.after(time.Minute)
		if g := r.observed("m1").Guarded; g.Done || !g.Final || g.Rotated {
			t.Errorf("got %+v", g)
		}
	})
}

func TestABaselineOfAnotherBMCIsNotRestored(t *testing.T) {
	bmcSite(t, fake.Behaviour{}, func(r *rig, m *fake.Machine) {
		r.set(1, duty(api.BMCRenew, 1, &api.BMCBaseline{Kind: api.PowerIPMI, Address: "bmc-elsewhere"}, ""))
		r.after(time.Minute)
		if g := r.observed("m1").Guarded; !g.Done || len(m.Accounts()) != 1 {
			t.Errorf("got %+v; users %v", g, m.Accounts())
		}
	})
}

func TestARestoreThatIsNotFollowedIsNotDone(t *testing.T) {
	bmcSite(t, fake.Behaviour{Deaf: true}, func(r *rig, m *fake.Machine) {
		baseline := &api.BMCBaseline{Kind: api.PowerIPMI, Address: "bmc-m1", Accounts: []api.BMCAccount{admin}}
		m.AddAccount(evil)
		r.set(1, duty(api.BMCRenew, 1, baseline, ""))
		r.after(time.Minute)
		if g := r.observed("m1").Guarded; g.Done || !g.Final || !strings.Contains(g.Problem, "evil") {
			t.Errorf("got %+v", g)
		}
	})
}

// Such as a BMC that was reset, and whose settings don't outlast that.
func TestAHostInterfaceThatOpensAgainIsClosedOrFound(t *testing.T) {
	bmcSite(t, fake.Behaviour{}, func(r *rig, m *fake.Machine) {
		r.set(1, duty(api.BMCLock, 1, nil, ""))
		r.after(time.Second)
		watched := duty("", 1, r.observed("m1").Guarded.Baseline, "")
		watched.Guard.Watch, watched.Guard.Closed = true, true
		r.set(1, watched)
		m.ResetBMC()
		m.AddAccount(admin)
		r.after(2 * watchEvery)
		if g := r.observed("m1").Guarded; g.Drift != "" || !m.HostClosed() {
			t.Errorf("after a reset: %+v; closed: %v", g, m.HostClosed())
		}
		m.SetBehaviour(fake.Behaviour{User: "site", Password: "old", HostFixed: true})
		m.ResetBMC()
		m.AddAccount(admin)
		r.after(2 * closedEvery)
		if g := r.observed("m1").Guarded; !strings.Contains(g.Drift, "open again") {
			t.Errorf("when it can't be closed any more: %+v", g)
		}
	})
}
