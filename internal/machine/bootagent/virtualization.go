package bootagent

import (
	"bytes"
	"os"
)

// loadVirtualization loads the module that virtualizes processors, on a machine that carries virtual machines. The node agent looks for it once, when
// it starts. That is long before the other drivers of the image are loaded.
func (a *Agent) loadVirtualization() {
	modprobe, libvirt := program("/sbin/modprobe", "/usr/sbin/modprobe"), program("/usr/sbin/libvirtd")
	text, err := os.ReadFile("/proc/cpuinfo")
	module := virtualizer(text)
	if err != nil || modprobe == "" || libvirt == "" || module == "" {
		return
	}
	if _, err := a.init.command(process{name: "modprobe", args: []string{modprobe, "-b", "--", module}}); err != nil {
		a.log.Warn("processors can't be virtualized", "module", module, "error", err)
	}
}

// virtualizer returns KVM's module for the processors in a text of /proc/cpuinfo (proc(5)); "" for processors that virtualize nothing.
func virtualizer(cpuinfo []byte) string {
	for line := range bytes.Lines(cpuinfo) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if string(bytes.TrimSpace(name)) != "flags" {
			continue
		}
		for flag := range bytes.FieldsSeq(value) {
			switch string(flag) {
			case "vmx":
				return "kvm_intel"
			case "svm":
				return "kvm_amd"
			}
		}
	}
	return ""
}
