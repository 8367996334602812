// Package nfsd serves volumes to other nodes by the kernel's NFS server: version 4.2 (RFC 7862) over TCP.
//
// The kernel keeps one server for each network namespace, and each cluster has one of its own on a node where its volumes lie. On the disk, files have
// the IDs that members see. On the wire they have the host's IDs of the cluster's user namespaces, which are the same on every node, so that
// the other node's members have them as their own. The kernel maps them by the user namespace of the process that handed it the listening socket. Members that
// have whole machines are in no namespace, and have a socket of their own, by which nothing is mapped.
//
// Nothing of nfs-utils is needed: what rpc.mountd would answer, this package writes into the kernel's caches beforehand (below
// /proc/net/rpc; formats: ip_map_parse in net/sunrpc/svcauth_unix.c, svc_export_parse and expkey_parse in fs/nfsd/export.c). It must never decide who
// may be a client. Start with Start here; client.go is the other end.
package nfsd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/volume/mounts"
)

// Config is what a server is made of.
type Config struct {
	// Space is the network namespace that is the server's alone. Address is where it listens there.
	Space   netns.Handle
	Address netip.AddrPort
	// Dir is a directory of the server's own. Its parent exists.
	Dir string
	// UserIDs are those of the cluster's user namespaces.
	UserIDs api.IDRange
	// Threads is how many calls are served at a time; 0: DefaultThreads.
	Threads int
}

// DefaultThreads serve a few members that write at once.
const DefaultThreads = 8

// leaseSeconds is how long a client that says nothing keeps what it has opened. It is the shortest that the kernel takes.
const leaseSeconds = 10

// domain is the name that all clients of a server have in the kernel's caches.
const domain = "nearmetal"

// forever is the latest time that the kernel's caches take, in seconds since 1970.
const forever = "2147483647"

// Bits of an export's flags (include/uapi/linux/nfsd/export.h).
const (
	flagReadOnly       = 0x0001
	flagInsecurePort   = 0x0002 // any source port
	flagNoHide         = 0x0200 // it may lie below another export
	flagNoSubtreeCheck = 0x0400
	flagFSID           = 0x2000 // its file system is named by the number beside
	flagCrossMount     = 0x4000
	flagRoot           = 0x10000 // it only leads to other exports
)

// Server is the server of one cluster on this node.
type Server struct{ cfg Config }

// Start makes the server, or finds the one that runs in the namespace already. It listens once Start returns, and lets no client in.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Threads == 0 {
		cfg.Threads = DefaultThreads
	}
	s := &Server{cfg: cfg}
	if cfg.UserIDs.Count == 0 || cfg.UserIDs.First <= cfg.UserIDs.Count {
		return nil, fmt.Errorf("serving volumes: the user IDs %d to %d can't be mapped", cfg.UserIDs.First, cfg.UserIDs.First+cfg.UserIDs.Count)
	}
	err := s.mount()
	if err == nil {
		err = s.run(ctx)
	}
	if err == nil {
		err = s.cache("auth.unix.ip", fmt.Sprintf("nfsd %v %s %s", netip.IPv4Unspecified(), forever, domain)) // no client is there, but the domain is
	}
	if err == nil {
		err = s.export(s.root(), 0, flagReadOnly|flagRoot|flagCrossMount)
	}
	if err != nil {
		return nil, fmt.Errorf("serving volumes: %w", errors.Join(err, s.unmount(ctx)))
	}
	return s, nil
}

// Found is a server that an earlier process has started, or one that is not there.
func Found(cfg Config) *Server { return &Server{cfg: cfg} }

// root is what clients see volumes below, by their names. control is where the kernel's server is controlled: it ends when that is unmounted.
func (s *Server) root() string    { return filepath.Join(s.cfg.Dir, "volumes") }
func (s *Server) control() string { return filepath.Join(s.cfg.Dir, "control") }

