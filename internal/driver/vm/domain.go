package vm

import (
	"bytes"
	_ "embed"
	"encoding/xml"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/machine/homelink"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
)

// emulator is QEMU as Debian has it.
const emulator = "/usr/bin/qemu-system-x86_64"

// translationMiB is a part of what resource.Reserve counts for a machine. A kernel that boots needs less.
const translationMiB = 48

// machineType is pinned, so that a saved machine goes on under a later QEMU as what it was.
const machineType = "pc-q35-7.2"

//go:embed domain.xml.tmpl
var domainTemplate string

// domain is a machine as libvirt gets it. All paths are in the view of its member, see view.
type domain struct {
	Name, UUID string
	// KVM: its processors are virtualized; emulated otherwise.
	KVM bool
	// TranslationMiB is what QEMU may keep of translated code where it emulates. By itself it would take up to 1 GiB for each machine.
	TranslationMiB int
	// CPUModel is that of its processors; "" is the host's, or all that QEMU can emulate.
	CPUModel    string
	MemoryBytes int64
	// PageKiB is the size of the huge pages that its memory is of, 0 for ordinary memory.
	PageKiB int64
	// CPUs of the host, one for each of the guest; SpareCPUs are for what else QEMU does.
	CPUs, SpareCPUs []int
	// Most is how many processors the guest can have, 0 in a machine whose size is fixed.
	Most int
	// RoomBytes is how much memory the guest can get besides that of its boot, PluggedBytes what it has of it. Blocks are the unit.
	RoomBytes, PluggedBytes, BlockBytes int64
	Cells                               []cell
	Sockets, Cores                      int
	// Queues is how many each NIC has.
	Queues                    int
	Kernel, Initrd, Arguments string
	Emulator, Machine         string
	Roots                     []rootDisk
	// Volumes are block volumes.
	Volumes []volumeDisk
	NICs    []nic
	// RootPorts are the numbers of those that are kept for functions. Functions are those that the machine starts with.
	RootPorts []int
	Functions []hostDevice
	// GPUs are the PCI functions of the GPUs that the machine has.
	GPUs    []hostDevice
	Console string
	// Display is the socket of its screen, "" without one.
	Display                string
	GuestSocket, GuestPort string
	AgentSocket, AgentPort string
	HomeSocket, HomePort   string
	// User is the UID and GID that QEMU runs as: the first of the cluster's.
	User uint32
}

type rootDisk struct{ Path, Target, Serial string }

type nic struct {
	MAC, Device string
	// MTU is what a virtio device tells its guest: that which was chosen for the network. Others change while the machine runs, and are 0 here.
	MTU int
	// Standby is its alias where it stands in for a function, "" elsewhere.
	Standby string
}

// Bound reports whether the guest's NUMA nodes have memory of chosen nodes of the host.
func (d domain) Bound() bool { return len(d.Cells) > 0 && len(d.Cells[0].HostNodes) > 0 }

// newDomain is pure: the machine of a member, in a chassis. v is its view.
func newDomain(m driver.Member, image environment.Image, v view, uuid string, h hardware, c *chassis) domain {
	d := newMachine(m, v, uuid, h)
	d.Kernel, d.Initrd, d.Arguments = v.kernel(), v.initrd(), arguments(image, h.KVM)
	d.build(&m.Assignment, h, c)
	d.HomeSocket, d.HomePort = v.link(fileHome), homelink.Port
	d.GuestSocket, d.GuestPort = v.run(fileGuest), guestlink.Port
	d.AgentSocket, d.AgentPort = path.Join(v.control(), "agent.sock"), memberconfig.SerialPort
	for n := range image.Layers {
		d.Roots = append(d.Roots, rootDisk{Path: v.root(n), Target: "vd" + string(rune('a'+n)), Serial: guestlink.RootSerial(n)})
	}
	d.Volumes = volumeDisks(m, v, true)
	d.keepRootPorts(&m.Assignment)
	return d
}

