package sensors

import "github.com/nearmetal/nearmetal/api"

// Power returns what a machine draws by the sensors of its BMC, in watts, or the reason why that is not known. A sensor of the whole machine's power
// counts alone: of several the largest, since the others are of parts. Without one, the inputs of its power supplies are added up, if all of them
// are known.
func Power(all []api.Sensor) (watts float64, reason string) {
	found := false
	for _, s := range all {
		if s.Kind == api.SensorPower && s.Unit == api.UnitWatts && s.Value != nil && *s.Value >= 0 {
			watts, found = max(watts, *s.Value), true
		}
	}
	if found {
		return watts, ""
	}
	for _, s := range all {
		if s.Kind != api.SensorPowerSupply {
			continue
		}
		if s.Value == nil || s.Unit != api.UnitWatts {
			return 0, "the BMC does not say what power supply " + s.Name + " draws"
		}
		watts, found = watts+*s.Value, true
	}
	if !found {
		return 0, "the BMC has no sensor of power"
	}
	return watts, ""
}
