package vm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// The files of a saved member, beside those of all.
const (
	fileState = "state" // what QEMU wrote
	// fileSaved says what fileState is. While it is there, the member is saved. What goes on from it takes it over by a rename, as fileOrigin, so
	// that a member goes on once.
	fileSaved  = "saved.json"
	fileOrigin = "origin.json"
	// fileHolds is there while a saved member still holds functions of adapters.
	fileHolds = "holds"
)

// saved is what is known of a saved member.
type saved struct {
	// ID is the member's, Member what it was started with, without its files.
	ID     string        `json:"id"`
	Member driver.Member `json:"member"`
	Shape  shape         `json:"shape"`
	// Bytes is the length of its state, SHA256 its digest.
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	// At is when it came to stand still, by this host's clock. StoodFor is how long ago that was when it was exported: hosts' clocks differ.
	At       time.Time     `json:"at"`
	StoodFor time.Duration `json:"stood_for,omitempty"`
}

// Save writes the machine's memory and devices to the member's directory and ends it.
func (d *Driver) Save(ctx context.Context, id string) error {
	if err := d.save(ctx, id); err != nil {
		return fmt.Errorf("saving member %q: %w", id, err)
	}
	return nil
}

func (d *Driver) save(ctx context.Context, id string) error {
	if !d.has(id) {
		return driver.ErrNotFound
	}
	host, seen, done, err := d.meet(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	switch {
	case seen.state == driver.StateSaved:
		return d.endSaved(ctx, host, id) // one that was killed had no time for it
	case !seen.alive():
		return fmt.Errorf("%w: it is %s", errNotRunning, seen.state)
	}
	r, err := d.recallMovable(ctx, host, id, seen)
	if err != nil {
		return err
	}
	if err := gpusStay(r.Member, verbSave); err != nil {
		return err
	}
	file, err := newStateFile(d.path(id, fileState), r.Member.Assignment.MemoryBytes())
	if err != nil {
		return err
	}
	s := saved{ID: id, Member: r.Member, Shape: *r.Shape, At: time.Now().UTC()}
	out, err := d.leave(ctx, host, id, seen, file, false, driver.MoveLimits{})
	if err != nil {
		return errors.Join(err, file.drop())
	}
	if s.Bytes, s.SHA256, err = file.finish(); err != nil {
		return errors.Join(err, out.cancel(ctx))
	}
	failpoint.Hit("vm.after-state")
	if err := d.noteHolds(&r.Member.Assignment); err != nil {
		return errors.Join(err, os.RemoveAll(d.path(id, fileState)), out.cancel(ctx))
	}
	if err := writeDurably(d.path(id, fileSaved), s); err != nil {
		return errors.Join(err, os.RemoveAll(d.path(id, fileSaved)), os.RemoveAll(d.path(id, fileState)), out.cancel(ctx))
	}
	failpoint.Hit("vm.after-saved")
	return d.endSaved(ctx, host, id)
}

// endSaved ends the machine of a member that is saved, and releases its functions.
func (d *Driver) endSaved(ctx context.Context, host *daemon, id string) error {
	if err := d.endMachine(ctx, host, id); err != nil {
		return err
	}
	return d.letGo(ctx, id)
}

// noteHolds notes that a member which is about to be saved holds functions. They are released once it is: a function that was released is never
// its former owner's again.
func (d *Driver) noteHolds(a *api.Assignment) error {
	for n := range a.Ports {
		if fabric.PortOf(a, n).OnFunction() {
			return writeDurably(d.path(a.ID, fileHolds), a.ID)
		}
	}
	return nil
}

// holds reports whether a saved member still holds functions.
func (d *Driver) holds(id string) bool { return !isMissing(d.path(id, fileHolds)) }

// letGo releases the functions of a saved member. They are free for others then.
func (d *Driver) letGo(ctx context.Context, id string) error {
	if !d.holds(id) {
		return nil
	}
	if err := d.cfg.Attacher.Detach(ctx, id); err != nil {
		return fmt.Errorf("releasing its functions: %w", err)
	}
	return errors.Join(os.Remove(d.path(id, fileHolds)), durablefile.SyncDir(d.dir(id)))
}

// recallMovable is recall of a member that can go on in another machine, which fits its shape.
func (d *Driver) recallMovable(ctx context.Context, host *daemon, id string, seen sight) (record, error) {
	r, err := d.recall(id)
	switch {
	case err != nil:
		return r, err
	case r.Shape == nil:
		return r, r.unfit()
	}
	return r, d.settle(ctx, host, seen, r)
}

var errNoShape = errors.New("an earlier version of nearmetal started it, which did not note what it would have to fit; start it again to change that")

// recallSaved reads what Save wrote; fs.ErrNotExist for a member that is not saved.
func (d *Driver) recallSaved(id string) (s saved, err error) {
	data, err := os.ReadFile(d.path(id, fileSaved))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("reading %s: %w", fileSaved, err)
	}
	return s, nil
}

