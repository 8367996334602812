package cli

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// unreadInput is the standard input of a command that passes none of it on.
type unreadInput struct {
	app     *app
	cluster string
	warned  bool
}

func (a *app) unreadInput(cluster string) *unreadInput { return &unreadInput{app: a, cluster: cluster} }

// warn says once that standard input holds data which the job does not get.
func (u *unreadInput) warn() {
	in, ok := u.app.Streams.In.(*os.File)
	if !ok || u.warned || !holdsData(in) {
		return
	}
	u.warned = true
	fmt.Fprintf(u.app.Streams.Err, "Warning: standard input is not passed on: the job's own is empty. "+
		"Copy the data first ('nearmetal cp FILE %s:') and let the command read the file\n", u.cluster)
}

// holdsData reports whether bytes wait to be read from a pipe, a socket or a file. A terminal or a device has none: nobody piped them in.
func holdsData(in *os.File) bool {
	info, err := in.Stat()
	if err != nil {
		return false
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		at, err := in.Seek(0, io.SeekCurrent)
		return err == nil && at < info.Size()
	case mode&(os.ModeNamedPipe|os.ModeSocket) != 0:
		waiting, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCINQ)
		return err == nil && waiting > 0
	default:
		return false
	}
}
