package monitor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// jobLog is the stored output of one run. The file's size is the only truth about how much is stored, and the file holds exactly what the
// member sent.
type jobLog struct {
	run, path string
	room      *logRoom

	mu      sync.Mutex
	changed chan struct{}
}

// log returns the log of a run. IDs come from the store, never from a path.
func (m *Monitor) log(runID string) *jobLog {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.logs[runID]
	if l == nil {
		l = &jobLog{run: runID, path: filepath.Join(m.cfg.LogDir, filepath.Base(runID)), room: m.room, changed: make(chan struct{})}
		m.logs[runID] = l
	}
	return l
}

func (l *jobLog) size() int64 {
	info, err := os.Stat(l.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// ack is the acknowledgement of all that is stored.
func (l *jobLog) ack() agentstream.LogAck {
	ack, _ := l.look()
	return ack
}

// look returns the acknowledgement of all that is stored, and whether more needs not wait.
func (l *jobLog) look() (ack agentstream.LogAck, room bool) {
	have := l.size()
	_, rest := l.room.judge(l.run, have, 1)
	return agentstream.LogAck{JobID: l.run, Offset: have, Discard: rest == discard}, rest != wait
}

// append stores a piece that begins at offset. It returns the acknowledgement, and what becomes of the part that is not stored. The part of a
// piece that is stored already is skipped; a gap before a piece is output that was lost on the way. Whatever fails is tried again.
func (l *jobLog) append(offset int64, data []byte) (agentstream.LogAck, verdict, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	have := l.size()
	data = data[min(max(0, have-offset), int64(len(data))):]
	gap := max(0, offset-have)
	room, rest := l.room.judge(l.run, have, gap+int64(len(data)))
	var err error
	if room > gap {
		if err = l.write(have, gap, data[:room-gap]); err != nil {
			rest = wait
		} else {
			have += room
			l.room.settle(l.run, have)
			close(l.changed)
			l.changed = make(chan struct{})
		}
	}
	return agentstream.LogAck{JobID: l.run, Offset: have, Discard: rest == discard}, rest, err
}

// write stores data behind the have bytes that are stored and a gap, all of it or nothing.
func (l *jobLog) write(have, gap int64, data []byte) error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if gap > 0 {
		// What is lost becomes a hole in the file, so that its size stays a position in the job's output.
		if lost := fmt.Sprintf("[%d bytes of output were lost]\n", gap); int64(len(lost)) <= gap {
			_, err = f.WriteAt([]byte(lost), have)
		}
	}
	if err == nil {
		_, err = f.WriteAt(data, have+gap)
	}
	if err != nil {
		return errors.Join(err, f.Truncate(have), f.Close())
	}
	return f.Close()
}

// ReadLog copies stored output of a job, from offset on, into p; 0 and no error when there is none yet.
func (m *Monitor) ReadLog(jobID string, p []byte, offset int64) (int, error) {
	f, err := os.Open(m.log(jobID).path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the output of job %q: %w", jobID, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("read the output of job %q: %w", jobID, err)
	}
	if offset >= info.Size() { // pread(2) refuses an offset so large that the end of the read overflows
		return 0, nil
	}
	n, err := f.ReadAt(p, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return n, fmt.Errorf("read the output of job %q: %w", jobID, err)
	}
	return n, nil
}

// LogChanged returns a channel that is closed when more output of the job is stored.
func (m *Monitor) LogChanged(jobID string) <-chan struct{} {
	l := m.log(jobID)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// LogBytes is how much output of a job is stored.
func (m *Monitor) LogBytes(jobID string) int64 { return m.log(jobID).size() }

// DropLog removes the stored output of a job.
func (m *Monitor) DropLog(jobID string) error {
	err := os.Remove(m.log(jobID).path)
	m.mu.Lock()
	delete(m.logs, jobID)
	m.mu.Unlock()
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, m.room.forget(jobID))
}

// LogRemoved reports whether the stored output of a run was removed to make room for that of others.
func (m *Monitor) LogRemoved(runID string) bool { return m.room.wasRemoved(runID) }
