package bootagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/virtioport"
)

// diskPatience is how long a guest's disks may take to show up.
const diskPatience = 30 * time.Second

// guestFormats returns the file systems of a guest's roots, and whether the machine is a guest: then its kernel's command line lists them.
func guestFormats(cmdline string) (formats []image.RootFormat, isGuest bool) {
	for word := range strings.FieldsSeq(cmdline) {
		if value, ok := strings.CutPrefix(word, guestlink.Argument+"="); ok {
			for format := range strings.SplitSeq(value, ",") {
				formats = append(formats, image.RootFormat(format))
			}
			return formats, true
		}
	}
	return nil, false
}

// guest boots a virtual machine: its roots are disks that its host gave it, everything else comes over the port of guestlink. It returns only
// with a problem.
func (a *Agent) guest(ctx context.Context, formats []image.RootFormat) error {
	if !allFormats(formats) {
		return fmt.Errorf("%s: %v are no file systems of roots", guestlink.Argument, formats)
	}
	modules, err := openModules(a.log)
	if err != nil {
		return err
	}
	a.modules = modules
	drivers := []string{"virtio_pci", "virtio_blk", "overlay"}
	for _, f := range formats {
		drivers = append(drivers, string(f))
	}
	if err := a.modules.loadAll(drivers); err != nil {
		return err
	}
	if err := keepProgram(); err != nil {
		return err
	}
	if err := mountGuestRoots(ctx, formats); err != nil {
		return err
	}
	if err := switchRoot(); err != nil {
		return err
	}
	if err := prepareForPrograms(); err != nil {
		return err
	}
	// From the root itself: the initial RAM disk knows only what finds the root.
	if a.modules, err = openModules(a.log); err != nil {
		return err
	}
	if err := a.modules.loadAll([]string{"virtio_console", "virtio_net", "nfs", "nfsv3", "button", "evdev"}); err != nil {
		return err
	}
	a.obeySignals()
	a.obeyPowerButton()
	a.obeyHotplug()
	a.log.Info("waiting for the host", "after", time.Since(a.begun))
	return guestlink.Serve(ctx, virtioport.Listen(guestlink.Port), &guest{agent: a, files: hostFiles{log: a.log}})
}

// keepProgram takes the host's program over from the initial RAM disk, which goes.
func keepProgram() error {
	program, err := os.ReadFile("/" + guestlink.ProgramPath)
	if err != nil {
		return fmt.Errorf("the program of the guest: %w", err)
	}
	return os.WriteFile(guestlink.ProgramInGuest, program, 0o755)
}

// mountGuestRoots mounts the roots and a writable file system above them.
func mountGuestRoots(ctx context.Context, formats []image.RootFormat) error {
	ctx, cancel := context.WithTimeout(ctx, diskPatience)
	defer cancel()
	var dirs []string
	for n, format := range formats {
		device, err := guestDisk(ctx, guestlink.RootSerial(n))
		if err != nil {
			return err
		}
		dir := filepath.Join(layersDir, strconv.Itoa(n))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(device, dir, string(format), unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("mount the root of %s: %w", device, err)
		}
		dirs = append(dirs, dir)
	}
	return overlay(dirs, nil)
}

// guestDisk returns the device of the disk with a serial number, once it is there.
func guestDisk(ctx context.Context, serial string) (string, error) {
	for {
		files, _ := filepath.Glob("/sys/block/*/serial")
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == serial {
				return filepath.Join("/dev", filepath.Base(filepath.Dir(file))), nil
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return "", fmt.Errorf("the machine has no disk with the serial number %s", serial)
		}
	}
}

// guest does what the host asks.
type guest struct {
	agent *Agent
	mu    sync.Mutex
	files hostFiles
	// placed are the files of the last setup; program is what was started, nil before the first.
	placed  []guestlink.File
	program []string
}

