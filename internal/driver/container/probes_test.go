package container_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probes are what a hostile root of a member tries; each returns the error it met, or nil when it got through.
var probes = map[string]func(argument string) (string, error){
	"read":   func(path string) (string, error) { data, err := os.ReadFile(path); return string(data), err },
	"list":   listDir,
	"write":  func(path string) (string, error) { return "", writeProbe(path) },
	"create": func(path string) (string, error) { return "", os.WriteFile(path, []byte("x"), 0o644) },
	"remove": func(path string) (string, error) { return "", os.Remove(path) },
	"chmod":  func(path string) (string, error) { return "", os.Chmod(path, 0o777) },
	"signal": func(pid string) (string, error) {
		var n int
		if _, err := fmt.Sscan(pid, &n); err != nil {
			return "", err
		}
		return "", unix.Kill(n, unix.SIGKILL)
	},
	"dial": func(address string) (string, error) {
		conn, err := net.Dial("unix", address)
		if err == nil {
			err = conn.Close()
		}
		return "", err
	},
	"echo":         echo,
	"make segment": func(text string) (string, error) { return "", useSegment(unix.IPC_CREAT|0o600, text) },
	"read segment": func(string) (string, error) { return readSegment() },
	"hold segment": func(string) (string, error) { _, err := attach(0); return "", err },
	"publish":      publish,
	"peek":         peek,
	"mount tmpfs":  func(path string) (string, error) { return "", unix.Mount("tmpfs", path, "tmpfs", 0, "") },
	"remount writable": func(path string) (string, error) {
		return "", unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND, "")
	},
	"unmount": func(path string) (string, error) { return "", unix.Unmount(path, unix.MNT_DETACH) },
	"make block device": func(path string) (string, error) {
		return "", unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(254, 0)))
	},
	"make user namespace": func(string) (string, error) { return "", unix.Unshare(unix.CLONE_NEWUSER) },
	"load module":         func(string) (string, error) { return "", unix.InitModule([]byte{0}, "") },
	"set host name":       func(name string) (string, error) { return "", unix.Sethostname([]byte(name)) },
	"set time": func(string) (string, error) {
		return "", unix.Settimeofday(&unix.Timeval{Sec: 1})
	},
	"reboot":          func(string) (string, error) { return "", unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) },
	"kernel log":      func(string) (string, error) { _, err := unix.Klogctl(3, make([]byte, 100)); return "", err },
	"become unmapped": func(string) (string, error) { return "", unix.Setresuid(70000, 70000, 70000) },
	"raise locked memory": func(string) (string, error) {
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Max == unix.RLIM_INFINITY {
			return "", errors.New("it is unlimited already")
		}
		limit.Max++
		return "", unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit)
	},
	"load bpf": func(string) (string, error) {
		var attr [128]byte
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		return "", errno
	},
	"trace performance": func(string) (string, error) {
		fd, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: unix.PERF_TYPE_HARDWARE}, -1, 0, -1, 0)
		if err == nil {
			err = unix.Close(fd)
		}
		return "", err
	},
}

// echo sends back whatever comes to a port of its own choice, which it returns.
func echo(address string) (string, error) {
	l, err := net.Listen("tcp4", address+":0")
	if err != nil {
		return "", err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn) }()
		}
	}()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

func listDir(path string) (string, error) {
	entries, err := os.ReadDir(path)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return strings.Join(names, " "), err
}

func writeProbe(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString("1")
	return errors.Join(err, file.Close())
}

// segmentKey is the System V key that members of one cluster agree on, for so large a segment.
const (
	segmentKey   = 0x4e6d
	segmentBytes = 32 << 20
)

func attach(flags int) ([]byte, error) {
	id, err := unix.SysvShmGet(segmentKey, segmentBytes, flags)
	if err != nil {
		return nil, err
	}
	return unix.SysvShmAttach(id, 0, 0)
}

// useSegment leaves a text in a shared memory segment, which it keeps attached.
func useSegment(flags int, text string) error {
	memory, err := attach(flags)
	if err == nil {
		for i := range memory {
			memory[i] = 0
		}
		copy(memory, text)
	}
	return err
}

func readSegment() (string, error) {
	memory, err := attach(0)
	if err != nil {
		return "", err
	}
	text, _, _ := strings.Cut(string(memory), "\x00")
	return text, unix.SysvShmDetach(memory)
}

// published is memory of this process that others may read by its address.
var published = make([]byte, 100)

// publish puts a text there and returns where it is: PID, address and length.
func publish(text string) (string, error) {
	clear(published)
	published = published[:copy(published, text)]
	return fmt.Sprint(os.Getpid(), " ", uintptr(unsafe.Pointer(&published[0])), " ", len(published)), nil
}

// peek reads memory of another process, as UCX and Open MPI do for large messages (process_vm_readv(2)).
func peek(where string) (string, error) {
	var pid, length int
	var address uintptr
	if _, err := fmt.Sscan(where, &pid, &address, &length); err != nil {
		return "", err
	}
	buffer := make([]byte, length)
	local := unix.Iovec{Base: &buffer[0]}
	local.SetLen(length)
	_, err := unix.ProcessVMReadv(pid, []unix.Iovec{local}, []unix.RemoteIovec{{Base: address, Len: length}}, 0)
	return string(buffer), err
}
