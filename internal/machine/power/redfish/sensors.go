package redfish

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

var _ sensors.Reader = (*Switch)(nil)

// maxChassis and maxMembers bound what is read of one machine: chassis, and sensors, fans or power supplies of one of them.
const (
	maxChassis = 16
	maxMembers = 512
)

// Sensors implements sensors.Reader. It reads the chassis that the system says it is in: Sensors, ThermalSubsystem, PowerSubsystem and EnvironmentMetrics where a
// chassis has them, and the older Thermal and Power where it has not (DSP0268).
func (s *Switch) Sensors(ctx context.Context) ([]api.Sensor, error) {
	var all []api.Sensor
	err := s.session(ctx, func(c *client) error {
		system, err := s.find(ctx, c)
		if err != nil {
			return err
		}
		at := system.Links.Chassis
		if len(at) == 0 {
			return fmt.Errorf("system %q names no chassis, whose sensors could be read: %w", system.ID, power.ErrCannot)
		}
		for _, chassis := range at[:min(len(at), maxChassis)] {
			some, err := c.chassis(ctx, chassis.Path)
			if err != nil {
				return err
			}
			all = append(all, some...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// status is what resources say of their state (Resource.Status).
type status struct {
	State  string `json:"State"`
	Health string `json:"Health"`
}

// chassis reads all sensors of a chassis.
func (c *client) chassis(ctx context.Context, path string) ([]api.Sensor, error) {
	var chassis struct {
		Sensors          link `json:"Sensors"`
		ThermalSubsystem link `json:"ThermalSubsystem"`
		PowerSubsystem   link `json:"PowerSubsystem"`
		Thermal          link `json:"Thermal"`
		Power            link `json:"Power"`
		Environment      link `json:"EnvironmentMetrics"`
	}
	if err := c.get(ctx, path, &chassis); err != nil {
		return nil, err
	}
	read, err := c.sensorList(ctx, chassis.Sensors.Path)
	if err != nil {
		return nil, err
	}
	fans, err := c.parts(ctx, chassis.ThermalSubsystem.Path, "Fans", api.SensorFan)
	if err != nil {
		return nil, err
	}
	supplies, err := c.parts(ctx, chassis.PowerSubsystem.Path, "PowerSupplies", api.SensorPowerSupply)
	if err != nil {
		return nil, err
	}
	all := read
	if !has(all, api.SensorFan) {
		all = append(all, fans...)
	}
	all = append(all, supplies...)
	if !has(all, api.SensorPower) {
		metrics, err := c.environment(ctx, chassis.Environment.Path)
		if err != nil {
			return nil, err
		}
		all = append(all, metrics...)
	}
	// A service may have some of the newer resources and not others.
	if !has(all, api.SensorTemperature) || !has(all, api.SensorFan) {
		older, err := c.thermal(ctx, chassis.Thermal.Path)
		if err != nil {
			return nil, err
		}
		all = appendMissing(all, older)
	}
	if !has(all, api.SensorPowerSupply) || !has(all, api.SensorPower) {
		older, err := c.power(ctx, chassis.Power.Path)
		if err != nil {
			return nil, err
		}
		all = appendMissing(all, older)
	}
	return all, nil
}

func has(all []api.Sensor, kind api.SensorKind) bool {
	for _, s := range all {
		if s.Kind == kind {
			return true
		}
	}
	return false
}

// appendMissing appends sensors of the kinds that are not there yet.
func appendMissing(all, more []api.Sensor) []api.Sensor {
	there := map[api.SensorKind]bool{}
	for _, s := range all {
		there[s.Kind] = true
	}
	for _, s := range more {
		if !there[s.Kind] {
			all = append(all, s)
		}
	}
	return all
}

// optional reads a resource that a service may lack; false: it is not there.
func (c *client) optional(ctx context.Context, path string, into any) (bool, error) {
	if path == "" {
		return false, nil
	}
	err := c.get(ctx, path, into)
	var failed *statusError
	if errors.As(err, &failed) && (failed.code == http.StatusNotFound || failed.code == http.StatusMethodNotAllowed || failed.code == http.StatusNotImplemented) {
		return false, nil
	}
	return err == nil, err
}

// list returns the paths of a collection's members; nothing where there is no collection.
func (c *client) list(ctx context.Context, path string) ([]string, error) {
	var page struct{}
	if there, err := c.optional(ctx, path, &page); !there {
		return nil, err
	}
	paths, err := c.members(ctx, path)
	return paths[:min(len(paths), maxMembers)], err
}

// made makes a sensor of what a service says: its own word on the health, and the value by its thresholds, whichever is worse. A part that is
// absent is no sensor.
func made(name string, kind api.SensorKind, unit api.SensorUnit, value *float64, limits *api.SensorThresholds, st status) (s api.Sensor, ok bool) {
	s = api.Sensor{Name: name, Kind: kind, Unit: unit, Thresholds: limits, Value: value, State: api.SensorUnavailable}
	switch st.State {
	case "Absent":
		return s, false
	case "", "Enabled", "StandbySpare", "InTest", "Quiesced", "Deferring", "Updating", "Qualified", "Degraded", "Starting":
	default: // Disabled, StandbyOffline, UnavailableOffline
		s.Value, s.Message = nil, "the BMC says it is "+st.State
		return s, true
	}
	health := map[string]api.SensorState{"OK": api.SensorOK, "Warning": api.SensorWarning, "Critical": api.SensorCritical}[st.Health]
	switch {
	case value != nil:
		s.State = sensors.Judge(*value, limits)
		if health != "" {
			s.State = sensors.Worse(s.State, health)
		}
	case health != "" && kind == api.SensorPowerSupply, health == api.SensorCritical, health == api.SensorWarning:
		s.State = health
	default:
		s.Message = "the BMC has no reading"
	}
	return s, true
}

// oldThresholds are those of the resources Thermal and Power.
type oldThresholds struct {
	LowerFatal    *float64 `json:"LowerThresholdFatal"`
	LowerCritical *float64 `json:"LowerThresholdCritical"`
	LowerWarning  *float64 `json:"LowerThresholdNonCritical"`
	UpperWarning  *float64 `json:"UpperThresholdNonCritical"`
	UpperCritical *float64 `json:"UpperThresholdCritical"`
	UpperFatal    *float64 `json:"UpperThresholdFatal"`
}

func (t oldThresholds) limits() *api.SensorThresholds {
	if t == (oldThresholds{}) {
		return nil
	}
	limits := api.SensorThresholds(t)
	return &limits
}

// thermal reads the resource Thermal.
func (c *client) thermal(ctx context.Context, path string) ([]api.Sensor, error) {
	var thermal struct {
		Temperatures []struct {
			oldThresholds
			Name    string   `json:"Name"`
			Reading *float64 `json:"ReadingCelsius"`
			Status  status   `json:"Status"`
		} `json:"Temperatures"`
		Fans []struct {
			oldThresholds
			Name    string   `json:"Name"`
			OldName string   `json:"FanName"` // before version 1.1
			Reading *float64 `json:"Reading"`
			Units   string   `json:"ReadingUnits"`
			Status  status   `json:"Status"`
		} `json:"Fans"`
	}
	if there, err := c.optional(ctx, path, &thermal); !there {
		return nil, err
	}
	var all []api.Sensor
	for _, t := range thermal.Temperatures {
		if s, ok := made(t.Name, api.SensorTemperature, api.UnitCelsius, t.Reading, t.limits(), t.Status); ok {
			all = append(all, s)
		}
	}
	for _, f := range thermal.Fans {
		unit := api.UnitRPM
		if f.Units == "Percent" {
			unit = api.UnitPercent
		}
		name := f.Name
		if name == "" {
			name = f.OldName
		}
		if s, ok := made(name, api.SensorFan, unit, f.Reading, f.limits(), f.Status); ok {
			all = append(all, s)
		}
	}
	return all, nil
}

// environment reads the power in the resource EnvironmentMetrics (schema 1.0, in DSP8010 from 2020.4 on).
func (c *client) environment(ctx context.Context, path string) ([]api.Sensor, error) {
	var metrics struct {
		Power *struct {
			Reading *float64 `json:"Reading"`
		} `json:"PowerWatts"`
	}
	if there, err := c.optional(ctx, path, &metrics); !there || metrics.Power == nil {
		return nil, err
	}
	s, ok := made("Power", api.SensorPower, api.UnitWatts, metrics.Power.Reading, nil, status{})
	if !ok {
		return nil, nil
	}
	return []api.Sensor{s}, nil
}

// power reads the resource Power.
func (c *client) power(ctx context.Context, path string) ([]api.Sensor, error) {
	var read struct {
		PowerControl []struct {
			Name     string   `json:"Name"`
			Consumed *float64 `json:"PowerConsumedWatts"`
			Status   status   `json:"Status"`
		} `json:"PowerControl"`
		PowerSupplies []struct {
			Name   string   `json:"Name"`
			Input  *float64 `json:"PowerInputWatts"`
			Output *float64 `json:"LastPowerOutputWatts"`
			Status status   `json:"Status"`
		} `json:"PowerSupplies"`
		Voltages []struct {
			oldThresholds
			Name    string   `json:"Name"`
			Reading *float64 `json:"ReadingVolts"`
			Status  status   `json:"Status"`
		} `json:"Voltages"`
	}
	if there, err := c.optional(ctx, path, &read); !there {
		return nil, err
	}
	var all []api.Sensor
	add := func(s api.Sensor, ok bool) {
		if ok {
			all = append(all, s)
		}
	}
	for i, p := range read.PowerControl {
		if p.Name == "" {
			p.Name = fmt.Sprintf("Power %d", i+1)
		}
		add(made(p.Name, api.SensorPower, api.UnitWatts, p.Consumed, nil, p.Status))
	}
	for _, p := range read.PowerSupplies {
		value := p.Input
		if value == nil {
			value = p.Output
		}
		add(made(p.Name, api.SensorPowerSupply, api.UnitWatts, value, nil, p.Status))
	}
	for _, v := range read.Voltages {
		add(made(v.Name, api.SensorVoltage, api.UnitVolts, v.Reading, v.limits(), v.Status))
	}
	return all, nil
}

// readingTypes are those of the resource Sensor that are shown.
var readingTypes = map[string]struct {
	kind api.SensorKind
	unit api.SensorUnit
}{
	"Temperature": {api.SensorTemperature, api.UnitCelsius}, "Rotational": {api.SensorFan, api.UnitRPM}, "Power": {api.SensorPower, api.UnitWatts},
	"Voltage": {api.SensorVoltage, api.UnitVolts}, "Current": {api.SensorCurrent, api.UnitAmperes},
}

// sensorList reads the resources Sensor of a chassis.
func (c *client) sensorList(ctx context.Context, path string) ([]api.Sensor, error) {
	paths, err := c.list(ctx, path)
	if err != nil {
		return nil, err
	}
	var all []api.Sensor
	type threshold struct {
		Reading *float64 `json:"Reading"`
	}
	for _, path := range paths {
		var read struct {
			Name       string   `json:"Name"`
			Type       string   `json:"ReadingType"`
			Reading    *float64 `json:"Reading"`
			Status     status   `json:"Status"`
			Thresholds struct {
				LowerFatal, LowerCritical, LowerCaution, UpperCaution, UpperCritical, UpperFatal threshold
			} `json:"Thresholds"`
		}
		if there, err := c.optional(ctx, path, &read); err != nil {
			return nil, err
		} else if !there {
			continue
		}
		kind, shown := readingTypes[read.Type]
		if !shown {
			continue
		}
		t := read.Thresholds
		limits := oldThresholds{
			t.LowerFatal.Reading, t.LowerCritical.Reading, t.LowerCaution.Reading, t.UpperCaution.Reading, t.UpperCritical.Reading, t.UpperFatal.Reading,
		}
		if s, ok := made(read.Name, kind.kind, kind.unit, read.Reading, limits.limits(), read.Status); ok {
			all = append(all, s)
		}
	}
	return all, nil
}

// parts reads fans or power supplies of a subsystem.
func (c *client) parts(ctx context.Context, path, collection string, kind api.SensorKind) ([]api.Sensor, error) {
	var subsystem map[string]any
	if there, err := c.optional(ctx, path, &subsystem); !there {
		return nil, err
	}
	at, _ := subsystem[collection].(map[string]any)
	where, _ := at["@odata.id"].(string)
	paths, err := c.list(ctx, where)
	if err != nil {
		return nil, err
	}
	var all []api.Sensor
	for _, path := range paths {
		var part struct {
			Name   string `json:"Name"`
			Status status `json:"Status"`
			Speed  struct {
				Percent *float64 `json:"Reading"`
				RPM     *float64 `json:"SpeedRPM"`
			} `json:"SpeedPercent"`
			Metrics link `json:"Metrics"`
		}
		if there, err := c.optional(ctx, path, &part); err != nil {
			return nil, err
		} else if !there {
			continue
		}
		value, unit := part.Speed.RPM, api.UnitRPM
		if value == nil {
			value, unit = part.Speed.Percent, api.UnitPercent
		}
		if kind == api.SensorPowerSupply {
			var metrics struct {
				Input struct {
					Reading *float64 `json:"Reading"`
				} `json:"InputPowerWatts"`
			}
			if _, err := c.optional(ctx, part.Metrics.Path, &metrics); err != nil {
				return nil, err
			}
			value, unit = metrics.Input.Reading, api.UnitWatts
		}
		if s, ok := made(part.Name, kind, unit, value, nil, part.Status); ok {
			all = append(all, s)
		}
	}
	return all, nil
}