// mount mounts what the server needs, unless it is there.
func (s *Server) mount() error {
	for _, at := range []struct {
		dir, kind, options string
		flags              uintptr
	}{
		{s.root(), "tmpfs", "size=64k,mode=755", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{s.control(), "nfsd", "", 0},
	} {
		if err := os.MkdirAll(at.dir, 0o700); err != nil {
			return err
		}
		mounted, err := isMount(at.dir)
		if err != nil {
			return err
		}
		if mounted {
			continue
		}
		// The kernel's server that is controlled is that of the thread's network namespace.
		err = s.cfg.Space.Do(func() error { return unix.Mount(at.kind, at.dir, at.kind, at.flags, at.options) })
		if errors.Is(err, unix.ENODEV) {
			err = errors.New("this kernel has no NFS server; load its module nfsd")
		}
		if err != nil {
			return fmt.Errorf("mounting %s: %w", at.dir, err)
		}
	}
	return nil
}

// run has the kernel's server run.
func (s *Server) run(ctx context.Context) error {
	dir := s.control()
	threads, err := read(dir, "threads")
	if err != nil || threads != "0" {
		return err // or it runs
	}
	for _, setting := range [][2]string{
		{"versions", "-2 -3 +4 -4.0 +4.1 +4.2"}, {"nfsv4leasetime", strconv.Itoa(leaseSeconds)}, {"nfsv4gracetime", strconv.Itoa(leaseSeconds)},
	} {
		if err := write(filepath.Join(dir, setting[0]), setting[1]); err != nil {
			return err
		}
	}
	if err := s.listen(ctx); err != nil {
		return err
	}
	if err := write(filepath.Join(dir, "threads"), strconv.Itoa(s.cfg.Threads)); err != nil {
		return err
	}
	// Nobody has anything to reclaim. A kernel that does not note its clients (in namespaces, none does without a daemon of nfs-utils) may refuse:
	// then clients wait for their first file until leaseSeconds have passed.
	_ = write(filepath.Join(dir, "v4_end_grace"), "Y")
	return nil
}

// listen hands the kernel's server a listening socket, from a process in a user namespace that maps IDs of the wire to those of the disk.
func (s *Server) listen(ctx context.Context) error {
	first, size := int(s.cfg.UserIDs.First), int(s.cfg.UserIDs.Count)
	// Root of that namespace is a user of the cluster outside: it may write to files of the host's root, which is mapped, and owns nothing.
	return s.hand(ctx, s.cfg.Address, []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: 1}, {ContainerID: first, HostID: 0, Size: size}})
}

// ListenToMachines has the server listen at another address, to clients that have whole machines: they are in no user namespace, so files have the same IDs on
// the wire as on the disk, as far as a cluster has them. Repeating it is harmless.
func (s *Server) ListenToMachines(ctx context.Context, at netip.AddrPort) error {
	err := s.hand(ctx, at, []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: int(s.cfg.UserIDs.Count)}})
	if errors.Is(err, unix.EADDRINUSE) {
		return nil // nobody else is in the namespace
	}
	return err
}

// hand makes a listening socket in the server's network namespace and hands it over, from a process in a user namespace with these IDs.
func (s *Server) hand(ctx context.Context, at netip.AddrPort, maps []syscall.SysProcIDMap) error {
	var plain net.ListenConfig
	plain.SetMultipathTCP(false) // the kernel's server takes no other than TCP
	var listener net.Listener
	err := s.cfg.Space.Do(func() (err error) {
		listener, err = plain.Listen(ctx, "tcp", at.String())
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // the kernel has its own
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer func() { _ = socket.Close() }()
	// The child's first descriptor besides the standard ones is 3.
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "echo 3 >"+filepath.Join(s.control(), "portlist"))
	cmd.ExtraFiles = []*os.File{socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: maps, GidMappings: maps, GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{},
	}
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("handing the NFS server its socket: %w: %s", err, strings.TrimSpace(string(said)))
	}
	return nil
}

// Share is a volume that the server's clients see.
type Share struct {
	// Name is the directory below the root that clients see.
	Name string
	// Number is unique among the server's shares, at least 1. Clients know the file system by it.
	Number int
	// Dir is where this node has the volume, with the IDs of the disk.
	Dir      string
	ReadOnly bool
}

