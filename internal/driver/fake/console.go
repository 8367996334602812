package fake

import (
	"context"
	"io"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/serialconsole"
)

// consolePort is where Host.Listen makes a member serve its console.
const consolePort = 0

// Console connects to what Host.Listen made a member serve at port 0. Somebody who does not force it finds it in use.
func (d *Driver) Console(ctx context.Context, id string, r api.ConsoleRequest) (io.ReadWriteCloser, error) {
	if r.Write && !r.Force {
		return nil, &serialconsole.BusyError{By: "ann"}
	}
	return d.Dial(ctx, id, consolePort)
}
