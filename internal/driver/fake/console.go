package fake

import (
	"context"
	"io"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/changedfiles/choice"
	"github.com/nearmetal/nearmetal/internal/serialconsole"
)

// The ports at which Host.Listen makes a member serve its console and its display.
const (
	consolePort = 0
	displayPort = -1
	filesPort   = -2
)

// SaveFiles writes what Host.Listen made a member serve at port -2, and then fails as often as it is scripted to.
func (d *Driver) SaveFiles(ctx context.Context, id string, _ choice.Use, out io.Writer) error {
	conn, err := d.Dial(ctx, id, filesPort)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := io.Copy(out, conn); err != nil {
		return err
	}
	_, err = d.host.called("SaveFiles", id, func(b *Behaviour) *int { return &b.FailFiles })
	return err
}

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
