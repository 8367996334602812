package bootagent

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/bootagent/bootctl"
)

// listen obeys the socket of bootctl, signals and the power button from now on.
func (a *Agent) listen() error {
	if err := os.MkdirAll(filepath.Dir(bootctl.Socket), 0o755); err != nil {
		return err
	}
	_ = os.Remove(bootctl.Socket)
	listener, err := net.Listen("unix", bootctl.Socket)
	if err != nil {
		return fmt.Errorf("listen for requests about the power: %w", err)
	}
	if err := os.Chmod(bootctl.Socket, 0o600); err != nil {
		return err
	}
	go bootctl.Serve(listener, a.answer)
	return nil
}

func (a *Agent) answer(r bootctl.Request) bootctl.Answer {
	switch r.Do {
	case "poweroff":
		a.init.end(powerOff)
	case "reboot":
		a.init.end(reboot)
	case "status":
		status := a.root.status(context.Background())
		status.Manifest = string(a.args.Manifest)
		return bootctl.Answer{OK: true, Status: &status}
	default:
		return bootctl.Answer{Error: fmt.Sprintf("%q is not one of poweroff, reboot and status", r.Do)}
	}
	return bootctl.Answer{OK: true}
}

// obeySignals ends the machine on the signals that busybox and System V programs send to an init, and on ctrl-alt-del.
func (a *Agent) obeySignals() {
	// Else ctrl-alt-del ends the machine at once.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGINT)
	go func() {
		for s := range signals {
			if s == syscall.SIGINT {
				a.init.end(reboot)
			} else {
				a.init.end(powerOff)
			}
		}
	}()
}

// Input events (Linux, include/uapi/linux/input.h): a time of two words, type, code, value.
const (
	inputEventBytes = 24
	inputKey        = 1
	inputKeyPower   = 116
)

// obeyPowerButton ends the machine when its power button is pressed, which is what a BMC's soft shutdown does too (ACPI 6.5, section 4.8.2.2).
func (a *Agent) obeyPowerButton() {
	devices, _ := filepath.Glob("/dev/input/event*")
	for _, device := range devices {
		file, err := os.Open(device)
		if err != nil {
			continue
		}
		go func() {
			defer file.Close()
			event := make([]byte, inputEventBytes)
			for {
				if n, err := file.Read(event); err != nil || n < inputEventBytes {
					return
				}
				if isPowerButton(event) {
					a.log.Warn("the power button was pressed")
					a.init.end(powerOff)
				}
			}
		}()
	}
}

func isPowerButton(event []byte) bool {
	return binary.NativeEndian.Uint16(event[16:]) == inputKey && binary.NativeEndian.Uint16(event[18:]) == inputKeyPower &&
		binary.NativeEndian.Uint32(event[20:]) == 1
}

// unmountDisks leaves file systems on disks clean; those in RAM end anyway.
func unmountDisks() {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range slices.Backward(lines) {
		fields := strings.Fields(line)
		if len(fields) < 3 || !strings.HasPrefix(fields[0], "/dev/") || fields[2] == "erofs" || fields[2] == "squashfs" {
			continue
		}
		target := strings.NewReplacer(`\040`, " ", `\011`, "\t").Replace(fields[1])
		if unix.Unmount(target, 0) != nil {
			_ = unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}
	}
	syscall.Sync()
}

// Wake-on-LAN by ethtool (Linux, include/uapi/linux/ethtool.h): struct ethtool_wolinfo is three words and a password of six bytes.
const (
	ethtoolGetWOL = 5
	ethtoolSetWOL = 6
	wakeMagic     = 1 << 5
)

// armWakeOnLAN lets the NIC switch the machine on at a magic packet.
func armWakeOnLAN(name string) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	info := struct {
		command, supported, options uint32
		password                    [6]byte
		_                           [2]byte
	}{command: ethtoolGetWOL}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&info)}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	call := func() error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
			return errno
		}
		return nil
	}
	if err := call(); err != nil {
		return err
	}
	if info.supported&wakeMagic == 0 {
		return fmt.Errorf("%s does not support waking by a magic packet", name)
	}
	info.command, info.options = ethtoolSetWOL, wakeMagic
	return call()
}
