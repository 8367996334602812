package ipmi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Types of sensor data records (section 43).
const (
	recordFull    = 0x01 // section 43.1
	recordCompact = 0x02 // section 43.2
	recordEvents  = 0x03 // section 43.3
)

// nameAt is where records have their names, from 0: bytes 48, 32 and 17.
var nameAt = map[byte]int{recordFull: 47, recordCompact: 31, recordEvents: 16}

// nameOf reads number and name of one of the BMC's own sensors, of any kind; "" where the record is of no such.
func nameOf(data []byte) (number byte, name string) {
	if len(data) < 8 || nameAt[data[3]] == 0 || len(data) <= nameAt[data[3]] || data[5] != bmcAddress {
		return 0, ""
	}
	return data[7], idString(data[nameAt[data[3]]:])
}

// Event and reading types (table 42-1) and sensor types (table 42-3).
const (
	readingThreshold  = 0x01
	readingSeverity   = 0x07
	readingRedundancy = 0x0B
	readingSpecific   = 0x6F
	typeTemperature   = 0x01
	typeVoltage       = 0x02
	typeCurrent       = 0x03
	typeFan           = 0x04
	typePowerSupply   = 0x08
)

// Base units (section 43.17).
const (
	unitCelsius    = 1
	unitFahrenheit = 2
	unitKelvin     = 3
	unitVolts      = 4
	unitAmperes    = 5
	unitWatts      = 6
	unitRPM        = 18
)

// bmcAddress is the BMC's own address as owner of a sensor (section 5.1). Sensors of other controllers are behind a bridge.
const bmcAddress = 0x20

// sensorRecord is what is kept of a sensor's data record.
type sensorRecord struct {
	name                     string
	number, owner, lun       byte
	kind                     api.SensorKind
	unit                     api.SensorUnit
	reading                  byte // its event and reading type
	analog                   bool
	thresholds               bool // can be read
	linear                   func(float64) float64
	signed                   func(byte) float64
	m, b, bExp, rExp, offset float64
	scale                    float64 // of the base unit to unit
}

// errNotShown: the record is of no sensor that is shown.
var errNotShown = errors.New("not a sensor that is shown")

// parseRecord reads a sensor data record, its header of 5 bytes included. Numbers in comments are the bytes of tables 43-1 and 43-2, from 1.
func parseRecord(data []byte) (*sensorRecord, error) {
	if len(data) < 5 {
		return nil, errors.New("a sensor data record is shorter than its header")
	}
	kind := data[3]
	if kind != recordFull && kind != recordCompact {
		return nil, errNotShown
	}
	if len(data) <= nameAt[kind] {
		return nil, fmt.Errorf("sensor data record %04Xh has %d bytes, fewer than its type needs", binary.LittleEndian.Uint16(data), len(data))
	}
	r := &sensorRecord{
		owner: data[5], lun: data[6] & 3, number: data[7], reading: data[13], name: idString(data[nameAt[kind]:]), scale: 1,
		linear: func(x float64) float64 { return x },
	}
	units := data[20] // byte 21
	r.analog = kind == recordFull && r.reading == readingThreshold && units>>6 != 3
	if err := r.classify(data[12], units, data[21]); err != nil {
		return nil, err
	}
	if r.name == "" {
		r.name = fmt.Sprintf("sensor %02Xh", r.number)
	}
	if r.analog {
		access := data[11] >> 2 & 3 // byte 12: 01b and 10b are readable
		r.thresholds = access == 1 || access == 2
		return r, r.conversion(data)
	}
	return r, nil
}

// classify finds kind and unit of a sensor.
func (r *sensorRecord) classify(sensorType, units, base byte) error {
	switch {
	case r.analog && units&1 != 0: // a percentage
		r.unit = api.UnitPercent
	case r.analog:
		switch base {
		case unitCelsius:
			r.unit = api.UnitCelsius
		case unitFahrenheit:
			r.unit, r.scale, r.offset = api.UnitCelsius, 5.0/9, -32*5.0/9
		case unitKelvin:
			r.unit, r.offset = api.UnitCelsius, -273.15
		case unitVolts:
			r.unit = api.UnitVolts
		case unitAmperes:
			r.unit = api.UnitAmperes
		case unitWatts:
			r.unit = api.UnitWatts
		case unitRPM:
			r.unit = api.UnitRPM
		default:
			return errNotShown
		}
	}
	switch {
	case r.unit == api.UnitWatts:
		r.kind = api.SensorPower
	case sensorType == typeTemperature:
		r.kind = api.SensorTemperature
	case sensorType == typeVoltage:
		r.kind = api.SensorVoltage
	case sensorType == typeCurrent:
		r.kind = api.SensorCurrent
	case sensorType == typeFan:
		r.kind = api.SensorFan
	case sensorType == typePowerSupply:
		r.kind = api.SensorPowerSupply
	default:
		return errNotShown
	}
	if !r.analog && r.reading != readingSpecific && r.reading != readingRedundancy && r.reading != readingSeverity {
		return errNotShown
	}
	if !r.analog && r.reading == readingSpecific && r.kind != api.SensorPowerSupply {
		return errNotShown
	}
	return nil
}

