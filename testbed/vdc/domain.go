package vdc

import (
	"bytes"
	_ "embed"
	"encoding/xml"
	"fmt"
	"path/filepath"
	"text/template"

	"github.com/nearmetal/nearmetal/api"
)

// Debian's OVMF: the firmware, and what each machine's variables start from.
const (
	debianEmulator = "/usr/bin/qemu-system-x86_64"

	ovmfCode = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	ovmfVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

//go:embed domain.xml.tmpl
var domainTemplate string

// domainXML is a machine as libvirt knows it.
func domainXML(m *Machine, dir string, kvm bool) (string, error) {
	tmpl, err := template.New("domain").Funcs(template.FuncMap{"xml": escaped}).Parse(domainTemplate)
	if err != nil {
		return "", err
	}
	count, nvme := len(m.config.DiskBytes), ""
	if m.config.NVMe && count > 0 {
		count--
		nvme = diskPath(dir, m.Name, count)
	}
	disks := make([]disk, count)
	for i := range disks {
		disks[i] = disk{diskPath(dir, m.Name, i), "vd" + string(rune('a'+i)), "virtio", i == 0}
		if m.config.SATA {
			disks[i].Target, disks[i].Bus = "sd"+string(rune('a'+i)), "sata"
		}
	}
	emulator := debianEmulator
	if m.config.SRIOV {
		emulator = m.emulator
	}
	var out bytes.Buffer
	err = tmpl.Execute(&out, map[string]any{
		"Machine": m, "Config": m.config, "Disks": disks, "NVMe": nvme, "VMPort": m.vmPort, "KVM": kvm, "UEFI": m.Firmware == api.FirmwareUEFI,
		"Emulator": emulator, "Code": ovmfCode, "VarsTemplate": ovmfVars, "Vars": variablesPath(dir, m.Name),
		"Console": consoleSocket(dir, m.Name), "Provisioning": provisioningBridge, "Data": m.cable, "ProvisioningPort": provisioningPort, "DataPort": dataPort,
	})
	if err != nil {
		return "", fmt.Errorf("machine %s: %w", m.Name, err)
	}
	return out.String(), nil
}

// SetOEMStrings gives a machine other OEM strings of SMBIOS from its next start on. A NIC that is unplugged is plugged in then, and what its BMC was
// told about the next boot is forgotten.
func (dc *DataCentre) SetOEMStrings(machine string, texts []string) error {
	m, err := dc.find(machine)
	if err != nil {
		return err
	}
	changed := *m
	changed.config.OEMStrings = texts
	return dc.virt.define(&changed, dc.dir, dc.config.KVM)
}

// disk is one line of the template.
type disk struct {
	Path, Target, Bus string
	First             bool
}

func consoleSocket(dir, machine string) string { return filepath.Join(dir, "run", machine+".console") }

func escaped(value any) (string, error) {
	var out bytes.Buffer
	err := xml.EscapeText(&out, []byte(fmt.Sprint(value)))
	return out.String(), err
}
