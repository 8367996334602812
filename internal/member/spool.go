package member

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// spool keeps a job's output until the server has stored it: an anonymous file (memfd_create(2)), which no path leads to and which counts
// as the member's memory. Acknowledged output is punched out of it.
//
// A full spool holds up its writer, and so the job, until some output is acknowledged. Two things end that: the server stores no more of the
// job, or it has acknowledged nothing for the whole patience, since a lost control plane stops no job. Output is then discarded and counted.
// In the second case a line in the output marks the place. Offsets count the output with such lines, so they have no gaps.
type spool struct {
	limit int64
	// grown is called after output was added, or much more than before was discarded; it must not block.
	grown func()
	now   func() time.Time

	mu    sync.Mutex
	file  *os.File
	start int64 // what lies before was acknowledged and is gone
	end   int64
	// moved is closed and replaced when a writer that waits has to look again.
	moved    chan struct{}
	patience time.Duration
	// impatient: the patience has run out; until there is room again nothing waits.
	impatient bool
	released  bool
	full      bool // the server stores no more
	sealed    bool

	discarded int64 // bytes in all
	reported  int64 // discarded when grown was last called for it
	missing   int64 // bytes discarded since the last line about it
	err       error // the first failure to keep output
}

const (
	// noteRoom is kept free for the line that marks missing output.
	noteRoom = 256
	// releasedRoom is added to the limit once the job has ended: more than the largest pipe that an ordinary user can make, 1 MiB
	// (pipe(7)), and the copier's buffer.
	releasedRoom = 2 << 20
	// hurriedPatience is the patience with the output of a job that is to end.
	hurriedPatience = time.Second
)

func newSpool(limit int64, patience time.Duration, grown func()) (*spool, error) {
	fd, err := unix.MemfdCreate("nearmetal-job", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("the job's output can't be kept: %w", err)
	}
	return &spool{
		limit: max(limit, 4*noteRoom), patience: patience, grown: grown, now: time.Now,
		file: os.NewFile(uintptr(fd), "nearmetal-job"), moved: make(chan struct{}),
	}, nil
}

// Write keeps p, and waits while there is no room for it. It never fails: a job must not notice.
func (s *spool) Write(p []byte) (int, error) {
	for rest := p; ; {
		s.mu.Lock()
		end := s.end
		for taken := -1; taken != 0; rest = rest[taken:] {
			taken = s.take(rest)
		}
		news := s.end > end
		if s.discarded > 0 && s.discarded >= 2*s.reported {
			s.reported, news = s.discarded, true
		}
		moved, patience := s.moved, s.patience
		s.mu.Unlock()
		if news {
			s.grown()
		}
		if len(rest) == 0 {
			return len(p), nil
		}
		s.await(moved, patience)
	}
}

// take keeps or discards as much of p as can be now, and returns how much that is; s.mu is held.
func (s *spool) take(p []byte) int {
	limit := s.limit - noteRoom
	if s.released {
		limit += releasedRoom
	}
	room := limit - (s.end - s.start)
	switch {
	case s.full:
		s.discarded += int64(len(p))
		return len(p)
	case room > 0:
		s.impatient = false
		if s.missing > 0 {
			s.noteMissing()
		}
		p = p[:min(int64(len(p)), room)]
		s.miss(int64(len(p)) - s.append(p))
		return len(p)
	case s.impatient || s.released:
		s.miss(int64(len(p)))
		return len(p)
	}
	return 0
}

// await waits until something has moved; when nothing does for the patience, the spool becomes impatient. Time for which the member was
// frozen does not count: an acknowledgement may have been on its way.
func (s *spool) await(moved <-chan struct{}, patience time.Duration) {
	watch := stopwatch{last: s.now()}
	for watch.used < patience {
		timer := time.NewTimer(min(lookEvery, patience-watch.used))
		select {
		case <-moved:
			timer.Stop()
			return
		case <-timer.C:
		}
		if watch.look(s.now()); watch.frozen {
			watch = stopwatch{last: watch.last}
		}
	}
	s.mu.Lock()
	s.impatient = true
	s.mu.Unlock()
}

// wake has a writer that waits look again; s.mu is held.
func (s *spool) wake() {
	close(s.moved)
	s.moved = make(chan struct{})
}

// append writes at the end and returns how much was written; s.mu is held.
func (s *spool) append(p []byte) int64 {
	n, err := s.file.WriteAt(p, s.end)
	s.end += int64(n)
	if err != nil && s.err == nil {
		s.err = err
	}
	return int64(n)
}

func (s *spool) miss(n int64) {
	s.missing += n
	s.discarded += n
}

func (s *spool) noteMissing() {
	why := "the control plane did not fetch it in time"
	if s.err != nil {
		why = "the output could not be stored: " + s.err.Error()
	}
	s.append(fmt.Appendf(nil, "\n[nearmetal: %d bytes of output are missing here, %s]\n", s.missing, why))
	s.missing, s.err = 0, nil
}

// hurry bounds the wait for room: the job is to end, and may want to print something before it does.
func (s *spool) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.patience = min(s.patience, hurriedPatience)
	s.wake()
}

// release ends all waiting: the job has ended, and what is left of its output fits or is discarded.
func (s *spool) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = true
	s.wake()
}

// seal ends the output.
func (s *spool) seal() {
	s.mu.Lock()
	if s.missing > 0 && !s.full {
		s.noteMissing()
	}
	s.sealed = true
	s.mu.Unlock()
	s.grown()
}

// counts returns how much output there is, acknowledged output included, and how much was discarded. Both together are what the job has
// printed, besides the lines about missing output.
func (s *spool) counts() (size, discarded int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end, s.discarded
}

// read returns output from offset on, at most limit bytes, and the offset where it really begins: later, when the output before is gone.
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

// ack drops output before offset.
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
	s.wake()
}

// discard drops output before offset, which is stored, and discards all that follows, now and later.
func (s *spool) discard(offset int64) {
	s.mu.Lock()
	if s.full {
		s.mu.Unlock()
		return
	}
	s.full = true
	offset = min(max(offset, s.start), s.end)
	s.discarded += s.end - offset
	s.end, s.missing = offset, 0
	s.wake()
	s.mu.Unlock()
	s.ack(offset)
	s.release()
	s.grown()
}