// newMachine is what machines have whatever boots in them.
func newMachine(m driver.Member, v view, uuid string, h hardware) domain {
	a := &m.Assignment
	d := domain{
		Name: a.ID, UUID: uuid, KVM: h.KVM, TranslationMiB: translationMiB, CPUModel: a.CPUModel, MemoryBytes: a.MemoryBytes(), CPUs: vcpus(a), Emulator: emulator, Machine: machineType,
		Console: v.run(fileConsole), User: a.UserIDs.First, Queues: queuesOf(a), Cells: cellsOf(a, h.NUMANodes),
	}
	page, _ := a.HugePages()
	d.PageKiB = page >> 10
	if a.Display {
		d.Display = v.display(fileDisplay)
	}
	if h.KVM {
		d.SpareCPUs = h.SpareCPUs
	}
	d.Sockets, d.Cores = topology(len(d.CPUs), d.Cells)
	d.NICs = nicsOf(m)
	return d
}

// nicsOf returns the NICs of a member's machine, in the order of its ports.
func nicsOf(m driver.Member) (nics []nic) {
	a := &m.Assignment
	for n := range a.Ports {
		if port := fabric.PortOf(a, n); hasNIC(port) {
			nics = append(nics, nic{
				MAC: a.Ports[n].MAC, Device: placeOf(port, 0).At, MTU: chosenMTU(m.Networks, a.Ports[n].Network), Standby: standbyAlias(port, n),
			})
		}
	}
	return nics
}

// chosenMTU returns the MTU that was chosen for a network, 0 for none.
func chosenMTU(networks []api.Network, uid string) int {
	i := slices.IndexFunc(networks, func(n api.Network) bool { return n.UID == uid })
	if i < 0 {
		return 0
	}
	return networks[i].MTU
}

// build puts a machine into its chassis.
func (d *domain) build(a *api.Assignment, h hardware, c *chassis) {
	if c == nil {
		return
	}
	d.Most, d.Queues, d.Cells = c.Processors, c.Queues, c.cells(a, h.NUMANodes)
	d.Sockets, d.Cores = topology(c.Processors, d.Cells)
	if c.RoomBytes > 0 {
		d.MemoryBytes = c.BootBytes + c.RoomBytes
		d.RoomBytes, d.PluggedBytes, d.BlockBytes = c.RoomBytes, c.plugged(a), memoryBlock
		// Addresses above 4 GiB would make the kernel set 64 MiB apart for devices with shorter ones, and there are none.
		d.Arguments += " swiotlb=noforce"
	}
}

// vcpus returns the host's CPU for each slot of the member. Where slots outnumber CPUs, they share them.
func vcpus(a *api.Assignment) []int {
	slots := max(len(a.Slots), len(a.CPUs))
	cpus := make([]int, slots)
	for n := range cpus {
		cpus[n] = a.CPUs[n%len(a.CPUs)]
	}
	return cpus
}

// arguments is the kernel's command line. A kernel that panics ends its machine at once: the member is replaced.
//
// An emulated machine must not check its timer: the check counts interrupts in a loop, and the kernel panics where the host is too busy to
// deliver four of them in time. A kernel that finds KVM omits the check by itself.
func arguments(image environment.Image, kvm bool) string {
	var formats []string
	for _, l := range image.Layers {
		formats = append(formats, string(l.Format))
	}
	words := []string{guestlink.Argument + "=" + strings.Join(formats, ","), "panic=-1"}
	if !kvm {
		words = append(words, "no_timer_check")
	}
	if image.Kernel.Arguments != "" {
		words = append([]string{image.Kernel.Arguments}, words...)
	}
	return strings.Join(words, " ")
}

// xml renders the machine.
func (d domain) xml() (string, error) {
	functions := template.FuncMap{"xml": escaped, "cpuset": cpuset, "order": func(n int) int { return n + 1 }}
	tmpl, err := template.New("domain").Funcs(functions).Parse(domainTemplate)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if err := tmpl.Execute(&out, d); err != nil {
		return "", err
	}
	return out.String(), nil
}

func escaped(value any) (string, error) {
	var out bytes.Buffer
	err := xml.EscapeText(&out, []byte(fmt.Sprint(value)))
	return out.String(), err
}

func cpuset(cpus []int) string {
	var words []string
	for _, c := range cpus {
		words = append(words, strconv.Itoa(c))
	}
	return strings.Join(words, ",")
}
