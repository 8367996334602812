package vm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/vm"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/machine/homelink"
)

// BenchmarkStart tells how long an emulated machine takes until the program in it says its first word: by the driver, with all that it does for a
// member, and by the QEMU command that one would give by hand, on the same CPU, with the same kernel, disk, shares and setup. Both take turns, and who is
// first changes. Run it as root: NEARMETAL_GUESTS=1 go test -run '^$' -bench Start -benchtime 6x ./internal/driver/vm
func BenchmarkStart(b *testing.B) {
	r := newRig(b, needGuests(b))
	// Kept, as on a node with machines: libvirtd runs, and the initial RAM disk is made.
	if err := r.Start(b.Context(), r.member(b)); err != nil {
		b.Fatal(err)
	}
	var ratios, driven, byHand []time.Duration
	for n := 0; b.Loop(); n++ {
		var d, h time.Duration
		if n%2 == 0 {
			d = r.timeDriver(b)
		}
		h = r.timeHand(b)
		if n%2 == 1 {
			d = r.timeDriver(b)
		}
		driven, byHand, ratios = append(driven, d), append(byHand, h), append(ratios, 1000*d/h)
	}
	b.ReportMetric(0, "ns/op")
	b.Logf("by the driver %v, by hand %v, ratios in thousandths %v", driven, byHand, ratios)
}

func (r *rig) timeDriver(b *testing.B) time.Duration {
	b.Helper()
	m := r.member(b)
	m.Assignment.CPUs = []int{0}
	begun := time.Now()
	if err := r.Start(b.Context(), m); err != nil {
		b.Fatal(err)
	}
	took := time.Since(begun)
	if err := r.Clean(b.Context(), m.Assignment.ID); err != nil {
		b.Fatal(err)
	}
	return took
}

// timeHand starts the same machine without libvirt.
func (r *rig) timeHand(b *testing.B) time.Duration {
	b.Helper()
	m := r.member(b)
	id := m.Assignment.ID
	initrds, err := filepath.Glob(filepath.Join(r.cfg.StateDir, "libvirt", "boot", "*"))
	if err != nil || len(initrds) != 1 {
		b.Fatalf("initial RAM disks %v, %v", initrds, err)
	}
	image, err := r.cfg.Images.Image(digest)
	if err != nil {
		b.Fatal(err)
	}
	begun := time.Now()
	port := fabric.PortOf(&m.Assignment, 0)
	if err := r.cfg.Attacher.Attach(b.Context(), port, fabric.TAP(port)); err != nil {
		b.Fatal(err)
	}
	socket := filepath.Join(m.ControlDir, "guest.sock")
	home, err := r.ServeHome(m)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := vm.EndHome(r.Driver, context.Background(), id); err != nil {
			b.Error(err)
		}
	}()
	cmd := exec.Command("taskset", "-c", "0", "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,tb-size=48", "-cpu", "max", "-m", "384", "-nodefaults", "-display", "none", "-no-reboot",
		"-kernel", image.Kernel.Path, "-initrd", initrds[0], "-append", image.Kernel.Arguments+" "+guestlink.Argument+"=erofs panic=-1", "-serial", "null",
		"-drive", "file="+image.Layers[0].Path+",format=raw,if=none,id=d,readonly=on", "-device", "virtio-blk-pci,drive=d,serial="+guestlink.RootSerial(0),
		"-device", "virtio-serial-pci", "-chardev", "socket,id=g,server=on,wait=off,path="+socket, "-device", "virtserialport,chardev=g,name="+guestlink.Port,
		"-chardev", "socket,id=a,path="+filepath.Join(m.ControlDir, "agent.sock"), "-device", "virtserialport,chardev=a,name=nearmetal.agent",
		"-chardev", "socket,id=h,path="+home, "-device", "virtserialport,chardev=h,name="+homelink.Port,
		"-netdev", "tap,id=n,script=no,downscript=no,ifname="+fabric.TAP(port).At, "-device", "virtio-net-pci,netdev=n,mac="+port.MAC, "-device", "virtio-rng-pci")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err := r.cfg.Attacher.Detach(context.Background(), id); err != nil {
			b.Error(err)
		}
	}()
	client := guestlink.NewClient(func(ctx context.Context) (net.Conn, error) { return dialWhenThere(ctx, socket) })
	defer client.Close()
	setup := guestlink.Setup{
		Hostname: m.Assignment.Member, Home: "/home",
		Dirs:       []guestlink.Dir{{Path: "/home/hpc", Mode: 0o700, UID: 1000, GID: 1000}},
		Interfaces: []guestlink.Interface{{MAC: port.MAC, Name: "eth0", Address: m.Networks[0].Prefix, MTU: 1500}}, Program: []string{guestlink.ProgramInGuest},
	}
	for _, f := range m.Files {
		setup.Files = append(setup.Files, guestlink.File{Path: f.Path, Content: f.Content, Mode: f.Mode})
	}
	if err := client.Setup(b.Context(), setup); err != nil {
		b.Fatal(err)
	}
	if err := r.accept(b.Context(), id); err != nil {
		b.Fatal(err)
	}
	return time.Since(begun)
}

// dialWhenThere connects to a socket that QEMU is about to make.
func dialWhenThere(ctx context.Context, path string) (net.Conn, error) {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "unix", path)
		if err == nil || ctx.Err() != nil || !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) {
			return conn, err
		}
		<-look.C
	}
}

// BenchmarkIdle tells what idle machines cost their host: the time that QEMU, libvirtd and this process, which stands for the agent, take in 20
// seconds, in which it asks for machines that hang as often as the agent does.
func BenchmarkIdle(b *testing.B) {
	const machines, quiet, examined = 2, 20 * time.Second, 5 * time.Second
	r := newRig(b, needGuests(b))
	var all []driver.Member
	for range machines {
		m := r.member(b)
		m.Files = m.Files[:1] // it counts nothing
		if err := r.Start(b.Context(), m); err != nil {
			b.Fatal(err)
		}
		all = append(all, m)
	}
	look := time.NewTicker(examined)
	defer look.Stop()
	for b.Loop() {
		pids := []int{os.Getpid()}
		for pid := range childrenNamed(b, "libvirtd") {
			pids = append(pids, pid)
		}
		for _, m := range all {
			pid, err := strconv.Atoi(pidOf(b, r, m.Assignment.ID))
			if err != nil {
				b.Fatal(err)
			}
			pids = append(pids, pid)
		}
		before := ticksOf(b, pids)
		for begun := time.Now(); time.Since(begun) < quiet; <-look.C {
			if _, err := r.Hung(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		after := ticksOf(b, pids)
		var text []string
		for n, pid := range pids {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			text = append(text, fmt.Sprintf("%s %d ms", strings.TrimSpace(string(name)), (after[n]-before[n])*10))
		}
		b.Logf("in %v: %s", quiet, strings.Join(text, ", "))
	}
	b.ReportMetric(0, "ns/op")
}

// ticksOf is the processor time of processes, in the hundredths of a second of proc_pid_stat(5).
func ticksOf(b *testing.B, pids []int) (ticks []int) {
	b.Helper()
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			b.Fatal(err)
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		user, userErr := strconv.Atoi(fields[11])
		system, systemErr := strconv.Atoi(fields[12])
		if err := errors.Join(userErr, systemErr); err != nil {
			b.Fatal(err)
		}
		ticks = append(ticks, user+system)
	}
	return ticks
}
