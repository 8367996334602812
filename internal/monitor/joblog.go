package monitor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// maxLogBytes bounds the stored output of one job; what comes after is dropped and a line at the end says so.
const maxLogBytes = 256 << 20

// jobLog is the stored output of one job. The file's size is the only truth about how much is stored.
type jobLog struct {
	path string

	mu      sync.Mutex
	changed chan struct{}
}

// log returns the log of a job. IDs come from the store, never from a path.
func (m *Monitor) log(jobID string) *jobLog {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.logs[jobID]
	if l == nil {
		l = &jobLog{path: filepath.Join(m.cfg.LogDir, filepath.Base(jobID)), changed: make(chan struct{})}
		m.logs[jobID] = l
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

// append stores a piece that begins at offset and returns how much is stored now. A piece that lies before the end is a
// repetition and its known part is skipped; one that leaves a gap says that output was lost on the way.
func (l *jobLog) append(offset int64, data []byte) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	have := l.size()
	end := offset + int64(len(data))
	if end <= have || have >= maxLogBytes {
		return max(end, have), nil
	}
	if offset >= maxLogBytes {
		return have, fmt.Errorf("a piece at %d bytes lies beyond what is kept of a job (%d bytes)", offset, maxLogBytes)
	}
	data = data[max(0, have-offset):]
	offset = max(offset, have)
	if end > maxLogBytes {
		data = append(data[:maxLogBytes-offset:maxLogBytes-offset], "\n[the output goes on; only its beginning is kept]\n"...)
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return have, err
	}
	if gap := offset - have; gap > 0 {
		// What is lost becomes a hole in the file, so that its size stays a position in the job's output.
		if lost := fmt.Sprintf("[%d bytes of output were lost]\n", gap); int64(len(lost)) <= gap {
			_, err = f.WriteAt([]byte(lost), have)
		}
	}
	if err == nil {
		_, err = f.WriteAt(data, offset)
	}
	if err != nil {
		return have, errors.Join(err, f.Truncate(have), f.Close())
	}
	if err := f.Close(); err != nil {
		return have, err
	}
	close(l.changed)
	l.changed = make(chan struct{})
	return end, nil
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
		return nil
	}
	return err
}
