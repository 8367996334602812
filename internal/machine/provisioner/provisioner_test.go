package provisioner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/fake"
	"github.com/nearmetal/nearmetal/internal/machine/power/manual"
)

// rig is a provisioner at work on a fake site, in a bubble of pretended time.
type rig struct {
	t    *testing.T
	site *fake.Site
	p    *Provisioner
	end  func()
}

// site runs a test with a rig.
func site(t *testing.T, test func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, site: fake.NewSite()}
		r.p = New(Options{Open: r.open, Jitter: func() float64 { return 0.5 }})
		r.start()
		defer func() { r.end() }()
		test(r)
	})
}

func (r *rig) open(t power.Target) (power.Switch, error) {
	if t.Control.Kind == api.PowerManual {
		return manual.New(t)
	}
	return r.site.Open(t)
}

func (r *rig) start() {
	ctx, cancel := context.WithCancel(r.t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = r.p.Run(ctx) }()
	r.end = func() { cancel(); <-ended }
}

func order(name string, generation int64, o Order) Machine {
	return Machine{
		Name: name, UID: "uid-" + name, Generation: generation, Order: o, Boot: power.BootDevice{Network: true},
		Target: power.Target{Name: name, Control: api.PowerControl{Kind: api.PowerIPMI, Address: "bmc-" + name}},
	}
}

func (r *rig) set(term int64, machines ...Machine) { r.p.Set(Desired{Term: term, Machines: machines}) }

// after lets pretended time pass.
func (r *rig) after(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	<-ctx.Done()
	synctest.Wait()
}

func (r *rig) observed(name string) Observed {
	r.t.Helper()
	for _, o := range r.p.Observed() {
		if o.UID == "uid-"+name {
			return o
		}
	}
	r.t.Fatalf("%s is not observed", name)
	return Observed{}
}

// orders are the calls that were no observations.
func orders(m *fake.Machine) string {
	return strings.Join(slices.DeleteFunc(m.Calls(), func(c string) bool { return c == "observe" }), " ")
}

func (r *rig) want(name string, state api.PowerState, done bool, problem string) Observed {
	r.t.Helper()
	o := r.observed(name)
	if o.State != state || o.Done != done || !strings.Contains(o.Problem, problem) || problem == "" && o.Problem != "" {
		r.t.Errorf("%s: got state %s, done %v, problem %q; want %s, %v, %q", name, o.State, o.Done, o.Problem, state, done, problem)
	}
	return o
}

func (r *rig) wantOrders(m *fake.Machine, want string) {
	r.t.Helper()
	if got := orders(m); got != want {
		r.t.Errorf("its BMC was told %q, want %q", got, want)
	}
}

func TestAMachineThatIsOffIsWokenAndReadBack(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{OnAfter: 3 * time.Second})
		r.set(1, order("m1", 7, Wake))
		r.after(time.Second)
		r.want("m1", api.PowerOff, false, "")
		r.after(5 * time.Second)
		if o := r.want("m1", api.PowerOn, true, ""); o.Generation != 7 || o.Order != Wake || o.Attempts != 1 {
			t.Errorf("got %+v", o)
		}
		r.wantOrders(m, "on")
		if boots := m.Boots(); len(boots) != 1 || !boots[0].Network {
			t.Errorf("it booted from %+v", boots)
		}
	})
}

func TestAMachineThatIsOnIsCycledOnceForAGeneration(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{OffAfter: time.Second, OnAfter: time.Second})
		m.Set(api.PowerOn)
		r.set(1, order("m1", 7, Wake))
		r.after(10 * time.Second)
		r.want("m1", api.PowerOn, true, "")
		r.wantOrders(m, "off on")
		r.set(1, order("m1", 7, Wake))
		r.set(2, order("m1", 7, Wake))
		r.after(time.Minute)
		r.wantOrders(m, "off on")
		r.set(2, order("m1", 8, Wake))
		r.after(10 * time.Second)
		r.wantOrders(m, "off on off on")
	})
}

func TestANewLeaderDoesNotCutAMachineThatBoots(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{})
		m.Set(api.PowerOn)
		booting := order("m1", 7, Wake)
		booting.WasDone = true
		r.set(2, booting)
		r.after(time.Minute)
		r.want("m1", api.PowerOn, true, "")
		r.wantOrders(m, "")
	})
}

func TestAMachineThatGoesOffLaterIsReportedAndNotWokenAgain(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{})
		r.set(1, order("m1", 7, Wake))
		r.after(time.Second)
		m.Set(api.PowerOff)
		r.after(time.Minute)
		r.want("m1", api.PowerOff, true, "")
		r.wantOrders(m, "on")
	})
}

