package redfish_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
	"github.com/nearmetal/nearmetal/internal/machine/power/redfish"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

// shown reads a machine's sensors as lines.
func shown(t *testing.T, target power.Target) (lines []string, all []api.Sensor, err error) {
	t.Helper()
	s, err := redfish.New(target)
	if err != nil {
		t.Fatal(err)
	}
	all, err = s.Sensors(t.Context())
	for _, one := range all {
		lines = append(lines, fmt.Sprintf("%s, %s", one.Kind, sensors.Describe(one)))
	}
	return lines, all, err
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestSensorsOfSushyToolsAreRead(t *testing.T) {
	t.Parallel()
	machines := powertest.StartMachines(t, "m1")
	got, all, err := shown(t, power.Target{
		Name: "m1", Control: api.PowerControl{Kind: api.PowerRedfish, Address: machines.Redfish, System: machines.Systems["m1"]},
		Credentials: power.Credentials{User: powertest.User, Password: powertest.Password},
	})
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, []string{
		"temperature, CPU Temp 41 °C (ok)", "temperature, Chassis Intake Temp 25 °C (ok)", "fan, BaseBoard System Fan 2100 RPM (ok)", "fan, BaseBoard System Fan Backup 2050 RPM (ok)",
	})
	if limits := all[0].Thresholds; limits == nil || *limits.UpperWarning != 42 || *limits.UpperCritical != 45 || *limits.UpperFatal != 48 || limits.LowerWarning != nil {
		t.Errorf("the thresholds of the first sensor are %+v; want 42, 45 and 48, upper ones only", limits)
	}
}

// strict is a machine behind the strict service.
func strict(s *service) power.Target {
	return power.Target{
		Name: "m1", Control: api.PowerControl{Kind: api.PowerRedfish, Address: s.URL, System: "one"},
		Credentials: power.Credentials{User: powertest.User, Password: powertest.Password},
	}
}

func TestTheOlderResourcesThermalAndPowerAreRead(t *testing.T) {
	t.Parallel()
	s := serve(t, false)
	s.chassis = []any{at("/redfish/v1/Chassis/1")}
	good := values{"State": "Enabled", "Health": "OK"}
	s.resources = map[string]values{
		"/redfish/v1/Chassis/1": {"Thermal": at("/redfish/v1/Chassis/1/Thermal"), "Power": at("/redfish/v1/Chassis/1/Power"), "PowerSubsystem": at("/redfish/v1/none")},
		"/redfish/v1/Chassis/1/Thermal": {
			"Temperatures": []any{
				values{"Name": "CPU 1", "ReadingCelsius": 72, "UpperThresholdNonCritical": 70, "UpperThresholdCritical": 90, "Status": good},
				values{"Name": "CPU 2", "ReadingCelsius": nil, "Status": values{"State": "Absent"}},
				values{"Name": "DIMM", "ReadingCelsius": nil, "Status": good},
				values{"Name": "NVMe", "ReadingCelsius": 0, "Status": values{"State": "UnavailableOffline"}},
			},
			"Fans": []any{
				values{"FanName": "Fan 1", "Reading": 40, "ReadingUnits": "Percent", "Status": good},
				values{"Name": "Fan 2", "Reading": 900, "ReadingUnits": "RPM", "LowerThresholdCritical": 1000, "Status": good},
			},
		},
		"/redfish/v1/Chassis/1/Power": {
			"PowerControl": []any{values{"PowerConsumedWatts": 344}},
			"PowerSupplies": []any{
				values{"Name": "PSU 1", "PowerInputWatts": 180, "Status": good},
				values{"Name": "PSU 2", "Status": values{"State": "Enabled", "Health": "Critical"}},
			},
			"Voltages": []any{values{"Name": "12V", "ReadingVolts": 12.05, "Status": good}},
		},
	}
	got, _, err := shown(t, strict(s))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, []string{
		"temperature, CPU 1 72 °C (warning)", "temperature, DIMM (unavailable): the BMC has no reading", "temperature, NVMe (unavailable): the BMC says it is UnavailableOffline",
		"fan, Fan 1 40 % (ok)", "fan, Fan 2 900 RPM (critical)", "power, Power 1 344 W (ok)", "power-supply, PSU 1 180 W (ok)", "power-supply, PSU 2 (critical)",
		"voltage, 12V 12.05 V (ok)",
	})
	if len(s.sessions) > 0 {
		t.Errorf("%d sessions were left open", len(s.sessions))
	}
}

