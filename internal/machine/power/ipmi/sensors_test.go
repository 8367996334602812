package ipmi_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

// simulated are sensors of all kinds, with values that need each part of the conversion.
func simulated() (commands []string) {
	warm := []byte{5, 3, 1, 70, 80, 90}
	for _, s := range []struct {
		record powertest.SensorRecord
		raw    byte
	}{
		{powertest.SensorRecord{ID: 1, Number: 1, Name: "Inlet Temp", Type: 1, Reading: 1, Unit: 1, Format: 2, M: 1, Thresholds: warm}, 25},
		{powertest.SensorRecord{ID: 2, Number: 2, Name: "CPU Temp", Type: 1, Reading: 1, Unit: 1, M: 1, Thresholds: warm}, 85},
		{powertest.SensorRecord{ID: 3, Number: 3, Name: "Fan 1", Type: 4, Reading: 1, Unit: 18, M: 60, Thresholds: []byte{20, 10, 5, 250, 252, 254}}, 15},
		{powertest.SensorRecord{ID: 4, Number: 4, Name: "Power", Type: 0x0B, Reading: 1, Unit: 6, M: 4}, 60},
		{powertest.SensorRecord{ID: 5, Number: 5, Name: "P12V", Type: 2, Reading: 1, Unit: 4, M: 6, B: 4, BExp: 1, RExp: -2}, 195},
		{powertest.SensorRecord{ID: 6, Number: 6, Name: "Below zero", Type: 1, Reading: 1, Unit: 1, Format: 2, M: 1}, 0xF6},
		{powertest.SensorRecord{ID: 7, Number: 7, Name: "PSU 1", Type: 8, Reading: 0x6F}, 0},
		{powertest.SensorRecord{ID: 8, Number: 8, Name: "PSU 2", Type: 8, Reading: 0x6F}, 0},
		{powertest.SensorRecord{ID: 9, Number: 9, Name: "Odd", Type: 1, Reading: 1, Unit: 1, M: 1, Linearization: 0x70}, 7},
	} {
		commands = append(commands, s.record.Commands(s.raw)...)
	}
	gone := powertest.SensorRecord{ID: 10, Number: 99, Name: "Gone", Type: 1, Reading: 1, Unit: 1, M: 1}
	far := powertest.SensorRecord{ID: 11, Number: 1, Name: "Far", Type: 1, Reading: 1, Unit: 1, M: 1, Owner: 0x72}
	return append(commands, "sensor_set_bit 0x20 0 7 0 1 0", "sensor_set_bit 0x20 0 8 0 1 0", "sensor_set_bit 0x20 0 8 3 1 0",
		powertest.AddRecord(gone.Full()), powertest.AddRecord(far.Full()))
}

func TestSensorsOfASimulatedBMCAreReadAsIPMIToolReadsThem(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSim(t, simulated()...)
	s, err := ipmi.New(target(sim.Address))
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.Sensors(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, one := range all {
		got = append(got, fmt.Sprintf("%s, %s", one.Kind, sensors.Describe(one)))
	}
	want := []string{
		"temperature, Inlet Temp 25 °C (ok)", "temperature, CPU Temp 85 °C (critical)", "fan, Fan 1 900 RPM (warning)", "power, Power 240 W (ok)",
		"voltage, P12V 12.10 V (ok)", "temperature, Below zero -10 °C (ok)", "power-supply, PSU 1 (ok)", "power-supply, PSU 2 (critical): its input is lost",
		"temperature, Odd (unavailable): its readings are not linear, which is not supported", "temperature, Gone (unavailable): the BMC answered command 2Dh of function 04h with completion code CCh: a field is not valid",
		"temperature, Far (unavailable): it belongs to another controller",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, one := range all {
		if one.State == api.SensorUnavailable && one.Value != nil {
			t.Errorf("%s is unavailable and has the value %v", one.Name, *one.Value)
		}
	}
	compare(t, sim, all)
}

// compare compares values and thresholds with those that ipmitool prints.
func compare(t *testing.T, sim *powertest.Sim, all []api.Sensor) {
	t.Helper()
	compared := 0
	for line := range strings.Lines(powertest.IPMITool(t, sim.Address, "sensor")) {
		cells := strings.Split(line, "|")
		name := strings.TrimSpace(cells[0])
		i := slices.IndexFunc(all, func(s api.Sensor) bool { return s.Name == name })
		if i < 0 || len(cells) < 10 || all[i].Value == nil {
			continue
		}
		limits := api.SensorThresholds{}
		if all[i].Thresholds != nil {
			limits = *all[i].Thresholds
		}
		for cell, mine := range map[int]*float64{
			1: all[i].Value, 4: limits.LowerFatal, 5: limits.LowerCritical, 6: limits.LowerWarning, 7: limits.UpperWarning, 8: limits.UpperCritical, 9: limits.UpperFatal,
		} {
			theirs, err := strconv.ParseFloat(strings.TrimSpace(cells[cell]), 64)
			if (err == nil) != (mine != nil) || mine != nil && *mine != theirs {
				t.Errorf("%s: ipmitool prints %q in column %d; got %v", name, strings.TrimSpace(cells[cell]), cell, mine)
			}
			compared++
		}
	}
	if compared < 42 {
		t.Errorf("ipmitool printed only %d numbers to compare with", compared)
	}
}

func TestASensorWhoseValueChangesIsReadAgain(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSim(t, simulated()...)
	s, err := ipmi.New(target(sim.Address))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sensors(t.Context()); err != nil {
		t.Fatal(err)
	}
	sim.Tell(t, "sensor_set_value 0x20 0 1 95 0")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		all, err := s.Sensors(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if *all[0].Value == 95 {
			if all[0].State != api.SensorCritical {
				t.Errorf("at 95 °C of 90 °C the state is %q", all[0].State)
			}
			return
		}
	}
}

func TestABMCWithoutSensorsCanNotBeRead(t *testing.T) {
	t.Parallel()
	names := powertest.Names()
	machines := powertest.StartMachines(t, names[0])
	s, err := ipmi.New(target(machines.IPMI[names[0]]))
	if err != nil {
		t.Fatal(err)
	}
	if all, err := s.Sensors(t.Context()); !errors.Is(err, power.ErrCannot) {
		t.Errorf("got %v, %v; want an error that is ErrCannot", all, err)
	}
}
