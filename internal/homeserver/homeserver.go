// Package homeserver is the process that serves a cluster's home and its volumes to one virtual machine, over NFS (package nfs): so that neither the
// node agent nor QEMU ever reads what a guest says about files.
//
// It lives in namespaces of its own: user IDs are the cluster's, as in containers, the only files are those that it serves, and there is no network. It
// keeps the capabilities over these files and no others. It must be given everything by descriptors, and knows no paths of the host. Its maker may go: it
// goes on, and ends by SIGTERM, upon which it first lets go of its guest: where a tree does not answer, the kernel may keep the process, and with it all
// that it has open. Start with Hold; package driver/vm starts it.
package homeserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/homelink"
	"github.com/nearmetal/nearmetal/internal/nfs"
)

// Name is argument 0 of a home's server: the program it is part of is started as one by that name. Argument 1 says whose it is, 2 on which processors
// it may run, and the others as what the trees are exported (package nfs).
const Name = "nearmetal-home"

// The descriptors that a server is started with.
const (
	// FileOrders is read from: Go once its maker has noted it. Its end instead means that its maker has died.
	FileOrders = 0
	// FileAnswers is written to: Ready, or what went wrong.
	FileAnswers = 1
	// fileNull is /dev/null.
	fileNull = 2
	// FileProgram is the program itself, FileSocket the Unix socket that QEMU connects to, and FileTrees the first tree, mounted nowhere. The others
	// follow in the order of their arguments.
	FileProgram, FileSocket, FileTrees = 3, 4, 5
)

// What is said over the descriptors.
const (
	Ready = "ready"
	Go    = "go"
)

// Namespaces are those that a server is made with.
const Namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS

// capabilities are those that a server keeps in its user namespace: over files, and over whose name it acts in.
var capabilities = []uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SETGID, unix.CAP_SETUID,
}

// Exports returns those in the arguments of a server. One of an earlier version named none, and served the home.
func Exports(args []string) []string {
	if len(args) > argExports && args[len(args)-1] == serving {
		args = args[:len(args)-1]
	}
	if len(args) <= argExports {
		return nil
	}
	return args[argExports:]
}

// descriptors is where a server sees its own file descriptors, in an otherwise empty root.
const descriptors = "/fd"

// memoryLimit is what the Go runtime tries to keep to, in bytes.
const memoryLimit = 32 << 20

// serving is the last argument of the program once it has given up what it was born with. It is no export.
const serving = "serve"

// argExports is the first argument that is an export.
const argExports = 3

// Hold is the life of a server. It returns only when it can't become one, or can't go on.
func Hold() error {
	var err error
	if last := len(os.Args) - 1; last >= argExports && os.Args[last] == serving {
		err = serve(os.Args[argExports:last])
	} else {
		err = prepare()
	}
	_, _ = unix.Write(FileAnswers, []byte(err.Error()))
	return err
}

// prepare gives up all that a server does not need, and starts the program again: only then all of its threads have given it up.
func prepare() error {
	if len(os.Args) < argExports {
		return errors.New("it was started without a name and processors")
	}
	runtime.LockOSThread()
	if err := pin(os.Args[2]); err != nil {
		return err
	}
	unix.Umask(0)
	if err := setLimits(); err != nil {
		return err
	}
	if err := closeInherited(FileTrees + len(os.Args[argExports:])); err != nil {
		return fmt.Errorf("closing the files that it inherited: %w", err)
	}
	if err := emptyRoot(); err != nil {
		return fmt.Errorf("entering an empty root: %w", err)
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	program := fmt.Sprintf("%s/%d", descriptors, FileProgram)
	return fmt.Errorf("starting itself again: %w", unix.Exec(program, append(slices.Clone(os.Args), serving), []string{}))
}

// pin keeps to the processors of the member: others' are none of its guest's to use up.
func pin(list string) error {
	var set unix.CPUSet
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			return fmt.Errorf("%q is no list of processors", list)
		}
		set.Set(n)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("keeping to processors %s: %w", list, err)
	}
	return nil
}

