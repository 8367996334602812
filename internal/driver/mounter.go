package driver

import (
	"context"
	"errors"
)

// ErrMountBusy reports that a running member has files of a mount open that it is to let go of. The message names the mount and the processes.
var ErrMountBusy = errors.New("it is in use")

// ErrMountLater reports that a paused member can't change its mounts. It can once it runs.
var ErrMountLater = errors.New("a paused member keeps its volumes as they are")

// Mounter is the ability to change the mounts of a running or paused member.
type Mounter interface {
	// Remount gives the member m.Mounts: what it lacks is mounted, and what it has beyond them is unmounted. On nil the member has these and no
	// others, and its record names them with the Volumes and the VolumesNumber of m's assignment and with m.LayersNumber. On error the member has all of m.Mounts that could
	// be mounted, its record names the former number, and Remount may be repeated. Remount returns ErrMountBusy while the member has files of a mount
	// open that it is to let go of, ErrMountLater when it can't change them while the member is paused, and ErrNotFound when the member is absent. It changes nothing else of the member.
	Remount(ctx context.Context, m Member) error
}
