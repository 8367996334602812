package fake

import (
	"context"
	"io"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/serialconsole"
)

// The ports at which Host.Listen makes a member serve its console and its display.
const (
	consolePort = 0
	displayPort = -1
)

// Display connects to what Host.Listen made a member serve at port -1.
func (d *Driver) Display(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	return d.Dial(ctx, id, displayPort)
}

// Console connects to what Host.Listen made a member serve at port 0. Somebody who does not force it finds it in use.
func (d *Driver) Console(ctx context.Context, id string, r api.ConsoleRequest) (io.ReadWriteCloser, error) {
	if r.Write && !r.Force {
		return nil, &serialconsole.BusyError{By: "ann"}
	}
	return d.Dial(ctx, id, consolePort)
}