// mostDescriptors are for the files that package nfs keeps open, and for what it does with some of them.
const mostDescriptors = 8192

func setLimits() error {
	var files unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files)
	files.Max = min(files.Max, mostDescriptors)
	files.Cur = files.Max
	return errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &files), unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}))
}

// closeInherited closes all from a descriptor on but the Go runtime's own files, which lead nowhere.
func closeInherited(from int) error {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		target, _ := os.Readlink(dir + "/" + e.Name())
		if err == nil && fd >= from && target != "" && !strings.HasPrefix(target, "anon_inode:[event") {
			_ = unix.Close(fd)
		}
	}
	return nil
}

// emptyRoot makes a root in which there is nothing but its own descriptors, and lets go of all other mounts.
func emptyRoot() error {
	const place = "/sys" // there on every host, and of no use here
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", place, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0555,size=4k,nr_inodes=3"); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	if err := unix.Mkdir(place+descriptors, 0o555); err != nil {
		return err
	}
	if err := unix.Mount("/proc/self/fd", place+descriptors, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mounting its descriptors: %w", err)
	}
	if err := unix.Mount("", place, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("making it read-only: %w", err)
	}
	if err := unix.Chdir(place); err != nil {
		return err
	}
	// pivot_root(".", ".") stacks the old root on the new one, where it is unmounted: pivot_root(2).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmounting the old root: %w", err)
	}
	return unix.Chdir("/")
}

// dropCapabilities takes all others out of what this thread can have after the next execve(2).
func dropCapabilities() error {
	kept := map[uintptr]bool{}
	for _, c := range capabilities {
		kept[c] = true
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if kept[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("dropping capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("giving up new privileges: %w", err)
	}
	return nil
}

// serve serves the trees.
func serve(exports []string) error {
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	debug.SetMemoryLimit(memoryLimit)
	_ = unix.Close(FileProgram)
	cfg := nfs.Config{Descriptors: descriptors}
	for i, export := range exports {
		cfg.Trees = append(cfg.Trees, nfs.Tree{Export: export, Root: os.NewFile(uintptr(FileTrees+i), "the tree "+strconv.Itoa(i))})
	}
	server, err := nfs.New(cfg)
	if err != nil {
		return err
	}
	socket := os.NewFile(FileSocket, "the socket")
	listener, err := net.FileListener(socket)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	_ = socket.Close()
	if _, err := unix.Write(FileAnswers, []byte(Ready)); err != nil {
		return err
	}
	order := make([]byte, len(Go))
	if n, err := unix.Read(FileOrders, order); err != nil || string(order[:n]) != Go {
		return errors.New("its maker has died")
	}
	// Their numbers stay taken: what is written to them later must not reach a file of a guest.
	if err := errors.Join(unix.Dup3(fileNull, FileOrders, unix.O_CLOEXEC), unix.Dup3(fileNull, FileAnswers, unix.O_CLOEXEC)); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go server.Run(context.Background())
	return accept(listener, server)
}

// accept serves one connection at a time, the latest: a QEMU that connects anew has lost the one before. When it can't go on, that one is closed.
func accept(listener net.Listener, server homelink.Handler) error {
	end, ended, cut := func() {}, make(chan struct{}), func() {}
	close(ended)
	for {
		conn, err := listener.Accept()
		if err != nil {
			cut()
			end()
			<-ended
			return fmt.Errorf("accepting: %w", err)
		}
		end()
		<-ended
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		end, ended = cancel, done
		cut = func() { // at once, whoever writes to it at the moment
			if c, ok := conn.(*net.UnixConn); ok {
				_, _ = c.CloseRead(), c.CloseWrite()
			}
		}
		go func() {
			defer close(done)
			_ = homelink.Serve(ctx, conn, nfs.MaxRecord, server) // its end is the guest's affair
			_ = conn.Close()
		}()
	}
}