// Share makes a volume visible. Repeating it is harmless; with another ReadOnly, that holds from then on.
func (s *Server) Share(v Share) error {
	at := filepath.Join(s.root(), v.Name)
	if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("serving volume %s: %w", v.Name, err)
	}
	mounted, err := isMount(at)
	if err == nil && !mounted {
		err = bind(v.Dir, at)
	}
	if err != nil {
		return fmt.Errorf("serving volume %s: %w", v.Name, err)
	}
	flags := flagNoHide | flagCrossMount
	if v.ReadOnly {
		flags |= flagReadOnly
	}
	if err := s.export(at, v.Number, flags); err != nil {
		return fmt.Errorf("serving volume %s: %w", v.Name, err)
	}
	return nil
}

// bind mounts what is mounted at a directory at another, too. An empty directory, where nothing is mounted, must never pass for a volume.
func bind(dir, at string) error {
	if err := unix.Mount(dir, at, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	var above, below unix.Stat_t
	err := errors.Join(unix.Stat(filepath.Dir(dir), &above), unix.Stat(at, &below))
	if err == nil && above.Dev == below.Dev {
		err = fmt.Errorf("it is not mounted at %s", dir)
	}
	if err != nil {
		err = errors.Join(err, unix.Unmount(at, unix.MNT_DETACH))
	}
	return err
}

// export writes a directory and its number into the kernel's caches.
func (s *Server) export(dir string, number, flags int) error {
	flags |= flagInsecurePort | flagNoSubtreeCheck | flagFSID
	const nobody = "65534"
	entry := strings.Join([]string{domain, quoted(dir), forever, strconv.Itoa(flags), nobody, nobody, strconv.Itoa(number)}, " ")
	if err := s.cache("nfsd.export", entry); err != nil {
		return err
	}
	// FSID_NUM: four bytes that only the server interprets.
	const byNumber = "1"
	return s.cache("nfsd.fh", strings.Join([]string{domain, byNumber, fmt.Sprintf(`\x%02x%02x%02x%02x`, byte(number), byte(number>>8), byte(number>>16), byte(number>>24)), forever, quoted(dir)}, " "))
}

// Admit lets a client in.
func (s *Server) Admit(client netip.Addr) error {
	if err := s.cache("auth.unix.ip", fmt.Sprintf("nfsd %v %s %s", client, forever, domain)); err != nil {
		return fmt.Errorf("letting %v in: %w", client, err)
	}
	return nil
}

// Clients are those that are let in.
func (s *Server) Clients() ([]netip.Addr, error) {
	var text []byte
	err := s.cfg.Space.Do(func() (err error) {
		text, err = os.ReadFile(filepath.Join(caches, "auth.unix.ip", "content"))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading which clients are let in: %w", err)
	}
	return clientsIn(string(text)), nil
}

// clientsIn reads the kernel's cache of clients (ip_map_show in net/sunrpc/svcauth_unix.c): class, address and domain. Who was shut out has a comment.
func clientsIn(text string) []netip.Addr {
	var all []netip.Addr
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) != 3 || words[0] != "nfsd" || words[2] != domain {
			continue
		}
		if client, err := netip.ParseAddr(words[1]); err == nil && !client.IsUnspecified() {
			all = append(all, client.Unmap())
		}
	}
	return all
}

// Shares are the names of the volumes that clients see.
func (s *Server) Shares() ([]string, error) {
	entries, err := os.ReadDir(s.root())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []string
	for _, e := range entries {
		mounted, err := isMount(filepath.Join(s.root(), e.Name()))
		if err != nil {
			return nil, err
		}
		if mounted {
			all = append(all, e.Name())
		}
	}
	return all, nil
}