func TestUnknownIsNeverOff(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{Says: api.PowerUnknown})
		m.Set(api.PowerOn)
		r.set(1, order("m1", 7, Wake))
		r.after(5 * time.Minute)
		r.want("m1", api.PowerUnknown, false, "neither on nor off")
		r.wantOrders(m, "")
		r.set(1, order("m1", 8, Cut))
		r.after(30 * time.Second)
		r.want("m1", api.PowerUnknown, false, "neither on nor off") // cut, and not believed to be off
		if m.State() != api.PowerOff {
			t.Error("it was not cut")
		}
		m.SetBehaviour(fake.Behaviour{})
		r.after(time.Minute)
		r.want("m1", api.PowerOff, true, "")
	})
}

func TestAnUnknownPowerIsToldAlsoWhenNothingIsWanted(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{Says: api.PowerUnknown})
		r.set(1, order("m1", 7, Leave))
		r.after(time.Minute)
		r.want("m1", api.PowerUnknown, false, "neither on nor off")
		m.SetBehaviour(fake.Behaviour{})
		r.after(time.Minute)
		r.want("m1", api.PowerOff, false, "")
	})
}

func TestABMCThatFailsIsAskedAgainEverMoreSeldom(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]fake.Behaviour{
		"silent": {Silent: true}, "failing": {FailObserves: 1 << 20, Err: power.ErrUnreachable}, "busy": {FailObserves: 1 << 20, Err: power.ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			site(t, func(r *rig) {
				m := r.site.Add("m1", b)
				r.set(1, order("m1", 7, Cut))
				r.after(10 * time.Minute)
				if o := r.want("m1", api.PowerUnknown, false, "BMC"); o.Final {
					t.Error("it has been given up")
				}
				if n := len(m.Calls()); n < 10 || n > 40 {
					t.Errorf("it was asked %d times in 10 minutes", n)
				}
				m.SetBehaviour(fake.Behaviour{})
				r.after(time.Minute)
				r.want("m1", api.PowerOff, true, "")
			})
		})
	}
}

func TestALeaderThatRepeatsItselfCostsNoBMCAnything(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		failing, resting := r.site.Add("m1", fake.Behaviour{FailObserves: 1 << 20, Err: power.ErrUnreachable}), r.site.Add("m2", fake.Behaviour{})
		for range 600 { // each pass hands over the whole of what is desired
			r.set(1, order("m1", 7, Cut), order("m2", 7, Leave))
			r.after(time.Second)
		}
		if n := len(failing.Calls()); n > 40 {
			t.Errorf("the BMC that fails was asked %d times in 10 minutes", n)
		}
		if n := len(resting.Calls()); n < 15 || n > 40 {
			t.Errorf("the BMC of a machine that nothing is wanted of was asked %d times in 10 minutes", n)
		}
	})
}

func TestALostAnswerCostsNoSecondCycle(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{LoseAnswers: 1})
		r.set(1, order("m1", 7, Wake))
		r.after(10 * time.Second)
		r.want("m1", api.PowerOn, true, "")
		r.wantOrders(m, "on")
	})
}

func TestABMCThatIsDeafIsToldAgain(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{Deaf: true})
		r.set(1, order("m1", 7, Wake))
		r.after(50 * time.Second)
		if o := r.want("m1", api.PowerOff, false, `"on" 3 times but still reports power off`); o.Attempts != 3 {
			t.Errorf("told %d times", o.Attempts)
		}
		m.SetBehaviour(fake.Behaviour{})
		r.after(30 * time.Second)
		r.want("m1", api.PowerOn, true, "")
	})
}

func TestAWrongPasswordIsTriedOnceUntilItChanges(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{Password: "right", LockAfter: 3})
		wake := order("m1", 7, Wake)
		wake.Target.Credentials = power.Credentials{User: "admin", Password: "wrong"}
		r.set(1, wake)
		r.after(time.Hour)
		if o := r.want("m1", api.PowerUnknown, false, "user or the password"); !o.Final {
			t.Error("it is not final")
		}
		if n := len(m.Calls()); n != 1 {
			t.Errorf("it was tried %d times: the account would be locked", n)
		}
		wake.Target.Credentials.Password = "right"
		r.set(1, wake)
		r.after(time.Second)
		r.want("m1", api.PowerOn, true, "")
	})
}

