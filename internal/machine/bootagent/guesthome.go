package bootagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/machine/homelink"
	"github.com/nearmetal/nearmetal/internal/virtioport"
)

// nfsOptions are nfs(5)'s. The machine may be frozen at any moment and go on elsewhere much later: the kernel asks again for as long as it takes (hard).
// Others write there, too, so attributes are asked for again after a second, and a name that is missing may exist in the next moment. Locks are this
// machine's own (nolock).
const nfsOptions = "vers=3,proto=tcp,mountproto=tcp,mountvers=3,nolock,hard,timeo=100,retrans=2,actimeo=1,lookupcache=positive,sec=sys"

// ofHost is what the kernel calls the host in the names of what it exports.
const ofHost = "127.0.0.1:"

// hostFiles are the directories of the host that the machine has mounted: the cluster's home and its volumes. The kernel speaks to this process, which
// carries what it says to the host for as long as the machine runs.
type hostFiles struct {
	log *slog.Logger
	// port of 127.0.0.1 is where the kernel speaks to it, 0 before anything is mounted.
	port int
	// home is where the home is, "" while it is not mounted. volumes are those that are mounted.
	home    string
	volumes []guestlink.Volume
}

// mountHome mounts the cluster's home, unless it is.
func (f *hostFiles) mountHome(at string) error {
	if f.home == at {
		return nil
	}
	if err := f.mount(guestlink.HomeExport, at, 0); err != nil {
		return fmt.Errorf("mount the cluster's home at %s: %w", at, err)
	}
	f.home = at
	return nil
}

// mountVolumes mounts those of the volumes that are not yet.
func (f *hostFiles) mountVolumes(all []guestlink.Volume) error {
	for _, v := range all {
		if slices.Contains(f.volumes, v) {
			continue
		}
		flags := uintptr(0)
		if v.ReadOnly {
			flags = unix.MS_RDONLY
		}
		if err := f.mount(v.Path, v.Path, flags); err != nil {
			return fmt.Errorf("mount the volume at %s: %w", v.Path, err)
		}
		f.volumes = append(f.volumes, v)
	}
	return nil
}

// unmountOthers unmounts all volumes but those of a list. One whose files are open stays, unless it is gone anyway.
func (f *hostFiles) unmountOthers(wanted []guestlink.Volume, gone bool) error {
	var errs []error
	flags := unix.UMOUNT_NOFOLLOW
	if gone {
		flags |= unix.MNT_DETACH
	}
	f.volumes = slices.DeleteFunc(f.volumes, func(v guestlink.Volume) bool {
		if slices.Contains(wanted, v) {
			return false
		}
		err := unmountVolume(v, flags)
		if err != nil {
			errs = append(errs, err)
		}
		return err == nil
	})
	return errors.Join(errs...)
}

// unmountVolume unmounts a volume wherever root has it by now.
func unmountVolume(v guestlink.Volume, flags int) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for _, at := range placesOf(string(table), ofHost+v.Path) {
		err := unix.Unmount(at, flags)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("%w: %s", guestlink.ErrBusy, usersText("/proc", at))
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	return nil
}

// placesOf returns where a file system of NFS is mounted, the latest first, by a table of mounts (proc_pid_mountinfo(5)).
func placesOf(table, source string) []string {
	var places []string
	for line := range strings.Lines(table) {
		mount, system, _ := strings.Cut(line, " - ")
		fields, of := strings.Fields(mount), strings.Fields(system)
		if len(fields) > 4 && len(of) > 1 && of[0] == "nfs" && of[1] == source {
			places = append(places, strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4]))
		}
	}
	slices.Reverse(places)
	return places
}

// mount mounts what the host exports. Each export is a file system of its own, by which the kernel tells them apart.
func (f *hostFiles) mount(export, at string, flags uintptr) error {
	if err := f.carry(); err != nil {
		return err
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	options := fmt.Sprintf("%s,addr=127.0.0.1,port=%d,mountaddr=127.0.0.1,mountport=%[2]d", nfsOptions, f.port)
	return unix.Mount(ofHost+export, at, "nfs", unix.MS_NOSUID|unix.MS_NODEV|flags, options)
}

// carry opens the way to the host, unless it is open.
func (f *hostFiles) carry() error {
	if f.port != 0 {
		return nil
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("the way to the host's files: %w", err)
	}
	go func() {
		err := homelink.Carry(context.Background(), virtioport.Listen(homelink.Port), listener, ofKernel)
		f.log.Error("the home and the volumes are out of reach", "error", err)
	}()
	f.port = listener.Addr().(*net.TCPAddr).Port
	return nil
}

// firstFreePort is the first TCP port that anybody may connect from (ip_unprivileged_port_start).
const firstFreePort = 1024

// ofKernel reports whether the peer of a connection is the kernel or root: others could say that they are whoever they like.
func ofKernel(peer net.Addr) bool {
	tcp, ok := peer.(*net.TCPAddr)
	return ok && tcp.Port < firstFreePort
}
