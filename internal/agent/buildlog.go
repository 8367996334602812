package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/nearmetal/nearmetal/internal/member"
)

// What is sent of a build's output at once, how much of it may be on its way, and the most that is kept of it.
const (
	logPiece   = 32 << 10
	logWindow  = 512 << 10
	mostOutput = 64 << 20
)

// buildLog is the output of a build: a file that grows, and how much of it the server has.
type buildLog struct {
	mu     sync.Mutex
	file   *os.File
	length int64
	// stream is the number of the stream that asked for output, 0 for none yet; sent and stored are offsets there.
	stream, sent, stored int64
	changed              chan struct{}
}

func openBuildLog(path string) (*buildLog, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	length, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &buildLog{file: f, length: length, changed: make(chan struct{}, 1)}, nil
}

// Write appends output. What can't be kept, for a full disk or beyond the most that is kept, is left out: it must not end a build.
func (l *buildLog) Write(data []byte) (int, error) {
	l.mu.Lock()
	keep := data[:max(0, min(int64(len(data)), mostOutput-l.length))]
	n, _ := l.file.WriteAt(keep, l.length)
	l.length += int64(n)
	l.mu.Unlock()
	l.poke()
	return len(data), nil
}

func (l *buildLog) poke() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *buildLog) size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.length
}

// ack notes how much the server has stored; the first word on a stream says where to go on.
func (l *buildLog) ack(offset, stream int64, first bool) {
	l.mu.Lock()
	if first {
		l.stream, l.sent = stream, offset
	}
	if l.stream == stream {
		l.stored = offset
		l.sent = max(l.sent, offset)
	}
	l.mu.Unlock()
	l.poke()
}

// next is the piece to send now; nil when there is none, or too much is on its way.
func (l *buildLog) next() *member.Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stream == 0 || l.sent >= l.length || l.sent-l.stored >= logWindow {
		return nil
	}
	data := make([]byte, min(logPiece, l.length-l.sent))
	n, err := l.file.ReadAt(data, l.sent)
	if n == 0 && err != nil {
		return nil
	}
	piece := &member.Log{Offset: l.sent, Data: data[:n], Request: l.stream}
	l.sent += int64(n)
	return piece
}

func (l *buildLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.file.Close()
	l.stream = 0
}

// pumpBuild sends a build's output as it grows and is asked for, until the build is forgotten.
func (a *Agent) pumpBuild(ctx context.Context, run string, b *buildState) {
	ctx, cancel := context.WithCancel(ctx)
	b.finished = cancel
	log := b.log
	go func() {
		for {
			for piece := log.next(); piece != nil; piece = log.next() {
				piece.JobID = run
				a.outbox.sendLog(*piece)
			}
			select {
			case <-ctx.Done():
				return
			case <-log.changed:
				a.post(ctx, func() {}) // its length is told
			}
		}
	}()
}
