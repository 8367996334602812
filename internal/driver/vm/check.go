package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
)

var (
	errNoLibvirt = errors.New("libvirtd is missing, which keeps virtual machines; run: apt-get install libvirt-daemon libvirt-daemon-driver-qemu")
	errNoQEMU    = errors.New("QEMU is missing; run: apt-get install qemu-system-x86")
	errNotRoot   = errors.New("virtual machines need root, for their networks; run the agent with sudo")
)

// Missing returns what a host lacks to carry virtual machines at all, one problem each. It changes nothing.
func Missing() []error {
	var problems []error
	if runtime.GOARCH != "amd64" {
		problems = append(problems, fmt.Errorf("virtual machines are implemented for x86_64 only, and this host is %s", runtime.GOARCH))
	}
	if _, err := exec.LookPath("libvirtd"); err != nil {
		problems = append(problems, errNoLibvirt)
	}
	if _, err := os.Stat(emulator); err != nil {
		problems = append(problems, errNoQEMU)
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		problems = append(problems, errors.New("/dev/net/tun is missing, which connects machines to networks; run: modprobe tun"))
	}
	if os.Geteuid() != 0 {
		problems = append(problems, errNotRoot)
	}
	return problems
}

// Check reports what this host lacks to carry virtual machines, and whether it has to emulate their processors. It changes nothing.
func (d *Driver) Check(ctx context.Context) api.StackCheck {
	check := api.StackCheck{Stack: api.StackVM}
	for _, err := range Missing() {
		check.Problems = append(check.Problems, err.Error())
	}
	if err := ctx.Err(); err != nil {
		check.Problems = append(check.Problems, err.Error())
	}
	if groups, err := d.groups(); err != nil {
		check.Problems = append(check.Problems, err.Error())
	} else if err := groups.Check(); err != nil {
		check.Problems = append(check.Problems, err.Error())
	}
	check.OK = len(check.Problems) == 0
	if check.OK {
		models, err := d.cpuModels(ctx)
		if err != nil {
			check.Warnings = append(check.Warnings, "machines get no CPU model by name: "+err.Error())
		}
		check.CPUModels = models
		if check.Machines, err = d.maker(ctx); err != nil {
			check.Warnings = append(check.Warnings, "whether machines can move here is known only when they do: "+err.Error())
		}
	}
	if err := d.cfg.Accelerate(); err != nil {
		check.Warnings = append(check.Warnings, "processors are emulated in software (TCG), so that nothing measured on them counts: "+err.Error())
	}
	return check
}

// kvmVersion is the only one there ever was (KVM_GET_API_VERSION, Documentation/virt/kvm/api.rst).
const (
	kvmVersion       = 12
	kvmGetAPIVersion = 0xae00
)

// Acceleration returns why this host can't virtualize processors, nil if it can.
func Acceleration() error {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return err
	}
	if !hasVirtualization(text) {
		// A /dev/kvm says little then: there are kernels that have one for guests of their own kind only.
		return errors.New("the processor has neither VMX (Intel) nor SVM (AMD): enable virtualization in the firmware, or nesting if this host is a virtual machine itself")
	}
	file, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("%w: run: modprobe kvm_intel || modprobe kvm_amd", err)
	}
	defer func() { _ = file.Close() }()
	if version, err := unix.IoctlRetInt(int(file.Fd()), kvmGetAPIVersion); err != nil || version != kvmVersion {
		return fmt.Errorf("/dev/kvm is of version %d (%w), not %d", version, err, kvmVersion)
	}
	return nil
}

// inMachine reports whether this host is a virtual machine itself.
func inMachine() bool {
	text, err := os.ReadFile("/proc/cpuinfo")
	return err == nil && hasFlag(text, "hypervisor")
}

// hasVirtualization looks for the flags of hardware virtualization (proc(5)).
func hasVirtualization(cpuinfo []byte) bool { return hasFlag(cpuinfo, "vmx", "svm") }

// hasFlag reports whether a processor has one of these flags.
func hasFlag(cpuinfo []byte, wanted ...string) bool {
	for line := range bytes.Lines(cpuinfo) {
		if name, value, _ := bytes.Cut(line, []byte(":")); string(bytes.TrimSpace(name)) == "flags" {
			for flag := range bytes.FieldsSeq(value) {
				if slices.Contains(wanted, string(flag)) {
					return true
				}
			}
		}
	}
	return false
}
