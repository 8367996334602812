package ipmi

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi/rmcpplus"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

// Functions, commands and completion codes of sensors (appendix G, table 5-2).
const (
	sensorEvent         = 0x04
	getThresholds       = 0x27 // section 35.9
	getReading          = 0x2D // section 35.14
	storage             = 0x0A
	getRepositoryInfo   = 0x20 // section 33.9
	reserveRepository   = 0x22 // section 33.11
	getRecord           = 0x23 // section 33.12
	reservationCanceled = 0xC5
	lengthExceeded      = 0xC8
	tooManyBytes        = 0xCA
	notPresent          = 0xCB
)

// Bounds of what a BMC may have.
const (
	maxRecords  = 1024
	recordBytes = 5 + 255
	// repositoryAge is how long data records and thresholds are kept: somebody may change a threshold, and nothing tells.
	repositoryAge = time.Hour
)

var _ sensors.Reader = (*Switch)(nil)

// repository is a BMC's sensors as its data records describe them, with their thresholds.
type repository struct {
	// stamp are the times of the last addition and the last erasure.
	stamp   []byte
	readAt  time.Time
	records []*sensorRecord
	limits  []*api.SensorThresholds
	// names are of all the BMC's own sensors, by number.
	names map[byte]string
}

// Sensors implements sensors.Reader. The data records of the sensors are read at first, and again when they have changed. Where no
// sensor has the power, DCMI is asked.
func (s *Switch) Sensors(ctx context.Context) ([]api.Sensor, error) {
	var all []api.Sensor
	err := s.session(ctx, func(c *rmcpplus.Session) error {
		read, err := s.readAll(ctx, c)
		all, err = withPower(ctx, c, read, err)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// readAll reads the sensors that the BMC has records of.
func (s *Switch) readAll(ctx context.Context, c *rmcpplus.Session) ([]api.Sensor, error) {
	var all []api.Sensor
	repo, err := s.repository(ctx, c)
	if err != nil {
		return nil, err
	}
	if len(repo.records) == 0 {
		return nil, fmt.Errorf("the BMC has no records of sensors: %w", power.ErrCannot)
	}
	for i, r := range repo.records {
		reading, err := readSensor(ctx, c, r, repo.limits[i])
		if err != nil {
			return nil, err
		}
		all = append(all, reading)
	}
	return all, nil
}

// repository returns the BMC's sensors, as known or as read now.
func (s *Switch) repository(ctx context.Context, c *rmcpplus.Session) (*repository, error) {
	info, err := c.Command(ctx, storage, getRepositoryInfo)
	var failed *rmcpplus.Completion
	if errors.As(err, &failed) && failed.Code == invalidCommand {
		return nil, fmt.Errorf("the BMC has no records of sensors: %w", power.ErrCannot)
	}
	if err != nil {
		return nil, fmt.Errorf("look for records of sensors: %w", err)
	}
	if len(info) < 13 {
		return nil, fmt.Errorf("look for records of sensors: the BMC's answer has %d bytes instead of at least 13", len(info))
	}
	s.mu.Lock()
	known := s.known
	s.mu.Unlock()
	if known != nil && bytes.Equal(known.stamp, info[5:13]) && time.Since(known.readAt) < repositoryAge {
		return known, nil
	}
	repo := &repository{names: map[byte]string{}, stamp: bytes.Clone(info[5:13]), readAt: time.Now()}
	if err := repo.read(ctx, c); err != nil {
		return nil, err
	}
	for _, r := range repo.records {
		limits, err := readThresholds(ctx, c, r)
		if err != nil {
			return nil, err
		}
		repo.limits = append(repo.limits, limits)
	}
	s.mu.Lock()
	s.known = repo
	s.mu.Unlock()
	return repo, nil
}

// read reads all data records of sensors that are shown.
func (repo *repository) read(ctx context.Context, c *rmcpplus.Session) error {
	id := uint16(0)
	for range maxRecords {
		data, next, err := readRecord(ctx, c, id)
		var failed *rmcpplus.Completion
		if id == 0 && errors.As(err, &failed) && failed.Code == notPresent {
			return nil // it is empty
		}
		if err != nil {
			return fmt.Errorf("read sensor data record %04Xh: %w", id, err)
		}
		// A record that can't be read is of a sensor that nobody can name.
		if number, name := nameOf(data); name != "" {
			repo.names[number] = name
		}
		if r, err := parseRecord(data); err == nil {
			repo.records = append(repo.records, r)
		}
		if next == 0xFFFF || next == id {
			return nil
		}
		id = next
	}
	return nil
}

// readRecord reads one record in parts, as many bytes at once as the BMC gives, and returns the ID of the next one. A change of the repository
// between the parts voids their reservation, and the record is read again.
func readRecord(ctx context.Context, c *rmcpplus.Session, id uint16) (data []byte, next uint16, err error) {
	var failed *rmcpplus.Completion
	for range 3 {
		data, next, err = readReserved(ctx, c, id)
		if !errors.As(err, &failed) || failed.Code != reservationCanceled {
			return data, next, err
		}
	}
	return nil, 0, err
}

func readReserved(ctx context.Context, c *rmcpplus.Session, id uint16) ([]byte, uint16, error) {
	reservation, err := c.Command(ctx, storage, reserveRepository)
	var failed *rmcpplus.Completion
	switch {
	case errors.As(err, &failed) && failed.Code == invalidCommand:
		reservation = []byte{0, 0} // optional for a BMC that never changes its records
	case err != nil:
		return nil, 0, err
	case len(reservation) < 2:
		return nil, 0, errors.New("the BMC's reservation has fewer than 2 bytes")
	}
	data, next := make([]byte, 0, 64), uint16(0xFFFF)
	atOnce := 28
	for want := 5; len(data) < want; {
		n := min(atOnce, want-len(data))
		request := binary.LittleEndian.AppendUint16(reservation[:2:2], id)
		answer, err := c.Command(ctx, storage, getRecord, append(request, byte(len(data)), byte(n))...)
		if errors.As(err, &failed) && (failed.Code == tooManyBytes || failed.Code == lengthExceeded || failed.Code == 0xFF) && atOnce > 4 {
			atOnce /= 2
			continue
		}
		switch {
		case err != nil:
			return nil, 0, err
		case len(answer) < 3:
			return nil, 0, errors.New("the BMC's answer has no data")
		}
		next = binary.LittleEndian.Uint16(answer)
		data = append(data, answer[2:min(len(answer), 2+n)]...)
		if len(data) >= 5 {
			want = min(5+int(data[4]), recordBytes)
		}
	}
	return data, next, nil
}

// readThresholds reads the thresholds of a sensor, nil where it has none. That a BMC refuses them is no reason to show nothing.
func readThresholds(ctx context.Context, c *rmcpplus.Session, r *sensorRecord) (*api.SensorThresholds, error) {
	if !r.thresholds || r.owner != bmcAddress || r.lun != 0 {
		return nil, nil
	}
	answer, err := c.Command(ctx, sensorEvent, getThresholds, r.number)
	var failed *rmcpplus.Completion
	if errors.As(err, &failed) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the thresholds of %q: %w", r.name, err)
	}
	return r.limits(answer), nil
}

// readSensor reads one sensor. What its BMC refuses is unavailable.
func readSensor(ctx context.Context, c *rmcpplus.Session, r *sensorRecord, limits *api.SensorThresholds) (api.Sensor, error) {
	out := api.Sensor{Name: r.name, Kind: r.kind, Unit: r.unit, Thresholds: limits, State: api.SensorUnavailable}
	if r.owner != bmcAddress || r.lun != 0 {
		out.Message = "it belongs to another controller"
		return out, nil
	}
	answer, err := c.Command(ctx, sensorEvent, getReading, r.number)
	var failed *rmcpplus.Completion
	switch {
	case errors.As(err, &failed) && failed.Code == notPresent:
		out.Message = "it is not present"
	case errors.As(err, &failed):
		out.Message = failed.Error()
	case err != nil:
		return out, fmt.Errorf("read sensor %q: %w", r.name, err)
	default:
		r.take(&out, answer)
	}
	return out, nil
}

// Flags of the second byte of a reading (table 35-15).
const (
	scanningEnabled = 1 << 6
	unavailable     = 1 << 5
)

// take reads the answer to Get Sensor Reading (table 35-15).
func (r *sensorRecord) take(out *api.Sensor, answer []byte) {
	switch {
	case len(answer) < 2:
		out.Message = "the BMC's answer is too short"
		return
	case answer[1]&unavailable != 0:
		out.Message = "the BMC has no reading"
		return
	case answer[1]&scanningEnabled == 0:
		out.Message = "the BMC does not scan it"
		return
	}
	status := uint16(0)
	for i, b := range answer[2:min(len(answer), 4)] {
		status |= uint16(b) << (8 * i)
	}
	if !r.analog {
		out.State, out.Message = r.discrete(status & 0x7FFF)
		return
	}
	value, ok := r.value(answer[0])
	if !ok {
		out.Message = "its readings are not linear, which is not supported"
		return
	}
	out.Value, out.State = &value, sensors.Judge(value, out.Thresholds)
	if len(answer) > 2 {
		switch bits := answer[2]; {
		case bits&(lowerCritical|lowerFatal|upperCritical|upperFatal) != 0:
			out.State = api.SensorCritical
		case bits&(lowerWarning|upperWarning) != 0:
			out.State = sensors.Worse(out.State, api.SensorWarning)
		}
	}
}

// discrete reads the states of a sensor without a value: offsets of tables 42-2 and 42-3.
func (r *sensorRecord) discrete(bits uint16) (api.SensorState, string) {
	has := func(offset int) bool { return bits>>offset&1 != 0 }
	if bits == 0 && r.reading != readingSpecific {
		return api.SensorUnavailable, "the BMC reports no state"
	}
	switch r.reading {
	case readingRedundancy:
		switch {
		case has(1), has(5):
			return api.SensorCritical, "redundancy lost"
		case bits&(1<<2|1<<3|1<<4|1<<6|1<<7) != 0:
			return api.SensorWarning, "redundancy degraded"
		}
		return api.SensorOK, ""
	case readingSeverity:
		switch {
		case bits&(1<<2|1<<3|1<<5|1<<6) != 0:
			return api.SensorCritical, ""
		case bits&(1<<1|1<<4) != 0:
			return api.SensorWarning, ""
		}
		return api.SensorOK, ""
	}
	switch { // a power supply
	case has(1):
		return api.SensorCritical, "it has failed"
	case has(3), has(4):
		return api.SensorCritical, "its input is lost"
	case has(2):
		return api.SensorWarning, "it will fail soon"
	case has(5):
		return api.SensorWarning, "its input is out of range"
	case has(6):
		return api.SensorWarning, "it does not match the others"
	case !has(0):
		return api.SensorUnavailable, "it is not present"
	}
	return api.SensorOK, ""
}
