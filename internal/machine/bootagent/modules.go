package bootagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/kernelmodule"
)

// finitCompressed tells the kernel that a module's file is compressed (Linux, include/uapi/linux/module.h).
const finitCompressed = 4

// modules loads kernel modules. It is safe for concurrent use.
type modules struct {
	dir     string
	index   *kernelmodule.Index
	mu      sync.Mutex
	loading map[string]*loading
	// modprobe, if any, is the image's own, which knows what is not to be loaded and with which options (modprobe.d(5)).
	modprobe func(alias string) error
	// pending counts devices whose drivers are yet to be loaded.
	pending atomic.Int64
	log     *slog.Logger
}

// loading is a module that was asked for.
type loading struct {
	// done is closed once it is loaded or can't be; err is set before.
	done chan struct{}
	err  error
}

// modulesDir returns the directory of the running kernel's modules.
func modulesDir() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", err
	}
	return filepath.Join("/lib/modules", unix.ByteSliceToString(name.Release[:])), nil
}

// openModules reads the indexes of the running kernel's modules.
func openModules(log *slog.Logger) (*modules, error) {
	dir, err := modulesDir()
	if err != nil {
		return nil, err
	}
	index, err := kernelmodule.ReadIndex(dir)
	if err != nil {
		return nil, fmt.Errorf("the kernel's modules: %w", err)
	}
	return &modules{dir: dir, index: index, loading: map[string]*loading{}, log: log}, nil
}

// load loads the modules for a modalias or a name, with all they need; what is loaded already is no error.
func (m *modules) load(alias string) error {
	names := m.index.Match(alias)
	if len(names) == 0 {
		if m.index.Builtin(alias) {
			return nil
		}
		return fmt.Errorf("no module matches %q", alias)
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, m.loadWithNeeds(name))
	}
	return errors.Join(errs...)
}

func (m *modules) loadWithNeeds(name string) error {
	for _, needed := range m.index.Order(name) {
		if err := m.loadOne(needed); err != nil {
			return err
		}
	}
	return nil
}

// loadOne loads one module whose needs are there; two callers load it once.
func (m *modules) loadOne(name string) error {
	m.mu.Lock()
	l, ok := m.loading[name]
	if !ok {
		l = &loading{done: make(chan struct{})}
		m.loading[name] = l
	}
	m.mu.Unlock()
	if ok {
		<-l.done
		return l.err
	}
	defer close(l.done)
	l.err = m.insert(name)
	return l.err
}

// insert gives a module to the kernel.
func (m *modules) insert(name string) error {
	file, err := os.Open(filepath.Join(m.dir, m.index.File(name)))
	if err != nil {
		return err
	}
	defer file.Close()
	flags := 0
	if !strings.HasSuffix(file.Name(), ".ko") {
		flags = finitCompressed
	}
	if err := unix.FinitModule(int(file.Fd()), moduleOptions(name), flags); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("module %s: %w", name, err)
	}
	return nil
}

// modulesForRoot are what a root and its layers go through. Each layer has a file system of its own choice, and nothing but this agent loads
// modules.
func modulesForRoot(roots ...image.Root) []string {
	names := []string{"nbd", "loop", "dm_mod", "overlay"}
	for _, r := range roots {
		if !slices.Contains(names, string(r.Format)) {
			names = append(names, string(r.Format))
		}
	}
	return names
}

// loadAll loads modules by name.
func (m *modules) loadAll(names []string) error {
	for _, name := range names {
		if err := m.load(name); err != nil {
			return err
		}
	}
	return nil
}

// moduleOptions are the options a module is loaded with.
func moduleOptions(name string) string {
	switch name {
	case "nbd":
		// One for each layer; partitions are of no use on them.
		return "nbds_max=16 max_part=0"
	case "loop":
		return "max_loop=0"
	}
	return ""
}

// loaders is how many drivers are started side by side: some wait for their device for seconds.
const loaders = 3

// headStart is what NICs have before all other devices, at most.
const headStart = 3 * time.Second

