package energy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// scripted is a source that says what it is told to.
type scripted struct{ says func() (Reading, error) }

func (scripted) Kind() api.EnergySource { return api.EnergyCommand }
func (scripted) Scope() string          { return "a script" }

func (s scripted) Read(context.Context) (Reading, error) { return s.says() }

// stat makes a file like /proc/stat.
func stat(t testing.TB, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "stat")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const twoCPUs = "cpu  100 20 30 5000 400 5 6 70 80 9\ncpu0 50 10 15 2500 200 2 3 35 40 4\ncpu1 50 10 15 2500 200 3 3 35 40 5\nintr 1 2 3\n"

func TestBusyTimeIsWhatCPUsWorkedForWhomever(t *testing.T) {
	t.Parallel()
	busy, cpus, err := BusyTime(stat(t, twoCPUs))
	if err != nil || cpus != 2 || busy != (100+20+30+5+6)*int64(10*time.Millisecond) {
		t.Errorf("got %d, %d, %v; want user, nice, system and interrupts, without idle, waiting, stolen and guests' time", busy, cpus, err)
	}
	for _, text := range []string{"", "intr 1\n", "cpu  1 2 three 4\ncpu0 1 2 3 4\n", "cpu  1 2 3 4\nintr 1\n"} {
		if _, _, err := BusyTime(stat(t, text)); err == nil {
			t.Errorf("%q is not refused", text)
		}
	}
}

// read takes samples of one source, a second apart, and returns its counters.
func counters(t *testing.T, says ...func() (Reading, error)) []api.EnergyCounter {
	t.Helper()
	now, n := time.Unix(0, 0), 0
	s := NewSampler(SamplerConfig{
		Stat: stat(t, twoCPUs), Now: func() time.Time { return now },
		Direct: []Source{scripted{func() (Reading, error) { n++; return says[n-1]() }}},
	})
	var all []api.EnergyCounter
	for range says {
		sample, err := s.Sample(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, sample.Counters[0])
		now = now.Add(time.Second)
	}
	return all
}

func watts(n float64) func() (Reading, error) {
	return func() (Reading, error) { return Reading{Watts: n}, nil }
}

func count(microjoules, breaks int64) func() (Reading, error) {
	return func() (Reading, error) {
		return Reading{Counter: &Counter{Microjoules: microjoules, Breaks: breaks}}, nil
	}
}

func fails() (Reading, error) { return Reading{}, errors.New("the meter is silent") }

func TestPowerIsAddedUpOverTime(t *testing.T) {
	t.Parallel()
	all := counters(t, watts(100), watts(200), watts(200))
	if last := all[2]; last.Microjoules != 150e6+200e6 || last.Breaks != 0 || *last.Watts != 200 || last.Tag != api.EnergyMeasured {
		t.Errorf("got %+v; want 350 J after 100, 200 and 200 W", last)
	}
}

func TestASilentSourceIsUnavailableAndWhatWasUsedMeanwhileIsNotMadeUp(t *testing.T) {
	t.Parallel()
	all := counters(t, watts(100), fails, watts(100), watts(100))
	if c := all[1]; c.Tag != api.EnergyUnavailable || c.Watts != nil || c.Reason != "the meter is silent" || c.Breaks != 1 {
		t.Errorf("got %+v; want it unavailable with its reason", c)
	}
	if c := all[3]; c.Microjoules != 100e6 || c.Breaks != 1 {
		t.Errorf("got %d uJ and %d breaks; want only the second of 100 W between two readings", c.Microjoules, c.Breaks)
	}
}

func TestACountersBreakIsPassedOn(t *testing.T) {
	t.Parallel()
	all := counters(t, count(10e6, 0), count(60e6, 0), count(60e6, 1), count(70e6, 1), watts(5), count(90e6, 1))
	if c := all[1]; *c.Watts != 50 || c.Microjoules != 50e6 {
		t.Errorf("got %+v; want 50 W", c)
	}
	if c := all[2]; c.Watts != nil || c.Breaks != 1 || c.Microjoules != 50e6 {
		t.Errorf("got %+v over a break; want no power", c)
	}
	if c := all[3]; c.Microjoules != 60e6 || c.Breaks != 1 {
		t.Errorf("got %+v after it", c)
	}
	if c := all[5]; c.Microjoules != 60e6 || c.Breaks != 3 {
		t.Errorf("got %+v after a source that changed its kind twice", c)
	}
}

func TestAModelledReadingIsCalledOne(t *testing.T) {
	t.Parallel()
	all := counters(t, func() (Reading, error) { return Reading{Watts: 5, Modelled: "a stand-in"}, nil })
	if all[0].Tag != api.EnergyModelled || all[0].Reason != "a stand-in" {
		t.Errorf("got %+v", all[0])
	}
}

func TestASlowSourceHoldsNothingUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		slow := blocking{func(ctx context.Context) (Reading, error) {
			if reads++; reads > 1 {
				<-ctx.Done()
				return Reading{}, fmt.Errorf("no answer in time")
			}
			return Reading{Watts: 70}, nil
		}}
		s := NewSampler(SamplerConfig{Stat: stat(t, twoCPUs), Slow: []Source{slow}})
		take := func() api.EnergyCounter {
			sample, err := s.Sample(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return sample.Counters[0]
		}
		if c := take(); c.Tag != api.EnergyUnavailable || c.Reason != "it was not read yet" {
			t.Errorf("before the first reading: %+v", c)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); s.Run(ctx) }()
		synctest.Wait()
		if c := take(); c.Tag != api.EnergyMeasured || *c.Watts != 70 {
			t.Errorf("after it: %+v", c)
		}
		<-time.After(slowEvery + slowDeadline + time.Second)
		synctest.Wait()
		if c := take(); c.Tag != api.EnergyUnavailable || c.Reason != "no answer in time" {
			t.Errorf("once it hangs: %+v", c)
		}
		cancel()
		<-done
	})
}

type blocking struct {
	read func(ctx context.Context) (Reading, error)
}

func (blocking) Kind() api.EnergySource                      { return api.EnergyCommand }
func (blocking) Scope() string                               { return "a program" }
func (b blocking) Read(ctx context.Context) (Reading, error) { return b.read(ctx) }
