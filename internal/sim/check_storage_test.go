package sim

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// storageUnit is what sizes of volumes are multiples of here, so that sums over time fit.
const storageUnit = 1 << 29

// stored adds up what a volume holds, commit by commit, from its records and nothing else: the truth that usage records are compared with. Sums are units
// times nanoseconds.
type stored struct {
	at              time.Time
	units           int64
	total, recorded int64
}

func (m *mirror) storedBy(uid string) *stored {
	if m.storage[uid] == nil {
		m.storage[uid] = &stored{}
	}
	return m.storage[uid]
}

// until is the total at a time.
func (s *stored) until(at time.Time) int64 {
	if s.at.IsZero() {
		return 0
	}
	return s.total + s.units*int64(at.Sub(s.at))
}

// putStorage takes down what a volume holds from a commit on.
func (m *mirror) putStorage(uid string, op store.Op) {
	s := m.storedBy(uid)
	s.total, s.at, s.units = s.until(m.at), m.at, 0
	if !op.Delete {
		s.units = m.unitsOf(decodeOp[api.VolumeRecord](m.w, op).SizeBytes)
	}
	m.storageTouched = append(m.storageTouched, uid)
}

func (m *mirror) unitsOf(bytes int64) int64 {
	if bytes%storageUnit != 0 {
		m.w.fail("usage", "%d bytes are no multiple of %d", bytes, storageUnit)
	}
	return bytes / storageUnit
}

// storageWritten adds a record of a volume to what is compared.
func (m *mirror) storageWritten(r *api.UsageRecord) {
	for _, span := range r.Spans {
		if span.Kind != api.SpanStorage || !span.From.Before(span.To) {
			m.w.fail("usage", "the record of volume %s has the span %+v", r.UID, span)
		}
		m.storedBy(r.UID).recorded += m.unitsOf(span.StorageBytes) * int64(span.To.Sub(span.From))
	}
}

// checkStorage compares, after a whole commit: the records of what has ended and what has not come to the whole.
func (m *mirror) checkStorage() {
	for _, uid := range m.storageTouched {
		s, open := m.storedBy(uid), int64(0)
		if rec := m.volumes[uid]; rec != nil {
			open = m.unitsOf(rec.SizeBytes) * int64(m.at.Sub(rec.HeldSince))
		}
		if got := s.recorded + open; got != s.total {
			m.w.fail("usage", "volume %s has held %d units of storage times nanoseconds, its records and what it holds come to %d (records %d)", uid, s.total, got, s.recorded)
		}
	}
	m.storageTouched = nil
}

// storageUntil is what all volumes ever held, in byte-seconds.
func (m *mirror) storageUntil(now time.Time) float64 {
	sum := 0.0
	for _, s := range m.storage {
		sum += float64(s.until(now)) / float64(time.Second) * storageUnit
	}
	return sum
}

// heldStorage is what volumes hold now, as a report of usage is given it.
func (m *mirror) heldStorage() []usage.Held {
	var all []usage.Held
	for _, rec := range m.volumes {
		all = append(all, usage.Held{Volume: &api.VolumeIntent{}, Record: rec})
	}
	return all
}
