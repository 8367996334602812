package modelhost

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov"
)

// fault makes calls go wrong whose description contains its text.
type fault struct {
	text  string
	times int
	// err is returned; hang blocks until it says whether the call does its work after all; neither: the call reports success and changes nothing.
	err  error
	hang chan bool
}

// meets reports whether a call is to go wrong. Reading can't be ignored.
func (f *fault) meets(call string) bool {
	ignored := f.err == nil && f.hang == nil
	return f.times > 0 && strings.Contains(call, f.text) && (!ignored || strings.HasPrefix(call, "write ") || strings.HasPrefix(call, "netlink set "))
}

// ErrCrashed is what all calls return after the end of the program that makes them.
var ErrCrashed = errors.New("the program has ended")

// errHung is what calls return that hung until their fault was taken back.
var errHung = errors.New("the call hung")

// do carries out one call, unless something is to go wrong.
func (h *Host) do(call string, do func() error) error {
	h.mu.Lock()
	if h.crash > 0 {
		h.crash--
		h.crashed = h.crash == 0
	}
	if h.crashed {
		h.mu.Unlock()
		return ErrCrashed
	}
	i := slices.IndexFunc(h.faults, func(f *fault) bool { return f.meets(call) })
	if i < 0 {
		defer h.mu.Unlock()
		return do()
	}
	f := h.faults[i]
	f.times--
	h.mu.Unlock()
	if f.hang == nil {
		return f.err
	}
	if lands := <-f.hang; !lands {
		return errHung
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return do()
}

// Fail makes the next calls whose description contains text fail. Descriptions are like "write PATH TEXT" and "netlink set PCI SETTING".
func (h *Host) Fail(text string, times int, err error) {
	h.fault(&fault{text: text, times: times, err: err})
}

// Ignore makes such calls succeed and change nothing.
func (h *Host) Ignore(text string, times int) { h.fault(&fault{text: text, times: times}) }

// Hang makes the next such call hang until Unhang.
func (h *Host) Hang(text string) { h.fault(&fault{text: text, times: 1, hang: make(chan bool, 1)}) }

func (h *Host) fault(f *fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, f)
}

// Unhang ends what hangs without effect, and takes all faults back.
func (h *Host) Unhang() { h.unhang(false) }

// Land lets what hangs do its work after all, which nobody awaits any more, and takes all faults back.
func (h *Host) Land() { h.unhang(true) }

func (h *Host) unhang(lands bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.faults {
		if f.hang != nil {
			f.hang <- lands
		}
	}
	h.faults = nil
}

// CrashAfter ends the program that makes the calls after some of them, until Restart.
func (h *Host) CrashAfter(calls int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.crash = calls
}

// Restart lets a new program make calls.
func (h *Host) Restart() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.crash, h.crashed = 0, false
}

// Reboot restarts the machine: adapters have no virtual functions, but for those that a driver makes when it is loaded, and interfaces get new names.
func (h *Host) Reboot() {
	h.Unhang()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.boots++
	h.crash, h.crashed = 0, false
	for _, pf := range h.pfs() {
		a := h.adapters[pf]
		h.dropFunctions(a)
		h.start(a)
	}
}

// pfs are the adapters in a fixed order.
func (h *Host) pfs() []string {
	all := make([]string, 0, len(h.adapters))
	for pf := range h.adapters {
		all = append(all, pf)
	}
	slices.Sort(all)
	return all
}

// ResetAdapter makes an adapter forget what it was told about its functions, as some do when their firmware recovers.
func (h *Host) ResetAdapter(pf string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for index, r := range h.adapters[pf].reports {
		*r = sriov.Report{SpoofCheck: sriov.On, Trusted: sriov.Off, Link: r.Link, HasGUID: r.HasGUID, GUID: h.adapters[pf].virtual[index]}
	}
}

// CountByHand changes the number of functions as an operator does, whoever uses them. It changes nothing where the number is a module option.
func (h *Host) CountByHand(pf string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.adapters[pf]
	if a.config.Kind == MLX4 || a.driver != a.config.Kind.driver() {
		return
	}
	h.dropFunctions(a)
	h.makeFunctions(a, n)
}

// Rename gives an adapter's interface a new name, as udev does late.
func (h *Host) Rename(pf string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a := h.adapters[pf]; a.netdev != "" {
		h.names++
		h.named(&a.device, fmt.Sprintf("enp%d", h.names))
	}
}

// Use makes a function's user leave something in it, and open its IOMMU group if it is with vfio-pci. Index -1 is the whole port.
func (h *Host) Use(pf string, index int, memory string, open bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.device(pf, index); d != nil {
		d.memory, d.open = memory, open
	}
}

// Up sets the interface of a function up, as the node's own services do.
func (h *Host) Up(pf string, index int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.device(pf, index); d != nil {
		d.up = true
	}
}

// Hide moves the interface of a function to another network namespace, as for a container: it can't be seen from here any more.
func (h *Host) Hide(pf string, index int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.device(pf, index)
	h.root.remove("/sys/bus/pci/devices/" + d.pci + "/net")
	h.root.remove("/sys/class/net/" + d.netdev)
}

// Deafen lets the driver of a function not hear the adapter at so many of its next starts.
func (h *Host) Deafen(pf string, index, starts int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.device(pf, index).deaf = starts
}

// Child makes a child for a partition on the interface of a function, as members do; the kernel lists it beside its parent.
func (h *Host) Child(pf string, index int, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.device(pf, index)
	dir := "/sys/bus/pci/devices/" + d.pci + "/net/"
	parent, _ := h.root.find(dir + d.netdev + "/ifindex").read()
	h.names++
	h.root.put(dir+name+"/dev_port", value("0"))
	h.root.put(dir+name+"/ifindex", value(strconv.Itoa(100+h.names)))
	h.root.put(dir+name+"/iflink", value(parent))
}

// Unplug takes the cable of an adapter out, or puts it in again.
func (h *Host) Unplug(pf string, out bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.adapters[pf].noCarrier = out
}

func (h *Host) device(pf string, index int) *device {
	a := h.adapters[pf]
	switch {
	case index < 0:
		return &a.device
	case index < len(a.functions):
		return a.functions[index]
	}
	return nil
}

// Truth is what a function really is.
type Truth struct {
	There          bool
	Driver, Memory string
	sriov.Report
	// PKeys are the partition keys that the function can use (mlx4), with their membership bit.
	PKeys []int
}

// Truth returns what a function really is, without a call of the kernel.
func (h *Host) Truth(pf string, index int) Truth {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.device(pf, index)
	if d == nil {
		return Truth{}
	}
	a := d.pf
	t := Truth{There: true, Driver: d.driver, Memory: d.memory}
	if r := a.reports[index]; r != nil {
		t.Report = *r
	}
	if a.config.Kind == MLX4 && index >= 0 {
		t.GUID = a.granted[index+1]
		for _, at := range a.maps[index+1] {
			if at < pkeyTable-1 && a.pkeys[at] != 0 {
				t.PKeys = append(t.PKeys, a.pkeys[at])
			}
		}
	}
	return t
}