// Fence shuts a client out, and reads back that the kernel keeps nothing for it: what it sends from then on is refused.
func (s *Server) Fence(ctx context.Context, client netip.Addr) error {
	if err := s.cache("auth.unix.ip", fmt.Sprintf("nfsd %v %s", client, forever)); err != nil {
		return fmt.Errorf("shutting %v out: %w", client, err)
	}
	for {
		left, err := expire(filepath.Join(s.control(), "clients"), client)
		if err != nil {
			return fmt.Errorf("shutting %v out: %w", client, err)
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("shutting %v out: the NFS server still keeps something for it: %w", client, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// expire ends what the server keeps for a client, and returns how much of that there was.
func expire(dir string, client netip.Addr) (int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	found := 0
	for _, e := range entries {
		info, err := os.ReadFile(filepath.Join(dir, e.Name(), "info"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has just gone
		}
		if err != nil {
			return found, err
		}
		if addressIn(string(info)) != client {
			continue
		}
		found++
		if err := write(filepath.Join(dir, e.Name(), "ctl"), "expire"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return found, err
		}
	}
	return found, nil
}

// addressIn is the address in what the kernel says of a client; the zero address where there is none.
func addressIn(info string) netip.Addr {
	for line := range strings.Lines(info) {
		if quoted, ok := strings.CutPrefix(strings.TrimSpace(line), "address: "); ok {
			if at, err := netip.ParseAddrPort(strings.Trim(quoted, `"`)); err == nil {
				return at.Addr()
			}
		}
	}
	return netip.Addr{}
}

// Stop ends the server, and removes what it showed. Repeating it is harmless.
func (s *Server) Stop(ctx context.Context) error {
	var err error
	for _, name := range []string{"nfsd.export", "nfsd.fh", "auth.unix.ip"} { // what they hold can't be unmounted
		err = errors.Join(err, s.flush(name))
	}
	err = errors.Join(err, s.unmount(ctx))
	if err != nil {
		return fmt.Errorf("no longer serving volumes: %w", err)
	}
	return nil
}

// Remove removes what is left in the directory of a server that has ended with the host's boot.
func Remove(ctx context.Context, dir string) error {
	return (&Server{cfg: Config{Dir: dir}}).unmount(ctx)
}

// unmount ends the kernel's server, and removes all that is mounted in its directory.
func (s *Server) unmount(ctx context.Context) error {
	dirs := []string{s.control()}
	entries, err := os.ReadDir(s.root())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		dirs = append(dirs, filepath.Join(s.root(), e.Name()))
	}
	for _, dir := range append(dirs, s.root()) {
		mounted, err := isMount(dir)
		if err == nil && mounted {
			err = mounts.Unmount(ctx, dir) // the kernel closes what a server had open a little later than it ends
		}
		if err != nil {
			return fmt.Errorf("unmounting %s: %w", dir, err)
		}
	}
	for _, dir := range []string{s.control(), s.root(), s.cfg.Dir} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// cache writes an entry into one of the kernel's caches.
func (s *Server) cache(name, entry string) error {
	return s.cfg.Space.Do(func() error { return write(filepath.Join(caches, name, "channel"), entry) })
}

// flush empties one of the kernel's caches.
func (s *Server) flush(name string) error {
	err := s.cfg.Space.Do(func() error { return write(filepath.Join(caches, name, "flush"), "1") })
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a kernel without a server, or none that ever ran
	}
	return err
}

// caches is where the kernel's RPC server has its caches, those of the thread's network namespace.
const caches = "/proc/thread-self/net/rpc"

// quoted writes a path for the kernel's caches, which end words at spaces.
func quoted(path string) string {
	var b strings.Builder
	for _, c := range []byte(path) {
		if c <= ' ' || c == '\\' || c >= 0x7f {
			fmt.Fprintf(&b, `\%03o`, c)
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// isMount reports whether something is mounted at a directory.
func isMount(dir string) (bool, error) {
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &stat); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return false, &fs.PathError{Op: "statx", Path: dir, Err: err}
	}
	return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// write writes a line to a file of the kernel by one call.
func write(path, line string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(line + "\n")
	return errors.Join(err, file.Close())
}

func read(dir, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(text)), err
}