func TestCutShutdownAndWhatCannot(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		on := func(name string, b fake.Behaviour) *fake.Machine {
			m := r.site.Add(name, b)
			m.Set(api.PowerOn)
			return m
		}
		cut := on("cut", fake.Behaviour{OffAfter: time.Second})
		polite := on("polite", fake.Behaviour{OffAfter: 20 * time.Second})
		stubborn := on("stubborn", fake.Behaviour{Ignores: true})
		lan := on("lan", fake.Behaviour{Abilities: &power.Abilities{}})
		r.set(1, order("cut", 1, Cut), order("polite", 1, Shutdown), order("stubborn", 1, Shutdown), order("lan", 1, Cut))
		r.after(10 * time.Second)
		r.want("cut", api.PowerOff, true, "")
		r.want("polite", api.PowerOn, true, "") // asked
		r.want("stubborn", api.PowerOn, true, "")
		if o := r.want("lan", api.PowerUnknown, false, "can't do that"); !o.Final {
			t.Error("a cut over the network is not final")
		}
		r.after(20 * time.Second)
		r.want("polite", api.PowerOff, true, "")
		r.wantOrders(cut, "off")
		r.wantOrders(polite, "shutdown")
		r.wantOrders(stubborn, "shutdown")
		r.wantOrders(lan, "")
	})
}

// BMCs say off for some seconds after they were told on.
func TestAMachineThatIsCutBeforeItComesOnStaysOff(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{OnAfter: 5 * time.Second})
		r.set(1, order("m1", 7, Wake))
		r.after(time.Second)
		r.set(1, order("m1", 8, Cut))
		r.after(time.Second)
		r.want("m1", api.PowerUnknown, false, "")
		r.after(time.Minute)
		r.want("m1", api.PowerOff, true, "")
		r.wantOrders(m, "on off")
	})
}

func TestAMachineThatNeverComesOnIsOffAfterAWhile(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{Deaf: true})
		r.set(1, order("m1", 7, Wake))
		r.after(time.Second)
		r.set(1, order("m1", 8, Cut))
		r.after(patience + 2*time.Second)
		r.want("m1", api.PowerOff, true, "")
		r.wantOrders(m, "on")
	})
}

func TestAMachineThatGoesOffByItselfIsSeenSoon(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{})
		m.Set(api.PowerOn)
		goes := order("m1", 1, Leave)
		r.set(1, goes)
		r.after(time.Second)
		goes.Watch = true
		r.set(1, goes)
		r.after(time.Second)
		m.Set(api.PowerOff)
		r.after(3 * time.Second)
		r.want("m1", api.PowerOff, false, "")
		asked := len(m.Calls())
		r.after(time.Minute)
		if n := len(m.Calls()) - asked; n > 4 {
			t.Errorf("off already, it was asked %d times in a minute", n)
		}
	})
}

func TestAMachineThatBootsIsWatchedUntilItIsUp(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{})
		r.set(1, order("m1", 1, Wake))
		r.after(time.Minute)
		asked := len(m.Calls())
		r.after(time.Minute)
		if n := len(m.Calls()) - asked; n > 60/5 {
			t.Errorf("while it boots it is asked %d times a minute", n)
		}
		m.Set(api.PowerOff)
		r.after(6 * time.Second)
		first := r.want("m1", api.PowerOff, true, "")
		r.after(6 * time.Second) // and again: one reading proves little
		if second := r.observed("m1"); !second.ObservedAt.After(first.ObservedAt) {
			t.Error("that it is off was read once")
		}
		r.wantOrders(m, "on")
		m.Set(api.PowerOn)
		r.set(1, order("m1", 1, Leave))
		r.after(time.Minute)
		asked = len(m.Calls())
		r.after(time.Minute)
		if n := len(m.Calls()) - asked; n > 2 {
			t.Errorf("when it is up it is asked %d times a minute", n)
		}
	})
}

func TestABMCThatNeverAnswersIsGivenUpInTime(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		behaviour fake.Behaviour
		order     Order
		deadline  time.Duration
	}{
		"to be looked at":              {fake.Behaviour{Silent: true}, Leave, power.ObserveDeadline},
		"to be looked at for an order": {fake.Behaviour{Silent: true}, Wake, power.ObserveDeadline},
		"an order without looking":     {fake.Behaviour{Silent: true, Abilities: &power.Abilities{}}, Wake, power.OrderDeadline},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			site(t, func(r *rig) {
				r.site.Add("m1", tc.behaviour)
				r.set(1, order("m1", 1, tc.order))
				r.after(tc.deadline - time.Second)
				if seen := r.p.Observed(); len(seen) != 0 {
					t.Errorf("before its time is over it is %+v", seen[0])
				}
				r.after(2 * time.Second)
				r.want("m1", api.PowerUnknown, false, "does not answer")
			})
		})
	}
}

func TestPacketsAreRepeatedUntilTheMachineIsHeardOf(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		heard := r.site.Add("heard", fake.Behaviour{Abilities: &power.Abilities{}, Deaf: true})
		never := r.site.Add("never", fake.Behaviour{Abilities: &power.Abilities{}, Deaf: true})
		r.set(1, order("heard", 1, Wake), order("never", 1, Wake))
		r.after(15 * time.Second)
		r.want("heard", api.PowerUnknown, true, "")
		called := order("heard", 1, Wake)
		called.Heard = true
		r.set(1, called, order("never", 1, Wake))
		r.after(time.Hour)
		r.wantOrders(heard, "on on")
		r.wantOrders(never, "on on on on on")
	})
}

