package monitor

// verdict is what becomes of output that a member sends.
type verdict int

const (
	// store: it is stored.
	store verdict = iota
	// discard: as much of the run is stored as ever will be. The member throws the rest away and counts it.
	discard
	// wait: there is no room at present. The member keeps it, and the job waits while its member holds too much.
	wait
)

// DefaultJobLogBytes is how much is stored of one run of a job unless the site says otherwise.
const DefaultJobLogBytes = 256 << 20

// LogLimits bound the stored output, in bytes.
type LogLimits struct {
	// JobBytes bounds one run of a job; 0: DefaultJobLogBytes.
	JobBytes int64
}

// logRoom decides how much output is stored.
type logRoom struct {
	limits LogLimits
}

// judge decides about more bytes of output that follow the have bytes stored of a run: how many of them may be stored now, and what
// becomes of the rest. No other place decides that.
func (r *logRoom) judge(_ string, have, more int64) (room int64, rest verdict) {
	room = max(0, min(more, r.limits.JobBytes-have))
	if room < more {
		return room, discard
	}
	return room, store
}
