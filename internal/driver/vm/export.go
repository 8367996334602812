package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// An exported member is a line that says what it is, which is the content of its fileSaved, and its state. maxHead bounds the line.
const maxHead = 1 << 20

// Export writes a saved member as a stream.
func (d *Driver) Export(ctx context.Context, id string, to io.Writer) error {
	if err := d.export(ctx, id, to); err != nil {
		return fmt.Errorf("exporting member %q: %w", id, err)
	}
	return nil
}

func (d *Driver) export(ctx context.Context, id string, to io.Writer) error {
	if !d.has(id) {
		return driver.ErrNotFound
	}
	host, done, err := d.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	s, err := d.savedHere(ctx, host, id)
	if err != nil {
		return err
	}
	s.StoodFor = max(0, time.Since(s.At))
	head, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if _, err := to.Write(append(head, '\n')); err != nil {
		return err
	}
	failpoint.Hit("vm.before-export")
	return s.feed(d.path(id, fileState), endable{ctx, to})
}

// endable is a writer that ends with its context.
type endable struct {
	ctx context.Context
	to  io.Writer
}

func (e endable) Write(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	return e.to.Write(p)
}

// Import makes a saved member of what Export wrote. What could not go on as m is refused before any of its state is read.
func (d *Driver) Import(ctx context.Context, m driver.Member, from string, state io.Reader) (time.Duration, error) {
	stood, err := d.importAs(ctx, m, from, state)
	if err != nil {
		return 0, fmt.Errorf("importing member %q: %w", from, err)
	}
	return stood, nil
}

func (d *Driver) importAs(ctx context.Context, m driver.Member, from string, state io.Reader) (stood time.Duration, err error) {
	if err := checkSuccessor(m, from); err != nil {
		return 0, err
	}
	if !validName(from) {
		return 0, fmt.Errorf("%q is not a valid member ID", from)
	}
	host, seen, done, err := d.meet(ctx, from)
	if err != nil {
		return 0, err
	}
	defer done()
	switch {
	case seen.state == driver.StateSaved:
		s, err := d.recallSaved(from)
		return max(0, time.Since(s.At)), err
	case seen.state != driver.StateAbsent && seen.state != driver.StatePrepared:
		return 0, fmt.Errorf("it is %s here", seen.state)
	}
	in := bufio.NewReader(state)
	s, err := readHead(in, from)
	if err != nil {
		return 0, err
	}
	a, err := d.fitting(ctx, host, m, s.Shape)
	if err != nil {
		return 0, err
	}
	if s.Bytes < 0 || s.Bytes > resource.StateBound(a.shape.MemoryBytes) {
		return 0, fmt.Errorf("its state has %d bytes, which is more than its memory", s.Bytes)
	}
	s.At = time.Now().UTC().Add(-s.StoodFor) // by this host's clock
	return s.StoodFor, d.keep(ctx, s, in)
}

func readHead(in *bufio.Reader, from string) (s saved, err error) {
	line, err := readLine(in)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(line, &s); err != nil {
		return s, fmt.Errorf("it is not an exported member: %w", err)
	}
	if s.ID != from || s.Member.Assignment.ID != from {
		return s, fmt.Errorf("the stream is of member %q", s.ID)
	}
	return s, nil
}

// readLine reads a line of up to maxHead bytes.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		piece, err := in.ReadSlice('\n')
		line = append(line, piece...)
		switch {
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("it ends within its first line: %w", err)
		case len(line) > maxHead:
			return nil, errors.New("it is not an exported member: its first line is too long")
		}
	}
}

// keep writes the files of a saved member.
func (d *Driver) keep(ctx context.Context, s saved, in io.Reader) error {
	if err := os.MkdirAll(d.dir(s.ID), 0o711); err != nil {
		return err
	}
	file, err := newStateFile(d.path(s.ID, fileState), s.Shape.MemoryBytes)
	if err != nil {
		return err
	}
	if err := s.check(in, endable{ctx, file}); err != nil {
		return errors.Join(err, file.drop())
	}
	if _, _, err := file.finish(); err != nil {
		return err
	}
	failpoint.Hit("vm.before-imported")
	s.Member.Files = nil
	return writeDurably(d.path(s.ID, fileSaved), s)
}