// Setup brings network and files up to s, and starts the program when it is the first.
func (g *guest) Setup(ctx context.Context, s guestlink.Setup) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if farOff(time.Now(), s.Clock) {
		setClock(s.Clock)
	}
	if g.program == nil {
		if err := g.first(ctx, s); err != nil {
			return err
		}
	} else {
		g.agent.announceStandbys() // it may have been moved
	}
	if err := placeFiles("/", g.placed, s.Files); err != nil {
		return err
	}
	g.placed = s.Files
	if g.program == nil {
		g.agent.startWatchdog(context.Background(), time.Duration(s.WatchdogSeconds)*time.Second)
		return g.start(s.Program)
	}
	return nil
}

// Volumes brings the machine's volumes up to v.
func (g *guest) Volumes(_ context.Context, v guestlink.Volumes) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(g.files.unmountOthers(v.All, v.Gone), g.files.mountVolumes(v.All))
}

// farEnough is what a clock may be off when the host tells the time: on its way here it grows old.
const farEnough = 5 * time.Second

// farOff reports whether a clock that shows now has to be set to another time; the zero time: no.
func farOff(now, to time.Time) bool { return !to.IsZero() && now.Sub(to).Abs() > farEnough }

// first does what is done once.
func (g *guest) first(ctx context.Context, s guestlink.Setup) error {
	_ = linkUp(ctx, "lo")
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if slices.ContainsFunc(s.Interfaces, isMissing) {
		g.agent.loadDrivers(context.Background(), atOnce, modulesFor(s.Interfaces)...) // of adapters, which are any
	}
	for _, i := range s.Interfaces {
		if err := configureInterface(ctx, i); err != nil {
			return err
		}
	}
	g.agent.follow(s.Interfaces)
	if s.Home != "" {
		if err := g.files.mountHome(s.Home); err != nil {
			return err
		}
	}
	if err := g.files.mountVolumes(s.Volumes); err != nil {
		return err
	}
	if err := placeLibraries("/", s.Libraries); err != nil {
		return err
	}
	for _, d := range s.Dirs {
		if err := ownDir(d); err != nil {
			return err
		}
	}
	return g.takeDisks(ctx, s.Disks)
}

// ownDir makes a directory and what it is in, unless that is there.
func ownDir(d guestlink.Dir) error {
	if err := os.MkdirAll(filepath.Dir(d.Path), 0o755); err != nil {
		return err
	}
	err := os.Mkdir(d.Path, os.FileMode(d.Mode)&os.ModePerm)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return errors.Join(err, os.Chown(d.Path, int(d.UID), int(d.GID)))
}

// start starts the program, and ends the machine with it.
func (g *guest) start(program []string) error {
	if len(program) == 0 {
		return errors.New("the setup names no program")
	}
	console, err := os.OpenFile("/dev/console", os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = console.Close() }()
	init := g.agent.init
	pid, ended, err := init.start(process{name: filepath.Base(program[0]), args: program, files: []*os.File{nil, console, console}})
	if err != nil {
		return fmt.Errorf("start %s: %w", program[0], err)
	}
	g.program = program
	init.setAgent(pid)
	g.agent.log.Info("program started", "program", program[0], "after", time.Since(g.agent.begun))
	// What a guest has no use for before it can be reached is loaded in time that nobody else wants.
	go g.agent.loadDrivers(context.Background(), inSpareTime)
	go func() {
		status := <-ended
		g.agent.log.Warn("the program ended", "program", program[0], "status", describe(status))
		init.end(powerOff)
	}()
	return nil
}

// Dial connects to a port at the machine's first address, or at its loopback where nothing listens at the other, as a container's host does.
func (g *guest) Dial(ctx context.Context, port int) (net.Conn, error) {
	var dialer net.Dialer
	var firstErr error
	for _, address := range g.addresses() {
		conn, err := dialer.DialContext(ctx, "tcp4", netip.AddrPortFrom(address, uint16(port)).String())
		if err == nil {
			return conn, nil
		}
		firstErr = errors.Join(firstErr, err)
	}
	return nil, firstErr
}

func (g *guest) addresses() []netip.Addr {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	interfaces, err := net.InterfaceByName("eth0")
	if err != nil {
		return []netip.Addr{loopback}
	}
	list, _ := interfaces.Addrs()
	for _, a := range list {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Is4() {
			return []netip.Addr{prefix.Addr(), loopback}
		}
	}
	return []netip.Addr{loopback}
}
