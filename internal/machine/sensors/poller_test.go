package sensors_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

// bmc is a power switch with sensors. Its other methods are never called.
type bmc struct {
	power.Switch
	read func(ctx context.Context) ([]api.Sensor, error)
}

func (b bmc) Sensors(ctx context.Context) ([]api.Sensor, error) { return b.read(ctx) }

func machine(uid string) sensors.Machine {
	return sensors.Machine{UID: uid, Target: power.Target{Name: uid, Control: api.PowerControl{Kind: api.PowerIPMI, Address: uid}}}
}

// running starts a poller in a bubble, and ends it with the test.
func running(t *testing.T, o sensors.Options, machines ...sensors.Machine) *sensors.Poller {
	if o.Gate == nil {
		o.Gate = power.NewGate(power.GateOptions{})
	}
	p := sensors.New(o)
	p.Set(machines)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return p
}

func warm(celsius float64) []api.Sensor {
	limit := 80.0
	s := api.Sensor{Name: "CPU", Kind: api.SensorTemperature, Unit: api.UnitCelsius, Value: &celsius, Thresholds: &api.SensorThresholds{UpperCritical: &limit}}
	s.State = sensors.Judge(celsius, s.Thresholds)
	return []api.Sensor{s}
}

func TestMachinesAreReadInTurnOneAtATimeAndSlowly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		reading, reads := 0, map[string]int{}
		open := func(target power.Target) (power.Switch, error) {
			return bmc{read: func(ctx context.Context) ([]api.Sensor, error) {
				mu.Lock()
				reading++
				if reads[target.Name]++; reading > 1 {
					t.Errorf("%d machines are read at once", reading)
				}
				mu.Unlock()
				select {
				case <-time.After(5 * time.Second):
				case <-ctx.Done():
				}
				mu.Lock()
				reading--
				mu.Unlock()
				return warm(40), nil
			}}, nil
		}
		p := running(t, sensors.Options{Open: open}, machine("a"), machine("b"), machine("c"))
		<-time.After(10*time.Minute + time.Second)
		mu.Lock()
		defer mu.Unlock()
		for _, uid := range []string{"a", "b", "c"} {
			if n := reads[uid]; n < 9 || n > 11 {
				t.Errorf("machine %s was read %d times within 10 minutes, want about 10", uid, n)
			}
			if got := p.Sensors(uid); got == nil || got.State != api.SensorOK || len(got.Sensors) != 1 {
				t.Errorf("machine %s: got %+v", uid, got)
			}
		}
	})
}

func TestABMCThatCanNotBeReadIsUnavailableAndKeepsItsLastReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var fail error
		var mu sync.Mutex
		open := func(power.Target) (power.Switch, error) {
			return bmc{read: func(context.Context) ([]api.Sensor, error) {
				mu.Lock()
				defer mu.Unlock()
				if fail != nil {
					return nil, fail
				}
				return warm(90), nil
			}}, nil
		}
		p := running(t, sensors.Options{Open: open}, machine("a"))
		synctest.Wait()
		first := p.Sensors("a")
		if first == nil || first.State != api.SensorCritical || first.Message != "CPU 90 °C (critical)" {
			t.Fatalf("got %+v, want a critical sensor", first)
		}
		mu.Lock()
		fail = fmt.Errorf("at a: %w", power.ErrUnreachable)
		mu.Unlock()
		<-time.After(61 * time.Second)
		synctest.Wait()
		got := p.Sensors("a")
		if got.State != api.SensorUnavailable || !strings.Contains(got.Message, "does not answer") || !got.ReadAt.Equal(first.ReadAt) || len(got.Sensors) != 1 {
			t.Errorf("got %+v; want it unavailable with the reading of %s", got, first.ReadAt)
		}
	})
}

func TestARefusedPasswordIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		tries := []string{}
		open := func(target power.Target) (power.Switch, error) {
			return bmc{read: func(context.Context) ([]api.Sensor, error) {
				mu.Lock()
				defer mu.Unlock()
				tries = append(tries, target.Credentials.Password)
				if target.Credentials.Password != "new" {
					return nil, power.ErrCredentials
				}
				return warm(40), nil
			}}, nil
		}
		m := machine("a")
		p := running(t, sensors.Options{Open: open}, m)
		<-time.After(time.Hour)
		m.Target.Credentials.Password = "new"
		p.Set([]sensors.Machine{m})
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(tries, []string{"", "new"}) {
			t.Errorf("tried %q; want one try of each password", tries)
		}
	})
}

func TestMachinesWithoutSensorsAreNotShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		open := func(target power.Target) (power.Switch, error) {
			if target.Name == "switch" {
				return struct{ power.Switch }{}, nil
			}
			return bmc{read: func(context.Context) ([]api.Sensor, error) { return nil, power.ErrCannot }}, nil
		}
		p := running(t, sensors.Options{Open: open}, machine("switch"), machine("bmc"))
		<-time.After(2 * time.Hour)
		for _, uid := range []string{"switch", "bmc"} {
			if got := p.Sensors(uid); got != nil {
				t.Errorf("%s: got %+v, want nothing", uid, got)
			}
		}
	})
}
