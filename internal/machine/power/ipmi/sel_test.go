package ipmi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

// logged is the simulator's command that adds a system event to its log: sensor type, number, event type with direction, and three bytes of data.
func logged(what, number, kind, one, two, three byte) string {
	return fmt.Sprintf("sel_add 0x20 0x02 0 0 0 0 0x20 0 4 0x%02x 0x%02x 0x%02x 0x%02x 0x%02x 0x%02x", what, number, kind, one, two, three)
}

func texts(l sensors.Log) (out []string) {
	for _, e := range l.Entries {
		out = append(out, string(e.Severity)+" "+e.Text)
	}
	return out
}

// logWithin reads the log after a mark until it has so many new entries.
func logWithin(t *testing.T, s *ipmi.Switch, after api.BMCLogMark, entries int) sensors.Log {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		l, err := s.Log(ctx, after)
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Entries) >= entries {
			return l
		}
	}
}

func TestEachEntryOfASimulatedBMCsLogIsReadOnce(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSim(t, append(simulated(), "sel_enable 0x20 100 0x0a", logged(0x0C, 0x40, 0x6F, 1, 0, 0))...)
	s, err := ipmi.New(target(sim.Address))
	if err != nil {
		t.Fatal(err)
	}
	begin, err := s.Log(t.Context(), api.BMCLogMark{})
	if err != nil || len(begin.Entries) > 0 || len(begin.Mark.IDs) != 1 {
		t.Fatalf("a log that was never read: got %+v, %v; want no entries, and its end", begin, err)
	}
	for _, command := range []string{
		logged(0x01, 2, 0x01, 0x50|9, 95, 90), // the threshold's going high
		logged(0x08, 8, 0x6F, 3, 0, 0), logged(0x08, 8, 0x80|0x6F, 3, 0, 0), logged(0x0C, 0x41, 0x6F, 0, 0, 0), logged(0xC0, 0x42, 0x70, 2, 0, 0),
	} {
		sim.Tell(t, command)
	}
	first := logWithin(t, s, begin.Mark, 5)
	want := []string{
		"critical temperature CPU Temp: above its upper critical threshold, 95 °C of 90 °C", "critical power supply PSU 2: input lost", "ok power supply PSU 2: input lost, no longer so",
		"warning memory number 41h: correctable ECC error", "ok sensor of type C0h number 42h: event 2 of type 70h",
	}
	if got := texts(first); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	printed := powertest.IPMITool(t, sim.Address, "sel", "elist")
	if n := strings.Count(printed, "\n"); n != 6 || !strings.Contains(printed, "Upper Critical going high") || !strings.Contains(printed, "Power Supply AC lost") {
		t.Errorf("ipmitool prints otherwise:\n%s", printed)
	}
	again, err := s.Log(t.Context(), first.Mark)
	if err != nil || len(again.Entries) > 0 {
		t.Errorf("after all was read: got %q, %v; want nothing", texts(again), err)
	}

	// Another switch, as after a restart of the server, goes on where the mark is.
	other, err := ipmi.New(target(sim.Address))
	if err != nil {
		t.Fatal(err)
	}
	sim.Tell(t, logged(0x0C, 0x41, 0x6F, 1, 0, 0))
	next := logWithin(t, other, first.Mark, 1)
	if got := texts(next); !slices.Equal(got, []string{"critical memory number 41h: uncorrectable ECC error"}) {
		t.Errorf("after a restart: got %q", got)
	}

	powertest.IPMITool(t, sim.Address, "sel", "clear")
	sim.Tell(t, logged(0x0C, 0x43, 0x6F, 1, 0, 0))
	cleared := logWithin(t, other, next.Mark, 1)
	if got := texts(cleared); !slices.Contains(got, "critical memory number 43h: uncorrectable ECC error") || slices.Contains(got, want[0]) {
		t.Errorf("after the log was cleared: got %q", got)
	}
}

func TestABMCWithoutALogCanNotBeRead(t *testing.T) {
	t.Parallel()
	machines := powertest.StartMachines(t, "m1")
	s, err := ipmi.New(target(machines.IPMI["m1"]))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := s.Log(t.Context(), api.BMCLogMark{}); !errors.Is(err, power.ErrCannot) {
		t.Errorf("got %+v, %v; want an error that is ErrCannot", l, err)
	}
}
