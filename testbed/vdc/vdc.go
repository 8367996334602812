// Package vdc is a virtual data centre: machines that are off, their power switches and networks, and faults on demand.
//
// Machines are QEMU's (in software everywhere, with KVM where asked for), kept by a libvirt daemon of their own. Their BMCs are
// emulated by sushy-tools (Redfish) and virtualbmc (IPMI); a listener starts machines on Wake-on-LAN packets. Everything lives in network,
// mount and PID namespaces that end with the process that called Start, however that ends. From outside it is cables: veth links whose
// outer ends reach the provisioning network, the BMCs and, if asked for, the data network. Nothing in here serves DHCP.
//
// It must never touch the host's own libvirt, links or files. Start with Start; cmd vdcctl is the same by hand.
package vdc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Config says what to bring up. Zero fields get the defaults told.
type Config struct {
	// Name tells data centres apart: one to eight lower-case letters and digits; "dc".
	Name string
	// Machines are what stands in it; none is an error.
	Machines []MachineConfig
	// ProvisioningLink and BMCLink name the outer ends of the cables; "nmprov0" and "nmbmc0". DataLink may stay empty: no cable.
	ProvisioningLink, BMCLink, DataLink string
	// Namespace is where the outer ends go, as a path such as /proc/PID/ns/net; empty: the caller's own.
	Namespace string
	// BMCNetwork is theirs: its first address is put on BMCLink, the machines' BMCs have those from the eleventh on; 10.98.0.0/24.
	// Data centres whose cables end in one namespace need different ones.
	BMCNetwork netip.Prefix
	// Switch makes the data network an Open vSwitch in userspace, which a site can manage; without it, it is a bridge that passes all frames to all.
	Switch bool
	// Emulator is the QEMU of the machines with SRIOV, 8.0 or later; by default what NEARMETAL_QEMU10 names ("make qemu10" makes it).
	Emulator string
	// KVM uses it instead of emulation in software. It must work.
	KVM bool
	// Log, when set, is told what happens, a line each.
	Log func(format string, args ...any)
}

// MachineConfig is one machine.
type MachineConfig struct {
	// Name is of lower-case letters, digits and hyphens, 13 at most.
	Name     string
	Firmware api.Firmware
	// CPUs and MemoryMiB default to 2 and 1024.
	CPUs, MemoryMiB int
	// DiskBytes are the sizes of its disks, raw and sparse; nil: one of 4 GiB. An empty list: none.
	DiskBytes []int64
	// DiskRate bounds what is read and written of each disk, in bytes per second, but not of an NVMe one; 0: no bound.
	DiskRate int64
	// SATA attaches its disks to a SATA controller instead of by virtio.
	SATA bool
	// NVMe makes the last of its disks an NVMe one, of QEMU's model of a controller.
	NVMe bool
	// TPM gives the machine an emulated TPM 2.0, which keeps its state while the machine is off. It needs UEFI firmware and the Debian package swtpm-tools.
	TPM bool
	// Undriven adds a storage controller that the environments of these tests have no driver for (AMD 53C974).
	Undriven bool
	// SRIOV makes the NIC on the data network an adapter with seven virtual functions (Intel 82576, driver igb), and gives the machine an IOMMU
	// (Intel VT-d). It needs a QEMU that models them, Config.Emulator, and less than 2816 MiB of memory.
	SRIOV bool
	// GPU gives the machine a display controller without a driver of the host's (bochs-display), alone behind a root port, whose memory keeps what is
	// written to it through resets, and an IOMMU (Intel VT-d).
	GPU bool
	// HostInterface lets the machine reach its BMC by KCS. Its IPMI BMC is OpenIPMI's ipmi_sim then, which has users of its own and none of the faults of
	// SetBMCFault; its Redfish service stays and knows nothing of those users.
	HostInterface HostInterface
	// Watchdog is a hardware watchdog (i6300esb) that resets the machine.
	Watchdog bool
	// Serial is the serial number in SMBIOS (default: "NM-" and its name), OEMStrings are those of SMBIOS type 11.
	Serial     string
	OEMStrings []string
}

// Machine is how to reach one machine. Users and passwords are the same at Redfish and IPMI.
type Machine struct {
	Name     string       `json:"name"`
	Firmware api.Firmware `json:"firmware"`
	// MAC is of its NIC on the provisioning network, DataMAC of that on the data network.
	MAC     string `json:"mac"`
	DataMAC string `json:"data_mac"`
	// UUID is the system's, at Redfish, in SMBIOS and in DHCP (option 97).
	UUID string `json:"uuid"`
	// RedfishURL is of the service all machines share in this way, SecureURL the same over TLS with a certificate of that SHA-256.
	RedfishURL        string `json:"redfish_url"`
	SecureURL         string `json:"secure_url"`
	CertificateSHA256 string `json:"certificate_sha256"`
	// IPMI is HOST:PORT.
	IPMI     string `json:"ipmi"`
	User     string `json:"user"`
	Password string `json:"password"`
	// PasswordFile holds it alone.
	PasswordFile string `json:"password_file"`
	// Console is a TCP port that its serial console can be reached at, whether it is on or off, by many at once.
	Console string `json:"console"`
	// SwitchPort is the port of the managed switch that its NIC on the data network is connected to; empty where there is no such switch.
	SwitchPort string `json:"switch_port,omitempty"`
	// ConsoleLog is the file with everything its console printed. It goes with the data centre.
	ConsoleLog string `json:"console_log"`

	bmc    netip.Addr
	config MachineConfig
	// cable is the bridge inside that its NIC on the data network is connected to.
	cable string
	// vmPort is where its BMC waits for QEMU.
	vmPort int
	// emulator is the QEMU of a machine with SR-IOV.
	emulator string
	fault    *bmcFault
	redfish  *redfishProxy
	// variables are nil for BIOS firmware.
	variables *bootVariables
	// hung and unplugged are faults in force.
	hung, unplugged *atomic.Bool
}

