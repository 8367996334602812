// Package guest runs a command in an emulated Debian machine of its own: another kernel, pure cgroup v2, a power switch.
//
// It exists for what the machine at hand can't show: another cgroup layout, a power cut. QEMU emulates in software, which works
// everywhere alike, so a guest's speed is never a figure of the product. A guest has no network but links to other guests (NewLink), sees of
// the host only the shared folders, read-only, and ends with the process that started it. Start with Start; EnsureImage makes what it boots.
package guest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Config is one machine and the command it runs.
type Config struct {
	Image     Image
	CPUs      int
	MemoryMiB int
	// Disks are raw image files, /dev/vdb and so on in the guest; what it wrote and flushed stays.
	Disks []string
	// Shares are host folders, seen read-only at the same path in the guest.
	Shares []string
	// Modules are kernel modules that are loaded before the command starts.
	Modules []string
	// Emulator is the path of QEMU; "" is qemu-system-x86_64 of the PATH.
	Emulator string
	// Adapters is the number of Ethernet adapters with 7 virtual functions each (igb), whose functions the guest can hand out: it has an IOMMU then.
	// Each is alone on its wire. QEMU has them since version 8.0.
	Adapters int
	// GPU gives the guest a display controller (bochs-display) that it can hand out, and an IOMMU. Its memory keeps what is written to it through resets.
	GPU bool
	// Links are network cards, eth0 and so on in the guest once it has the module virtio_net. Start takes them over.
	Links []Link
	// Dir is the command's working folder, Env is added to its environment (NAME=VALUE).
	Dir     string
	Env     []string
	Command []string
	// Output takes what the command prints, both streams.
	Output io.Writer
}

// Machine is a running guest.
type Machine struct {
	cmd     *exec.Cmd
	scratch string
	done    chan struct{}
	exit    int
	err     error
}

// ErrNoExitCode: the guest ended, or was cut off, before its command did.
var ErrNoExitCode = errors.New("the guest ended before its command did")

// Start boots the machine. It is cut off when ctx ends or the calling process does.
func Start(ctx context.Context, cfg Config) (*Machine, error) {
	scratch, err := os.MkdirTemp("", "nearmetal-guest-")
	if err != nil {
		return nil, fmt.Errorf("start a guest: %w", err)
	}
	control := filepath.Join(scratch, "control")
	if err := errors.Join(os.Mkdir(control, 0o755), os.WriteFile(filepath.Join(control, "run"), []byte(script(cfg)), 0o755)); err != nil {
		return nil, errors.Join(fmt.Errorf("start a guest: %w", err), os.RemoveAll(scratch))
	}
	m := &Machine{scratch: scratch, done: make(chan struct{})}
	m.cmd = exec.CommandContext(ctx, cmp.Or(cfg.Emulator, "qemu-system-x86_64"), arguments(cfg, scratch)...)
	// QEMU keeps the root's throw-away copy in TMPDIR.
	m.cmd.Env = append(os.Environ(), "TMPDIR="+scratch)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var problems bytes.Buffer
	m.cmd.Stdout, m.cmd.Stderr = cfg.Output, &problems
	for _, l := range cfg.Links {
		m.cmd.ExtraFiles = append(m.cmd.ExtraFiles, l.end)
		defer l.end.Close()
	}

	started := make(chan error)
	go func() {
		// The parent death signal follows the thread that forked, which must therefore outlive the guest.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := m.cmd.Start()
		started <- err
		if err == nil {
			m.exit, m.err = m.result(m.cmd.Wait(), problems.String())
			close(m.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start a guest: %w", err), os.RemoveAll(scratch))
	}
	return m, nil
}

// Wait returns the command's exit code once the machine is off, or ErrNoExitCode with the end of its console.
func (m *Machine) Wait() (int, error) {
	<-m.done
	return m.exit, m.err
}

// Cut takes the power away at once: what the guest had not flushed to its disks is lost.
func (m *Machine) Cut() { _ = m.cmd.Process.Kill() }

// result reads what the machine left and removes its scratch folder.
func (m *Machine) result(waitErr error, problems string) (int, error) {
	defer os.RemoveAll(m.scratch)
	status, _ := os.ReadFile(filepath.Join(m.scratch, "status"))
	if code, ok := strings.CutPrefix(strings.TrimSpace(string(status)), "exit "); ok {
		return strconv.Atoi(code)
	}
	console, _ := os.ReadFile(filepath.Join(m.scratch, "console"))
	return -1, fmt.Errorf("%w: qemu: %v %s\n%s", ErrNoExitCode, waitErr, problems, tail(string(console), 15))
}

// arguments is QEMU's command line. The serial ports are the console, the command's output and its exit code.
func arguments(cfg Config, scratch string) []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none",
		"-machine", machine(cfg), "-cpu", "max", "-smp", strconv.Itoa(cfg.CPUs), "-m", strconv.Itoa(cfg.MemoryMiB),
		"-kernel", cfg.Image.Kernel, "-initrd", cfg.Image.Initrd,
		"-append", kernelArguments(cfg),
		"-drive", "file=" + cfg.Image.Root + ",format=raw,if=virtio,snapshot=on",
		"-serial", "file:" + filepath.Join(scratch, "console"),
		"-chardev", "stdio,id=output,signal=off", "-serial", "chardev:output",
		"-serial", "file:" + filepath.Join(scratch, "status"),
		"-device", "virtio-rng-pci",
	}
	for _, disk := range cfg.Disks {
		args = append(args, "-drive", "file="+disk+",format=raw,if=virtio,cache=writeback")
	}
	args = append(args, handedOut(cfg)...)
	for i, l := range cfg.Links {
		args = append(args, l.arguments(i)...)
	}
	args = append(args, share("control", filepath.Join(scratch, "control"))...)
	for i, dir := range cfg.Shares {
		args = append(args, share("share"+strconv.Itoa(i), dir)...)
	}
	return args
}

// share is a host folder as a 9p file system of that tag, read-only.
func share(tag, dir string) []string {
	return []string{
		"-fsdev", "local,id=" + tag + ",path=" + dir + ",security_model=none,readonly=on",
		"-device", "virtio-9p-pci,fsdev=" + tag + ",mount_tag=" + tag,
	}
}

// script is what the guest runs: mount the shares, load the modules, set the environment, become the command.
func script(cfg Config) string {
	var b strings.Builder
	b.WriteString("set -e\n")
	for i, dir := range cfg.Shares {
		fmt.Fprintf(&b, "mkdir -p %s\nmount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro share%d %[1]s\n", quote(dir), i)
	}
	for _, module := range cfg.Modules {
		fmt.Fprintf(&b, "modprobe %s\n", quote(module))
	}
	for _, variable := range cfg.Env {
		name, value, _ := strings.Cut(variable, "=")
		fmt.Fprintf(&b, "export %s=%s\n", name, quote(value))
	}
	if cfg.Dir != "" {
		fmt.Fprintf(&b, "cd %s\n", quote(cfg.Dir))
	}
	words := slices.Clone(cfg.Command)
	for i := range words {
		words[i] = quote(words[i])
	}
	fmt.Fprintf(&b, "exec %s\n", strings.Join(words, " "))
	return b.String()
}

// quote makes one word of a POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