// idString reads an ID string (section 43.15): its first byte gives encoding and length. Encodings other than 8-bit text are not read.
func idString(data []byte) string {
	kind, n := data[0]>>6, int(data[0]&0x1F)
	n = min(n, len(data)-1)
	if kind != 3 && kind != 0 {
		return ""
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, string(data[1:1+n])))
}

// conversion reads the factors of the conversion from raw readings (section 36.3): y = L[(M x + B 10^K1) 10^K2].
func (r *sensorRecord) conversion(data []byte) error {
	switch data[20] >> 6 {
	case 0:
		r.signed = func(raw byte) float64 { return float64(raw) }
	case 1: // one's complement
		r.signed = func(raw byte) float64 {
			if raw&0x80 != 0 {
				return -float64(^raw)
			}
			return float64(raw)
		}
	default:
		r.signed = func(raw byte) float64 { return float64(int8(raw)) }
	}
	functions := []func(float64) float64{
		nil, math.Log, math.Log10, math.Log2, math.Exp, func(x float64) float64 { return math.Pow(10, x) }, math.Exp2,
		func(x float64) float64 { return 1 / x }, func(x float64) float64 { return x * x }, func(x float64) float64 { return x * x * x }, math.Sqrt, math.Cbrt,
	}
	switch l := int(data[23] & 0x7F); {
	case l >= len(functions):
		r.linear = nil // its factors change with the reading (section 36.2)
	case l > 0:
		r.linear = functions[l]
	}
	r.m = signedBits(uint16(data[24])|uint16(data[25]&0xC0)<<2, 10)
	r.b = signedBits(uint16(data[26])|uint16(data[27]&0xC0)<<2, 10)
	r.rExp = signedBits(uint16(data[29]>>4), 4)
	r.bExp = signedBits(uint16(data[29]&0x0F), 4)
	return nil
}

// signedBits reads a number in two's complement of some bits.
func signedBits(value uint16, bits int) float64 {
	if value>>(bits-1) != 0 {
		return float64(int(value) - 1<<bits)
	}
	return float64(value)
}

// value converts a raw reading to the sensor's unit; false where that is no number.
func (r *sensorRecord) value(raw byte) (float64, bool) {
	if !r.analog || r.linear == nil {
		return 0, false
	}
	y := r.linear((r.m*r.signed(raw)+r.b*math.Pow(10, r.bExp))*math.Pow(10, r.rExp))*r.scale + r.offset
	// Far fewer digits are meant than a float has.
	y = math.Round(y*1000) / 1000
	return y, !math.IsNaN(y) && !math.IsInf(y, 0)
}

// Bits of the thresholds' comparison status and of the masks of thresholds (tables 35-15 and 43-1).
const (
	lowerWarning  = 1 << 0
	lowerCritical = 1 << 1
	lowerFatal    = 1 << 2
	upperWarning  = 1 << 3
	upperCritical = 1 << 4
	upperFatal    = 1 << 5
)

// limits reads the answer to Get Sensor Thresholds (table 35-9).
func (r *sensorRecord) limits(answer []byte) *api.SensorThresholds {
	if len(answer) < 7 {
		return nil
	}
	var t api.SensorThresholds
	for i, to := range []**float64{&t.LowerWarning, &t.LowerCritical, &t.LowerFatal, &t.UpperWarning, &t.UpperCritical, &t.UpperFatal} {
		if value, ok := r.value(answer[1+i]); ok && answer[0]>>i&1 != 0 {
			*to = &value
		}
	}
	if t == (api.SensorThresholds{}) {
		return nil
	}
	return &t
}