// DataCentre is a running one.
type DataCentre struct {
	config   Config
	dir      string
	machines []*Machine
	inside   netns.Handle
	outside  netns.Handle
	keeper   *keeper
	virt     *hypervisor
	// stop ends what this process itself does inside; background waits for that.
	stop       context.CancelFunc
	background sync.WaitGroup
	closing    sync.Once
	closeErr   error
	// down is closed once another process asked for the end.
	down     chan struct{}
	downOnce sync.Once
}

// startDeadline is for libvirt and the emulated BMCs to answer, on a machine that is busy with much else.
const startDeadline = 2 * time.Minute

// Start brings a data centre up, all machines off. Close it; it also ends with ctx and with this process. It needs root.
func Start(ctx context.Context, cfg Config) (*DataCentre, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("a virtual data centre needs root, to make namespaces and links")
	}
	venv, err := ensurePeers(ctx)
	if err != nil {
		return nil, err
	}
	dc := &DataCentre{config: cfg, dir: Dir(cfg.Name), down: make(chan struct{})}
	if err := dc.start(ctx, venv); err != nil {
		return nil, errors.Join(fmt.Errorf("start the virtual data centre %q: %w", cfg.Name, err), dc.Close())
	}
	context.AfterFunc(ctx, func() { _ = dc.Close() })
	return dc, nil
}

// start does it step by step; Close undoes as many as were taken.
func (dc *DataCentre) start(ctx context.Context, venv string) (err error) {
	lock, err := claim(dc.dir)
	if err != nil {
		return err
	}
	defer func() {
		if dc.keeper == nil {
			err = errors.Join(err, release(dc.dir, lock))
		}
		lock.Close()
	}()
	if dc.machines, err = dc.config.machines(dc.dir); err != nil {
		return err
	}
	if err := dc.wire(); err != nil {
		return err
	}
	if err := dc.writeFiles(venv); err != nil {
		return err
	}
	if dc.keeper, err = startKeeper(dc.dir, lock, dc.inside); err != nil {
		return err
	}
	deadline, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	if err := dc.setUpSwitch(deadline); err != nil {
		return dc.explain(err)
	}
	if dc.virt, err = connectHypervisor(deadline, dc.dir, dc.keeper.ended); err != nil {
		return dc.explain(err)
	}
	for _, m := range dc.machines {
		if err := dc.virt.define(m, dc.dir, dc.config.KVM); err != nil {
			return dc.explain(err)
		}
	}
	// What follows lives as long as the data centre, not as the call.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	dc.stop = stop
	if err := dc.serve(running); err != nil {
		return err
	}
	if err := dc.waitForBMCs(deadline); err != nil {
		return dc.explain(err)
	}
	if err := dc.writeInventory(); err != nil {
		return err
	}
	return dc.serveControl(running)
}

// explain adds what the programs inside said last.
func (dc *DataCentre) explain(err error) error {
	for _, name := range []string{"inside.log", "switch.log", "libvirtd.log", "redfish.log", "ipmi.log"} {
		text, _ := os.ReadFile(filepath.Join(dc.dir, "log", name))
		if len(text) > 0 {
			err = fmt.Errorf("%w\n%s ends with:\n%s", err, name, text[max(0, len(text)-1000):])
		}
	}
	return err
}

// writeInventory tells other programs and people what there is.
func (dc *DataCentre) writeInventory() error {
	text, err := json.MarshalIndent(dc.Machines(), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dc.dir, "machines.json"), append(text, '\n'), 0o600)
}

// Machines are all machines, in the order they were asked for.
func (dc *DataCentre) Machines() []Machine {
	all := make([]Machine, len(dc.machines))
	for i, m := range dc.machines {
		all[i] = *m
	}
	return all
}

// Machine is the one of that name.
func (dc *DataCentre) Machine(name string) (Machine, error) {
	m, err := dc.find(name)
	if err != nil {
		return Machine{}, err
	}
	return *m, nil
}

func (dc *DataCentre) find(name string) (*Machine, error) {
	for _, m := range dc.machines {
		if m.Name == name {
			return m, nil
		}
	}
	return nil, fmt.Errorf("no machine %q in the virtual data centre %q", name, dc.config.Name)
}

// Name is the data centre's.
func (dc *DataCentre) Name() string { return dc.config.Name }

// Folder holds machines.json, the logs and libvirt's socket (run/libvirt-sock), until Close.
func (dc *DataCentre) Folder() string { return dc.dir }

// Close ends all machines at once and takes everything away. Closing twice is no error.
func (dc *DataCentre) Close() error {
	dc.closing.Do(func() {
		if dc.stop != nil {
			dc.stop()
		}
		if dc.virt != nil {
			dc.virt.close()
		}
		dc.background.Wait()
		if dc.keeper != nil {
			dc.closeErr = dc.keeper.end()
		}
		dc.closeErr = errors.Join(dc.closeErr, dc.unwire())
	})
	return dc.closeErr
}

func (dc *DataCentre) logf(format string, args ...any) {
	if dc.config.Log != nil {
		dc.config.Log(format, args...)
	}
}