func TestAPersonIsToldWhatToPress(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := order("m1", 1, Wake)
		m.Target.Control = api.PowerControl{Kind: api.PowerManual}
		m.WasDone = true // told by an earlier leader, who is gone, and nobody pressed it yet
		r.set(1, m)
		r.after(time.Minute)
		if o := r.want("m1", api.PowerUnknown, true, `power "m1" on`); o.Final {
			t.Error("it is final")
		}
		m.Heard = true
		r.set(1, m)
		r.after(time.Second)
		r.want("m1", api.PowerUnknown, true, "")
	})
}

func TestNewerOrdersEndOlderWork(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{Answer: 5 * time.Second})
		r.set(3, order("m1", 7, Wake))
		r.after(7 * time.Second) // amid telling it on
		r.set(3, order("m1", 8, Cut))
		r.after(time.Second)
		if n := r.site.OpenSessions(); n != 1 {
			t.Errorf("%d sessions are open; want that of the newer order", n)
		}
		r.after(patience + 10*time.Second)
		r.want("m1", api.PowerOff, true, "")
		if m.State() != api.PowerOff {
			t.Error("the older order was carried out after the newer one")
		}
		r.set(2, order("m1", 9, Wake)) // a leader of an older term
		r.after(time.Minute)
		if o := r.want("m1", api.PowerOff, true, ""); o.Generation != 8 {
			t.Errorf("an older term's order was taken: %+v", o)
		}
	})
}

func TestWorkEndsWithTheLeadershipAndGoesOnWithTheNext(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{Silent: true})
		r.set(1, order("m1", 7, Wake))
		r.after(time.Second)
		r.end()
		if n := r.site.OpenSessions(); n != 0 {
			t.Errorf("%d sessions are open", n)
		}
		m.SetBehaviour(fake.Behaviour{})
		r.after(time.Minute)
		r.wantOrders(m, "")
		r.start()
		r.after(time.Second)
		r.want("m1", api.PowerOn, true, "")
	})
}

func TestAMachineThatIsForgottenIsLeftAlone(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{Deaf: true})
		r.set(1, order("m1", 7, Wake))
		r.after(time.Second)
		r.set(1)
		r.after(time.Second)
		if n := len(r.p.Observed()); n != 0 {
			t.Errorf("%d machines are observed", n)
		}
		before := len(m.Calls())
		r.after(time.Hour)
		if len(m.Calls()) != before {
			t.Error("it is still asked")
		}
	})
}

func TestAnImpossibleTargetIsAProblemOfThatMachineOnly(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		r.site.Add("good", fake.Behaviour{})
		r.set(1, order("good", 1, Wake), order("missing", 1, Wake))
		r.after(time.Second)
		r.want("good", api.PowerOn, true, "")
		if o := r.want("missing", api.PowerUnknown, false, "no fake machine"); !o.Final {
			t.Error("it is not final")
		}
	})
}

func TestChangesAreSignalledAndObservationsAloneAreNot(t *testing.T) {
	t.Parallel()
	site(t, func(r *rig) {
		m := r.site.Add("m1", fake.Behaviour{})
		r.set(1, order("m1", 1, Leave))
		r.after(time.Second)
		<-r.p.Changed()
		first := r.observed("m1").ObservedAt
		r.after(2 * time.Minute)
		select {
		case <-r.p.Changed():
			t.Error("nothing changed, and it was signalled")
		default:
		}
		if !r.observed("m1").ObservedAt.After(first.Add(time.Minute)) {
			t.Error("it was not observed again")
		}
		m.Set(api.PowerOn)
		<-r.p.Changed()
		r.want("m1", api.PowerOn, false, "")
	})
}

func TestAThousandMachinesAreObservedAFewAtATimeAndOrdersGoFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, site: fake.NewSite()}
		r.p = New(Options{Open: r.open})
		r.start()
		defer func() { r.end() }()
		var machines []Machine
		for i := range 1000 {
			name := fmt.Sprintf("m%d", i)
			r.site.Add(name, fake.Behaviour{Silent: true})
			machines = append(machines, order(name, 1, Leave))
		}
		urgent := r.site.Add("urgent", fake.Behaviour{Answer: 100 * time.Millisecond})
		r.set(1, append(machines, order("urgent", 1, Wake))...)
		r.after(time.Second)
		if n := r.site.OpenSessions(); n > 32 {
			t.Errorf("%d BMCs are asked at once", n)
		}
		r.wantOrders(urgent, "on")
		r.want("urgent", api.PowerOn, true, "")
	})
}
