package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/serialconsole"
)

// fileConsoleLog keeps the end of what a member's machine has printed on its serial console since it was made.
const fileConsoleLog = "console.log"

// console returns a member's console, which is read from the first call on: QEMU discards what a machine prints while nobody is connected.
func (d *Driver) console(id string) (*serialconsole.Console, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed
	}
	if c := d.consoles[id]; c != nil {
		return c, nil
	}
	c := serialconsole.Open(serialconsole.Config{
		Dial: socket(d.path(id, filepath.Join(dirRun, fileConsole))).dial, File: d.path(id, fileConsoleLog),
	})
	d.consoles[id] = c
	return c, nil
}

// closeConsole ends the reading of a member's console; what was printed is kept until Clean.
func (d *Driver) closeConsole(id string) {
	d.mu.Lock()
	c := d.consoles[id]
	delete(d.consoles, id)
	d.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// readConsole takes up the console of a member that runs: the agent may have been started after it.
func (d *Driver) readConsole(id string, s sight) {
	if s.alive() {
		_, _ = d.console(id)
	}
}

// printed is the end of what a member's machine has printed, on one line and fit for a terminal.
func (d *Driver) printed(id string) string {
	words := &lastWords{}
	_, _ = words.Write(serialconsole.Kept(d.path(id, fileConsoleLog)))
	return words.String()
}

// Console attaches to a member's serial console.
func (d *Driver) Console(ctx context.Context, id string, r api.ConsoleRequest) (io.ReadWriteCloser, error) {
	watcher, err := d.attachConsole(ctx, id, r)
	var busy *serialconsole.BusyError
	switch {
	case errors.As(err, &busy):
		return nil, busy
	case err != nil:
		return nil, fmt.Errorf("the console of member %q: %w", id, err)
	}
	return watcher, nil
}

func (d *Driver) attachConsole(ctx context.Context, id string, r api.ConsoleRequest) (*serialconsole.Watcher, error) {
	seen, err := d.lookAt(ctx, id)
	if err != nil {
		return nil, err
	}
	switch {
	case seen.state == driver.StateAbsent:
		return nil, driver.ErrNotFound
	case seen.state == driver.StateExited && !r.KeptOnly:
		return nil, errors.New("its machine is off")
	}
	c, err := d.console(id)
	if err != nil {
		return nil, err
	}
	return c.Attach(r)
}

var _ driver.ConsoleSharer = (*Driver)(nil)
