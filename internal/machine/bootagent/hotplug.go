package bootagent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Where the kernel shows processors and memory (Documentation/ABI/testing, sysfs-devices-system-cpu and sysfs-devices-memory).
const (
	processorsDir = "/sys/devices/system/cpu"
	onlineNewly   = "/sys/devices/system/memory/auto_online_blocks"
)

// obeyHotplug uses the processors and the memory that the host adds to this machine. The kernel only announces a new processor, and waits for a
// program to bring it online. The kernel releases processors by itself when the host asks.
func (a *Agent) obeyHotplug() {
	// Movable memory holds nothing of the kernel's own, so that the host can have it back.
	if err := os.WriteFile(onlineNewly, []byte("online_movable"), 0); err != nil {
		a.log.Warn("memory that the host adds may not go back to the host", "error", err)
	}
	if err := a.modules.load("virtio_mem"); err != nil {
		a.log.Warn("memory that the host adds is not used", "error", err)
	}
	socket, err := openUevents() // before the first look, so that no processor is missed between
	if err != nil {
		a.log.Warn("processors that the host adds are not used", "error", err)
		return
	}
	go func() {
		defer func() { _ = unix.Close(socket) }()
		a.bringOnline(presentProcessors(processorsDir)...)
		buffer := make([]byte, 64<<10)
		for {
			n, _, err := unix.Recvfrom(socket, buffer, 0)
			switch {
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.ENOBUFS): // events were lost
				a.bringOnline(presentProcessors(processorsDir)...)
			case err != nil:
				a.log.Warn("processors that the host adds are no longer used", "error", err)
				return
			default:
				if processor := newProcessor(buffer[:n]); processor != "" {
					a.bringOnline(processor)
				}
				if nic := newNIC(buffer[:n]); nic != "" {
					a.arrived(nic)
				}
				if isGoneNIC(buffer[:n]) {
					a.announceStandbys()
				}
			}
		}
	}()
}

// bringOnline brings processors online, each given by its directory's name.
func (a *Agent) bringOnline(processors ...string) {
	for _, name := range processors {
		err := os.WriteFile(filepath.Join(processorsDir, name, "online"), []byte("1"), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the first processor is always online, and has no such file
			a.log.Warn("a processor can't be brought online", "processor", name, "error", err)
		}
	}
}

// presentProcessors lists the processors of the machine, such as cpu3, whether they are online or not.
func presentProcessors(dir string) (names []string) {
	found, _ := filepath.Glob(filepath.Join(dir, "cpu[0-9]*"))
	for _, path := range found {
		names = append(names, filepath.Base(path))
	}
	return names
}

// newNIC returns the name of the network interface that a kernel event announces, or "".
func newNIC(message []byte) string {
	event := parseUevent(message)
	if event["SUBSYSTEM"] == "net" && event["ACTION"] == "add" {
		return event["INTERFACE"]
	}
	return ""
}

// isGoneNIC reports whether a kernel event says that a network interface is gone.
func isGoneNIC(message []byte) bool {
	event := parseUevent(message)
	return event["SUBSYSTEM"] == "net" && event["ACTION"] == "remove"
}

// newProcessor returns the name of the processor that a kernel event announces, or "".
func newProcessor(message []byte) string {
	event := parseUevent(message)
	dir, name := filepath.Split(event["DEVPATH"])
	if event["ACTION"] != "add" || event["SUBSYSTEM"] != "cpu" || dir != strings.TrimPrefix(processorsDir, "/sys")+"/" {
		return ""
	}
	return name
}
