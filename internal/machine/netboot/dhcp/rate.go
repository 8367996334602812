package dhcp

import "time"

// spacing lets each client have something stored now and then only. Leases are stored where all that the site decides is stored, each with a
// wait for the disk: one client that takes an address and releases it again and again must not keep that busy. Who boots needs it once. Its
// memory is bounded by those that had something stored of late, who are no more than there are addresses.
type spacing struct {
	last  map[string]time.Time
	swept time.Time
}

func newSpacing() *spacing { return &spacing{last: map[string]time.Time{}} }

// storeEvery is less than a client waits before it asks again (RFC 2131, section 4.1).
const storeEvery = 2 * time.Second

// take tells whether something of a client may be stored now.
func (s *spacing) take(mac string, now time.Time) bool {
	if last, ok := s.last[mac]; ok && now.Sub(last) < storeEvery {
		return false
	}
	// Not at each call: a storm of thousands would look through thousands each time.
	if len(s.last) >= maxQuiet && now.Sub(s.swept) >= storeEvery {
		s.swept = now
		for other, last := range s.last {
			if now.Sub(last) >= storeEvery {
				delete(s.last, other)
			}
		}
	}
	s.last[mac] = now
	return true
}
