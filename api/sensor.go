package api

import "time"

// SensorKind is the kind of a sensor of a machine.
type SensorKind string

// The kinds of sensors.
const (
	SensorTemperature SensorKind = "temperature"
	SensorFan         SensorKind = "fan"
	SensorPowerSupply SensorKind = "power-supply"
	SensorPower       SensorKind = "power"
	SensorVoltage     SensorKind = "voltage"
	SensorCurrent     SensorKind = "current"
)

// SensorUnit is the unit of a sensor's value.
type SensorUnit string

// The units of sensors.
const (
	UnitCelsius SensorUnit = "celsius"
	UnitRPM     SensorUnit = "rpm"
	UnitPercent SensorUnit = "percent"
	UnitWatts   SensorUnit = "watts"
	UnitVolts   SensorUnit = "volts"
	UnitAmperes SensorUnit = "amperes"
)

// SensorState is what a reading means.
type SensorState string

// The states of sensors, the best first.
const (
	SensorOK          SensorState = "ok"
	SensorUnavailable SensorState = "unavailable" // nothing is known: it is no reading of zero
	SensorWarning     SensorState = "warning"
	SensorCritical    SensorState = "critical"
)

// Sensor is one reading of a machine's BMC.
type Sensor struct {
	Name  string      `json:"name"`
	Kind  SensorKind  `json:"kind"`
	State SensorState `json:"state"`
	// Value is in Unit; nil: it is not known, or the sensor has a state only.
	Value *float64   `json:"value,omitempty"`
	Unit  SensorUnit `json:"unit,omitempty"`
	// Thresholds are those that the BMC reports; nil: it reports none.
	Thresholds *SensorThresholds `json:"thresholds,omitempty"`
	// Message is why there is no value, or what is wrong.
	Message string `json:"message,omitempty"`
}

// SensorThresholds are the values at which a sensor's state changes, in the sensor's unit. Nil ones are not set.
type SensorThresholds struct {
	LowerFatal    *float64 `json:"lower_fatal,omitempty"`
	LowerCritical *float64 `json:"lower_critical,omitempty"`
	LowerWarning  *float64 `json:"lower_warning,omitempty"`
	UpperWarning  *float64 `json:"upper_warning,omitempty"`
	UpperCritical *float64 `json:"upper_critical,omitempty"`
	UpperFatal    *float64 `json:"upper_fatal,omitempty"`
}

// MachineSensors are the sensors of a machine as its BMC reported them last. Servers keep them in memory.
type MachineSensors struct {
	// State is the worst of Sensors; unavailable while the BMC can't be read.
	State SensorState `json:"state"`
	// Message is why the BMC can't be read, or which sensors are not ok.
	Message string `json:"message,omitempty"`
	// ReadAt is the time of the last reading that succeeded; zero: none has.
	ReadAt  time.Time `json:"read_at,omitzero"`
	Sensors []Sensor  `json:"sensors"`
}

// BMCLogMark is how far the event log of a machine's BMC was read; stored. The zero mark is that of a log that was never read.
type BMCLogMark struct {
	// Log is the log: "sel" for IPMI, its path for Redfish.
	Log string `json:"log,omitempty"`
	// IDs are of the newest entry, and of those that have its time where the log is not in order. Empty: the log had no entry.
	IDs []string `json:"ids,omitempty"`
	// At is the newest entry's time by the BMC's clock.
	At time.Time `json:"at,omitzero"`
	// Erased is when the log was erased last, as the BMC gives it.
	Erased int64 `json:"erased,omitempty"`
}

// BMCLogRecord is the mark of a machine; stored apart from its record.
type BMCLogRecord struct {
	UID  string     `json:"uid"`
	Mark BMCLogMark `json:"mark"`
}

// ReasonBMCLog is the reason of an event that repeats an entry of a BMC's event log.
const ReasonBMCLog = "BMCLog"
