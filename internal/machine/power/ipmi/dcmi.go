package ipmi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi/rmcpplus"
)

// Function, command and group of a reading of power (Data Center Manageability Interface 1.5, section 6.6.1, "Get Power Reading"; the function is
// IPMI's group extension, table 5-1).
const (
	groupExtension   = 0x2C
	getPowerReading  = 0x02
	dcmiGroup        = 0xDC
	systemPower      = 0x01 // mode: statistics of the whole system's power
	readingIsActive  = 1 << 6
	powerReadingSize = 18
)

// dcmiName is how the reading is shown among the sensors.
const dcmiName = "DCMI power"

// readPower reads the whole system's power by DCMI; false: the BMC has no such command.
func readPower(ctx context.Context, c *rmcpplus.Session) (s api.Sensor, there bool, err error) {
	s = api.Sensor{Name: dcmiName, Kind: api.SensorPower, Unit: api.UnitWatts, State: api.SensorUnavailable}
	answer, err := c.Command(ctx, groupExtension, getPowerReading, dcmiGroup, systemPower, 0, 0)
	var failed *rmcpplus.Completion
	if errors.As(err, &failed) {
		return s, false, nil // as of BMCs without it: unknown command, or out of range
	}
	if err != nil {
		return s, false, fmt.Errorf("read the power by DCMI: %w", err)
	}
	watts, problem := powerOf(answer)
	if problem != "" {
		s.Message = problem
		return s, true, nil
	}
	s.State, s.Value = api.SensorOK, &watts
	return s, true, nil
}

// powerOf is the power in an answer, or why there is none: group, then the present, least, most and mean power as two bytes each, four bytes of time,
// four of the period, and one that says whether the power is being read.
func powerOf(answer []byte) (watts float64, problem string) {
	switch {
	case len(answer) < powerReadingSize || answer[0] != dcmiGroup:
		return 0, fmt.Sprintf("the BMC's answer of %d bytes is no reading of power", len(answer))
	case answer[powerReadingSize-1]&readingIsActive == 0:
		return 0, "the BMC does not read the power now"
	default:
		return float64(binary.LittleEndian.Uint16(answer[1:])), ""
	}
}

// withPower adds the reading by DCMI to sensors that have none of power. A BMC may have that and no records of sensors.
func withPower(ctx context.Context, c *rmcpplus.Session, all []api.Sensor, sensors error) ([]api.Sensor, error) {
	if sensors != nil && !errors.Is(sensors, power.ErrCannot) {
		return nil, sensors
	}
	for _, s := range all {
		if s.Kind == api.SensorPower && s.Value != nil {
			return all, nil
		}
	}
	s, there, err := readPower(ctx, c)
	if err != nil {
		return nil, err
	}
	if !there {
		return all, sensors
	}
	return append(all, s), nil
}