func TestTheNewerResourcesSensorsAndSubsystemsAreRead(t *testing.T) {
	t.Parallel()
	s := serve(t, false)
	const chassis = "/redfish/v1/Chassis/1"
	s.chassis = []any{at(chassis)}
	good := values{"State": "Enabled", "Health": "OK"}
	members := func(paths ...string) values {
		var all []any
		for _, p := range paths {
			all = append(all, at(chassis+p))
		}
		return values{"Members": all}
	}
	s.resources = map[string]values{
		chassis: {
			"Sensors": at(chassis + "/Sensors"), "ThermalSubsystem": at(chassis + "/ThermalSubsystem"), "PowerSubsystem": at(chassis + "/PowerSubsystem"),
			"Thermal": at(chassis + "/Thermal"), "Power": at(chassis + "/Power"),
		},
		chassis + "/Sensors": members("/Sensors/t", "/Sensors/gone", "/Sensors/h", "/Sensors/p"),
		chassis + "/Sensors/t": {
			"Name": "Inlet", "ReadingType": "Temperature", "Reading": 47.5, "Status": good,
			"Thresholds": values{"UpperCaution": values{"Reading": 40}, "UpperCritical": values{"Reading": 45}},
		},
		chassis + "/Sensors/h":                   {"Name": "Humidity", "ReadingType": "Humidity", "Reading": 40, "Status": good},
		chassis + "/Sensors/p":                   {"Name": "Total", "ReadingType": "Power", "Reading": 410, "Status": values{"State": "Enabled", "Health": "Warning"}},
		chassis + "/ThermalSubsystem":            {"Fans": at(chassis + "/ThermalSubsystem/Fans")},
		chassis + "/ThermalSubsystem/Fans":       members("/ThermalSubsystem/Fans/1"),
		chassis + "/ThermalSubsystem/Fans/1":     {"Name": "Fan 1", "SpeedPercent": values{"Reading": 35, "SpeedRPM": 4200}, "Status": good},
		chassis + "/PowerSubsystem":              {"PowerSupplies": at(chassis + "/PowerSubsystem/Supplies")},
		chassis + "/PowerSubsystem/Supplies":     members("/PowerSubsystem/Supplies/1", "/PowerSubsystem/Supplies/2"),
		chassis + "/PowerSubsystem/Supplies/1":   {"Name": "PSU 1", "Metrics": at(chassis + "/PowerSubsystem/Supplies/1/M"), "Status": good},
		chassis + "/PowerSubsystem/Supplies/1/M": {"InputPowerWatts": values{"Reading": 205}},
		chassis + "/PowerSubsystem/Supplies/2":   {"Name": "PSU 2", "Status": good},
		chassis + "/Thermal":                     {"Temperatures": []any{values{"Name": "the same again", "ReadingCelsius": 47}}},
		chassis + "/Power":                       {"PowerControl": []any{values{"PowerConsumedWatts": 410}}},
	}
	got, _, err := shown(t, strict(s))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, []string{
		"temperature, Inlet 48 °C (critical)", "power, Total 410 W (warning)", "fan, Fan 1 4200 RPM (ok)", "power-supply, PSU 1 205 W (ok)", "power-supply, PSU 2 (ok)",
	})
}

func TestASystemWithoutAChassisHasNoSensors(t *testing.T) {
	t.Parallel()
	s := serve(t, false)
	if _, all, err := shown(t, strict(s)); !errors.Is(err, power.ErrCannot) {
		t.Errorf("got %v, %v; want an error that is ErrCannot", all, err)
	}
}

func TestThePowerOfEnvironmentMetricsIsReadWhereNoSensorHasIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		metrics values
		want    []string
	}{
		"a reading":  {values{"PowerWatts": values{"Reading": 212.5}}, []string{"power, Power 212 W (ok)"}},
		"none now":   {values{"PowerWatts": values{"Reading": nil}}, []string{"power, Power (unavailable): the BMC has no reading"}},
		"no reading": {values{"TemperatureCelsius": values{"Reading": 20}}, nil},
	} {
		s := serve(t, false)
		s.chassis = []any{at("/redfish/v1/Chassis/1")}
		s.resources = map[string]values{
			"/redfish/v1/Chassis/1":                    {"EnvironmentMetrics": at("/redfish/v1/Chassis/1/EnvironmentMetrics")},
			"/redfish/v1/Chassis/1/EnvironmentMetrics": c.metrics,
		}
		got, _, err := shown(t, strict(s))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		same(t, got, c.want)
	}
}
