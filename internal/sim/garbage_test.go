package sim

import "time"

// checkGarbage checks that nothing of what never became true outlives the leader that wrote it, once the next one leads.
func (w *world) checkGarbage(term int64) {
	w.after(time.Second, func() {
		s := w.store.leader()
		if s == nil || w.store.leadingTerm() != term {
			return
		}
		if s.busyUntil().After(w.store.leaderSince()) {
			return // the store may not have taken it: what is left goes with the next look for it, within the hour
		}
		w.read(func(m *mirror) {
			for _, key := range m.garbage() {
				if m.written[key] < term {
					w.fail("garbage", "chunk %s is named by no record, and the leader of term %d leaves it where it is", key, term)
				}
			}
		})
	})
}

// leadingTerm is that of the present leader.
func (s *witness) leadingTerm() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.term
}
