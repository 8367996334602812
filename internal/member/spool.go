package member

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// spool keeps a job's output until the node agent has stored it: an anonymous file (memfd_create(2)), which no path leads to
// and which counts as the member's memory. What was acknowledged is punched out of it.
//
// When the limit is reached, new output is thrown away and a line in the output says how much, so a job neither waits for
// nor fails with the control plane. Offsets count the output with such lines, so they have no gaps.
type spool struct {
	limit int64
	// grown is called after output was added; it must not block.
	grown func()

	mu      sync.Mutex
	file    *os.File
	start   int64 // what lies before was acknowledged and is gone
	end     int64
	dropped int64 // bytes thrown away since the last line that told so
	sealed  bool
	err     error // the first failure to keep output
}

// noteRoom is kept free for the line that tells what was thrown away.
const noteRoom = 256

func newSpool(limit int64, grown func()) (*spool, error) {
	fd, err := unix.MemfdCreate("nearmetal-job", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("no place for the job's output: %w", err)
	}
	return &spool{limit: max(limit, 4*noteRoom), grown: grown, file: os.NewFile(uintptr(fd), "nearmetal-job")}, nil
}

// Write keeps p, or as much of it as there is room for. It never fails: a job must not notice.
func (s *spool) Write(p []byte) (int, error) {
	s.mu.Lock()
	if room := s.limit - noteRoom - (s.end - s.start); s.dropped > 0 && room >= int64(len(p)) {
		s.noteDropped()
	}
	if s.dropped == 0 {
		room := max(s.limit-noteRoom-(s.end-s.start), 0)
		s.dropped = int64(len(p)) - s.append(p[:min(int64(len(p)), room)])
	} else {
		s.dropped += int64(len(p))
	}
	s.mu.Unlock()
	s.grown()
	return len(p), nil
}

// append writes at the end and returns how much was written.
func (s *spool) append(p []byte) int64 {
	n, err := s.file.WriteAt(p, s.end)
	s.end += int64(n)
	if err != nil && s.err == nil {
		s.err = err
	}
	return int64(n)
}

func (s *spool) noteDropped() {
	why := "nobody fetched it in time"
	if s.err != nil {
		why = "it could not be kept: " + s.err.Error()
	}
	s.append(fmt.Appendf(nil, "\n[nearmetal: %d bytes of output are missing here, %s]\n", s.dropped, why))
	s.dropped, s.err = 0, nil
}

// seal ends the output.
func (s *spool) seal() {
	s.mu.Lock()
	if s.dropped > 0 {
		s.noteDropped()
	}
	s.sealed = true
	s.mu.Unlock()
	s.grown()
}

// size is how much output there is, what was dropped after acknowledgement included.
func (s *spool) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// read returns output from offset on, at most limit bytes, and the offset where it really begins: later, when what was asked
// for is gone.
func (s *spool) read(offset, limit int64) ([]byte, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	offset = max(offset, s.start)
	if offset >= s.end || limit <= 0 {
		return nil, offset
	}
	data := make([]byte, min(limit, s.end-offset))
	n, err := s.file.ReadAt(data, offset)
	if err != nil && err != io.EOF {
		return nil, offset
	}
	return data[:n], offset
}

// ack drops what lies before offset.
func (s *spool) ack(offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	offset = min(offset, s.end)
	if offset <= s.start {
		return
	}
	const page = 4096
	if from, to := s.start/page*page, offset/page*page; to > from {
		// Failing costs memory, not output.
		_ = unix.Fallocate(int(s.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
	}
	s.start = offset
	if s.sealed && s.start == s.end {
		_ = s.file.Close()
	}
}