// writeDurably writes a file that is there whole, also after a power cut, or not at all.
func writeDurably(path string, content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return durablefile.Write(path, data, 0o600)
}

// stateFile is a state that is being written, with its digest.
type stateFile struct {
	file  *os.File
	sum   hash.Hash
	bytes int64
}

// newStateFile makes the file of a state, with room for a machine of so much memory.
func newStateFile(path string, memory int64) (*stateFile, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	f := &stateFile{file: file, sum: sha256.New()}
	most := resource.StateBound(memory)
	// Reserved, so that the disk does not fill up amid it. Not all file systems can.
	if err := unix.Fallocate(int(file.Fd()), 0, 0, most); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: it takes up to %d MiB; make room below %s", err, most>>20, filepath.Dir(filepath.Dir(path)))
		}
		return nil, errors.Join(err, f.drop())
	}
	return f, nil
}

// Write adds a piece.
func (f *stateFile) Write(p []byte) (int, error) {
	n, err := f.file.Write(p)
	f.sum.Write(p[:n])
	f.bytes += int64(n)
	return n, err
}

// finish makes it durable. On error it is gone.
func (f *stateFile) finish() (length int64, digest string, err error) {
	if err := errors.Join(f.file.Truncate(f.bytes), f.file.Sync()); err != nil {
		return 0, "", errors.Join(err, f.drop())
	}
	return f.bytes, hex.EncodeToString(f.sum.Sum(nil)), f.file.Close()
}

func (f *stateFile) drop() error { return errors.Join(f.file.Close(), os.Remove(f.file.Name())) }

// Restore lets a saved member go on as m.
func (d *Driver) Restore(ctx context.Context, m driver.Member, from string) error {
	if err := d.restore(ctx, m, from); err != nil {
		return fmt.Errorf("restoring member %q as %q: %w", from, m.Assignment.ID, err)
	}
	return nil
}

func (d *Driver) restore(ctx context.Context, m driver.Member, from string) error {
	if err := checkSuccessor(m, from); err != nil {
		return err
	}
	host, done, err := d.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	seen, err := d.look(ctx, host, m.Assignment.ID)
	switch {
	case err != nil:
		return err
	case seen.alive(): // one that was killed may have had no time to let it go on
		if err := d.goOn(ctx, host, m.Assignment.ID); err != nil {
			return err
		}
		d.plugOrLater(ctx, host, m)
		return nil
	}
	s, err := d.savedHere(ctx, host, from)
	if err != nil {
		return err
	}
	a, err := d.fitting(ctx, host, m, s.Shape)
	if err != nil {
		return err
	}
	if err := d.endMachine(ctx, host, from); err != nil { // as in Save
		return err
	}
	err = a.arrive(ctx, func(to io.Writer) error {
		return s.feed(d.path(from, fileState), to)
	}, func() error {
		failpoint.Hit("vm.before-origin")
		if err := os.Rename(d.path(from, fileSaved), d.path(m.Assignment.ID, fileOrigin)); err != nil {
			return err
		}
		_ = errors.Join(durablefile.SyncDir(d.dir(from)), durablefile.SyncDir(d.dir(m.Assignment.ID))) // it goes on here either way; only a power cut would undo it
		return nil
	}, func() {})
	if err != nil {
		return err
	}
	// It is of no use any more, and may be large.
	return errors.Join(os.RemoveAll(d.path(from, fileState)), os.RemoveAll(d.path(from, fileMember)))
}

// savedHere returns a member that must be saved on this host.
func (d *Driver) savedHere(ctx context.Context, host *daemon, id string) (saved, error) {
	if !validName(id) {
		return saved{}, driver.ErrNotFound
	}
	s, err := d.recallSaved(id)
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	seen, err := d.look(ctx, host, id)
	if err == nil && seen.state == driver.StateAbsent {
		return s, driver.ErrNotFound
	}
	return s, errors.Join(err, fmt.Errorf("member %q is %s, not saved", id, seen.state))
}

// feed writes the state out of its file, unless that is not what was saved.
func (s saved) feed(path string, to io.Writer) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return s.check(file, to)
}

// check copies the state, and reports one that is not what was saved.
func (s saved) check(state io.Reader, to io.Writer) error {
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(to, sum), io.LimitReader(state, s.Bytes))
	switch {
	case err != nil:
		return err
	case n != s.Bytes:
		return fmt.Errorf("its state ends after %d bytes of %d", n, s.Bytes)
	case hex.EncodeToString(sum.Sum(nil)) != s.SHA256:
		return errors.New("its state is damaged: it has another SHA-256 than when it was saved")
	}
	return nil
}

// checkSuccessor refuses a member that can't be carried, or does not say whom it succeeds.
func checkSuccessor(m driver.Member, from string) error {
	if err := checkMember(m); err != nil {
		return err
	}
	if m.Assignment.From != from || from == "" || from == m.Assignment.ID {
		return fmt.Errorf("its assignment succeeds %q, not %q", m.Assignment.From, from)
	}
	return nil
}
