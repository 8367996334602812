// Package audit keeps a site's audit log: who changed what, when, from where and with what outcome, and who was refused.
//
// The log is files of JSON lines (https://jsonlines.org) that are only appended to. Each record is bound to the one before it by an HMAC with
// a key of the site secret, so that whoever changes, removes or inserts a record without that key is found out by Verify. Whoever can write the
// server's disk can still cut off the newest records: the head that is logged when a file begins tells how far the log had come. The oldest
// file is removed when there are too many; the record of that goes into the chain. The package must never change a record. Start with Log.
package audit

import (
	"bufio"
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Limits bound a log on the disk.
type Limits struct {
	// FileBytes is the size from which on a new file is begun, Files how many there are at most.
	FileBytes int64
	Files     int
}

// DefaultLimits are 512 MiB in all: about two million records.
var DefaultLimits = Limits{FileBytes: 16 << 20, Files: 32}

const (
	prefix, suffix = "audit-", ".jsonl"
	// lineBytes bounds a record as it is stored.
	lineBytes = 16 << 10
	// syncEvery bounds for how long records may be lost with the power.
	syncEvery = time.Second
)

// Log is an audit log that is open for appending. It may be used from many goroutines.
type Log struct {
	dir string
	// secretAt is the site secret of a time, from which the key of a record of that time is derived.
	secretAt func(time.Time) []byte
	limits   Limits
	now      func() time.Time
	log      *slog.Logger

	mu      sync.Mutex
	file    *os.File
	size    int64
	head    Head
	lost    int64
	unsaved *time.Timer
}

// Head is the newest record of a log.
type Head struct {
	Seq int64  `json:"seq"`
	MAC string `json:"mac"`
}

// Open opens the log in a directory, which is made if it is missing. A record that was not written to its end is removed, which is recorded. secretAt
// returns the site secret that was in use at a time.
func Open(dir string, secretAt func(time.Time) []byte, limits Limits, now func() time.Time, log *slog.Logger) (*Log, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the audit log: %w", err)
	}
	l := &Log{dir: dir, secretAt: secretAt, limits: limits, now: now, log: log}
	files, err := l.files()
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return l, l.begin()
	}
	torn, err := l.resume(files[len(files)-1])
	if err == nil && torn > 0 {
		err = l.Append(api.AuditRecord{Action: "remove an unfinished record", Detail: fmt.Sprintf("%d bytes", torn)})
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// files are the paths of the log's files, oldest first.
func (l *Log) files() ([]string, error) {
	names, err := filepath.Glob(filepath.Join(l.dir, prefix+"*"+suffix))
	if err != nil {
		return nil, fmt.Errorf("list the audit log: %w", err)
	}
	slices.Sort(names) // their numbers have the same length
	return names, nil
}

// begin begins a file whose first record will be the next.
func (l *Log) begin() error {
	path := filepath.Join(l.dir, fmt.Sprintf("%s%019d%s", prefix, l.head.Seq+1, suffix))
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("begin a file of the audit log: %w", err)
	}
	if l.file != nil {
		err = errors.Join(l.file.Sync(), l.file.Close())
	}
	l.file, l.size = file, 0
	l.log.Info("the audit log begins a file", "file", path, "seq", l.head.Seq, "mac", l.head.MAC)
	return err
}

// resume opens the newest file and finds the head. It returns how many bytes of an unfinished record it removed.
func (l *Log) resume(path string) (torn int64, err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return 0, fmt.Errorf("open the audit log: %w", err)
	}
	l.file = file
	first, err := seqOf(path)
	if err != nil {
		return 0, err
	}
	l.head.Seq = first - 1
	err = eachLine(file, func(line []byte, whole bool) error {
		if !whole {
			torn = int64(len(line))
			return nil
		}
		l.size += int64(len(line))
		var r api.AuditRecord
		if err := json.Unmarshal(line, &r); err != nil {
			return nil // Verify tells of it; the chain goes on from the last record that can be read
		}
		l.head = Head{r.Seq, r.MAC}
		return nil
	})
	if err == nil && torn > 0 {
		err = file.Truncate(l.size)
	}
	if err != nil {
		return 0, fmt.Errorf("read the audit log: %w", err)
	}
	if l.head.MAC == "" { // nothing is in it yet: the head is in the file before
		return torn, l.headBefore(path)
	}
	return torn, nil
}

// headBefore finds the head of a log whose newest file is empty.
func (l *Log) headBefore(newest string) error {
	files, err := l.files()
	if err != nil {
		return err
	}
	i := slices.Index(files, newest)
	if i <= 0 {
		return nil
	}
	return eachRecord(files[i-1], func(r *api.AuditRecord, _ []byte) error {
		l.head = Head{r.Seq, r.MAC}
		return nil
	})
}