// watchDevices loads the drivers of all devices there are and will be, until ctx ends: NICs at once, all others once first is closed or a
// while has passed. news tells that a device was added.
func (m *modules) watchDevices(ctx context.Context, news chan<- struct{}, first <-chan struct{}) error {
	// Listen before looking, so that no device is missed between.
	socket, err := openUevents()
	if err != nil {
		return err
	}
	others := make(chan string, 4096)
	for range loaders {
		go func() {
			select {
			case <-first:
			case <-time.After(headStart):
			}
			for alias := range others {
				m.drive(alias)
			}
		}()
	}
	add := func(alias string) {
		m.pending.Add(1)
		if urgency(alias) <= urgentNIC {
			go m.drive(alias)
			return
		}
		others <- alias
	}
	// Closing a socket does not wake who reads from it, shutting it down does.
	stop := context.AfterFunc(ctx, func() { _ = unix.Shutdown(socket, unix.SHUT_RDWR) })
	go func() {
		defer stop()
		defer close(others)
		defer func() { _ = unix.Close(socket) }()
		for _, alias := range presentDevices("/sys") {
			add(alias)
		}
		buffer := make([]byte, 64<<10)
		for ctx.Err() == nil {
			n, _, err := unix.Recvfrom(socket, buffer, 0)
			if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			if event := parseUevent(buffer[:max(n, 0)]); event["MODALIAS"] != "" && event["ACTION"] == "add" {
				add(event["MODALIAS"])
			}
			select {
			case news <- struct{}{}:
			default:
			}
		}
	}()
	return nil
}

// openUevents opens a socket on which the kernel reports devices that come and go.
func openUevents() (socket int, err error) {
	socket, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return 0, fmt.Errorf("listen for devices: %w", err)
	}
	_ = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	if err := unix.Bind(socket, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil {
		_ = unix.Close(socket)
		return 0, fmt.Errorf("listen for devices: %w", err)
	}
	return socket, nil
}

// drive loads the drivers of a device.
func (m *modules) drive(alias string) {
	defer m.pending.Add(-1)
	if len(m.index.Match(alias)) == 0 {
		return
	}
	load := m.load
	if m.modprobe != nil {
		load = m.modprobe
	}
	// A driver that finds nothing to drive says ENODEV, one that comes second EBUSY, and nothing is loaded while the machine ends: all are normal.
	if err := load(alias); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ESHUTDOWN) {
		m.log.Warn("a driver can't be loaded", "device", alias[:min(len(alias), 80)], "error", err)
	}
}

// settle returns once no driver was to be loaded for a while: devices behind others show up one after the other.
func (m *modules) settle(ctx context.Context) error {
	for quiet := 0; quiet < 5; quiet++ {
		if m.pending.Load() > 0 {
			quiet = 0
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// presentDevices are the modaliases of all devices, NICs first, each once.
func presentDevices(sys string) []string {
	var list []string
	_ = filepath.WalkDir(filepath.Join(sys, "devices"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "modalias" {
			if text, err := os.ReadFile(path); err == nil {
				if alias := strings.TrimSpace(string(text)); alias != "" && !slices.Contains(list, alias) {
					list = append(list, alias)
				}
			}
		}
		return nil
	})
	slices.SortStableFunc(list, func(a, b string) int { return urgency(a) - urgency(b) })
	return list
}

// How urgent devices are: the boot waits for NICs, which are PCI class 02 or behind virtio, then disks.
const (
	urgentNIC = iota
	urgentDisk
	notUrgent
)

func urgency(alias string) int {
	switch {
	case strings.HasPrefix(alias, "virtio:d00000001") || strings.HasPrefix(alias, "pci:v00001AF4d00001000") || strings.HasPrefix(alias, "pci:v00001AF4d00001041"),
		strings.Contains(alias, "bc02sc"), strings.HasPrefix(alias, "vmbus:"):
		return urgentNIC
	case strings.Contains(alias, "bc01sc"), strings.HasPrefix(alias, "virtio:"), strings.HasPrefix(alias, "pci:v00001AF4"):
		return urgentDisk
	}
	return notUrgent
}

// parseUevent reads the values of a kernel event: "add@/devices/..." and NAME=VALUE, each ended by a zero byte.
func parseUevent(message []byte) map[string]string {
	values := map[string]string{}
	for field := range bytes.SplitSeq(message, []byte{0}) {
		if name, value, ok := bytes.Cut(field, []byte{'='}); ok {
			values[string(name)] = string(value)
		}
	}
	return values
}

// Modprobe loads what the kernel asks /sbin/modprobe for while there is only the initial RAM disk: modprobe -q -- NAME.
func Modprobe(args []string) error {
	m, err := openModules(newLog())
	if err != nil {
		return err
	}
	for _, arg := range args {
		if strings.HasPrefix(arg, "-") {
			continue
		}
		if err := m.load(arg); err != nil {
			return err
		}
	}
	return nil
}
