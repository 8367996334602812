package inspection

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/smbios"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/sysfs"
)

// tokenPrefix begins the OEM string or asset tag that carries an enrolment token, tokenArgument the kernel's argument.
const (
	tokenPrefix   = "nearmetal-enroll:"
	tokenArgument = "nearmetal.enroll="
)

// secureBoot is the variable SecureBoot of the GUID EFI_GLOBAL_VARIABLE (UEFI 2.10, section 3.3); efivarfs puts four bytes of attributes before
// the value.
const secureBoot = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

// dmiTable is the SMBIOS structure table.
const dmiTable = "sys/firmware/dmi/tables/DMI"

// readTable reads the firmware's tables. A machine without them, such as many of arm64, has an empty one.
func readTable(s source) (smbios.Table, error) {
	data, err := s.tree.Bytes(dmiTable)
	if errors.Is(err, fs.ErrNotExist) {
		return smbios.Table{}, nil
	}
	if err != nil {
		return smbios.Table{}, err
	}
	return smbios.Parse(data)
}

// readFirmware reads who made the machine, its firmware and kernel, and the enrolment token it carries.
func readFirmware(_ context.Context, s source) (func(*api.Hardware), []string) {
	var problems []string
	table, err := readTable(s)
	if err != nil {
		problems = append(problems, err.Error())
	}
	firmware := api.FirmwareBIOS
	if s.tree.Exists("sys/firmware/efi") {
		firmware = api.FirmwareUEFI
	}
	variable, _ := s.tree.Bytes(secureBoot)
	version := strings.TrimSpace(strings.Join([]string{table.FirmwareVendor, table.FirmwareVersion}, " "))
	if table.FirmwareDate != "" {
		version = strings.TrimSpace(version + " (" + table.FirmwareDate + ")")
	}
	kernel := s.tree.Text("proc/sys/kernel/osrelease")
	if kernel == "" {
		problems = append(problems, "/proc/sys/kernel/osrelease can't be read; is /proc mounted?")
	}
	architecture, err := s.architecture()
	if err != nil {
		problems = append(problems, err.Error())
	}
	return func(hw *api.Hardware) {
		hw.Vendor, hw.Product = told(table.Vendor), told(table.Product)
		hw.Serial, hw.UUID = told(table.Serial), table.UUID
		hw.Firmware, hw.FirmwareVersion = firmware, version
		hw.FirmwareVariables = lastingVariables(s.tree)
		hw.SecureBoot = len(variable) == 5 && variable[4] == 1
		hw.EnrollmentToken = enrollmentToken(table, s.tree.Text("proc/cmdline"))
		hw.KernelVersion, hw.Architecture = kernel, architecture
	}, problems
}

// lastingVariables are the names of the variables that outlive the machine's power: bit 0 of their attributes (UEFI 2.10, section 8.2).
func lastingVariables(tree sysfs.Tree) (names []string) {
	const dir = "sys/firmware/efi/efivars"
	for _, name := range tree.Names(dir) {
		if data, err := tree.Bytes(dir + "/" + name); err == nil && len(data) > 4 && data[0]&1 != 0 {
			names = append(names, name)
		}
	}
	return names
}

// told is a string of the firmware, "" for the words makers leave in when they fill nothing in.
func told(s string) string {
	switch strings.ToLower(s) {
	case "to be filled by o.e.m.", "default string", "not specified", "system serial number", "system product name",
		"system manufacturer", "none", "unknown", "0123456789":
		return ""
	}
	return s
}

// enrollmentToken is the token in an OEM string, an asset tag or the kernel's arguments; the first found counts.
func enrollmentToken(table smbios.Table, cmdline string) string {
	for _, text := range append(table.OEMStrings, table.AssetTags...) {
		if token, ok := strings.CutPrefix(text, tokenPrefix); ok {
			return token
		}
	}
	for argument := range strings.FieldsSeq(cmdline) {
		if token, ok := strings.CutPrefix(argument, tokenArgument); ok {
			return token
		}
	}
	return ""
}

// readBMC reads the management controller's interface from the firmware's tables and asks it for its address.
func readBMC(ctx context.Context, s source) (func(*api.Hardware), []string) {
	table, _ := readTable(s) // a broken table is told by readFirmware
	bmc := &api.BMC{}
	if table.IPMI != nil {
		bmc.Interface, bmc.Version = table.IPMI.Interface, table.IPMI.Version
	}
	var problems []string
	if s.Devices != nil {
		address, err := s.Devices.BMCAddress(ctx)
		if err != nil {
			problems = append(problems, err.Error())
		}
		bmc.Address = address
	}
	if *bmc == (api.BMC{}) {
		return nothing, problems
	}
	return func(hw *api.Hardware) { hw.BMC = bmc }, problems
}