// seqOf is the number of the first record of a file.
func seqOf(path string) (int64, error) {
	var seq int64
	name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), prefix), suffix)
	if _, err := fmt.Sscanf(name, "%019d", &seq); err != nil {
		return 0, fmt.Errorf("the audit log has a file that is none of its own: %s", path)
	}
	return seq, nil
}

// Append adds a record; Seq, At and MAC are the log's to set. It returns once the record is written; the disk has it a second later. What could not
// be written is counted, and the next record that can be says how many are missing.
func (l *Log) Append(r api.AuditRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.append(r); err != nil {
		l.lost++
		return err
	}
	l.lost = 0
	if l.size < l.limits.FileBytes {
		return nil
	}
	if err := l.begin(); err != nil {
		return err
	}
	return l.trim()
}

func (l *Log) append(r api.AuditRecord) error {
	r.Seq, r.At, r.Lost = l.head.Seq+1, l.now().UTC(), l.lost
	r.MAC = ""
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	if len(line) > lineBytes {
		return fmt.Errorf("write the audit log: a record of %d bytes is longer than the %d that are kept", len(line), lineBytes)
	}
	if l.file == nil {
		return fmt.Errorf("write the audit log: %w", os.ErrClosed)
	}
	if r.MAC, err = l.mac(l.head.MAC, r.At, line); err != nil {
		return err
	}
	if line, err = json.Marshal(r); err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	if n, err := l.file.Write(append(line, '\n')); err != nil {
		if n > 0 { // half a record must not become a part of the next
			err = errors.Join(err, l.file.Truncate(l.size))
		}
		return fmt.Errorf("write the audit log: %w", err)
	}
	l.size += int64(len(line)) + 1
	l.head = Head{r.Seq, r.MAC}
	if l.unsaved == nil {
		l.unsaved = time.AfterFunc(syncEvery, l.save)
	}
	return nil
}

// save brings to the disk what was written.
func (l *Log) save() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsaved = nil
	if l.file == nil {
		return
	}
	if err := l.file.Sync(); err != nil {
		l.log.Error("the newest records of the audit log may be lost with the power", "error", err)
	}
}

// mac binds a record to the one before it: HMAC-SHA256 (RFC 2104) of the MAC before and the record without its own.
func (l *Log) mac(before string, at time.Time, line []byte) (string, error) {
	key, err := hkdf.Key(sha256.New, l.secretAt(at), nil, "nearmetal audit log 1", 32)
	if err != nil {
		return "", fmt.Errorf("derive the key of the audit log: %w", err)
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(before))
	h.Write([]byte{'\n'})
	h.Write(line)
	return hex.EncodeToString(h.Sum(nil)), nil
}

// trim removes the oldest files that are too many. A record says first up to where: the chain begins there then.
func (l *Log) trim() error {
	files, err := l.files()
	for ; err == nil && len(files) > l.limits.Files; files = files[1:] {
		var last Head
		err = eachRecord(files[0], func(r *api.AuditRecord, _ []byte) error {
			last = Head{r.Seq, r.MAC}
			return nil
		})
		if err != nil {
			return err
		}
		err = l.append(api.AuditRecord{Action: removeOldest, Removed: last.Seq, RemovedMAC: last.MAC})
		if err == nil {
			err = os.Remove(files[0])
		}
	}
	return err
}

const removeOldest = "remove the oldest records"

// Close ends appending. Everything that was written is on the disk then.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	if l.unsaved != nil {
		l.unsaved.Stop()
		l.unsaved = nil
	}
	err := errors.Join(l.file.Sync(), l.file.Close())
	l.file = nil
	return err
}

// eachLine reads the lines of a file; the last one need not be whole.
func eachLine(file io.Reader, take func(line []byte, whole bool) error) error {
	reader := bufio.NewReaderSize(file, 64<<10)
	for {
		line, err := reader.ReadBytes('\n')
		if len(line) > 0 {
			if err := take(line, bytes.HasSuffix(line, []byte{'\n'})); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// eachRecord reads the records of a file, each with its line. A line that is no record has the record nil.
func eachRecord(path string, take func(r *api.AuditRecord, line []byte) error) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read the audit log: %w", err)
	}
	defer file.Close()
	return eachLine(file, func(line []byte, whole bool) error {
		if !whole {
			return nil // it is being written
		}
		var r api.AuditRecord
		if json.Unmarshal(line, &r) != nil {
			return take(nil, line)
		}
		return take(&r, line)
	})
}
