package cleaning

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/cleaning/plan"
)

// attributeBytes come before a variable's value in efivarfs (Documentation/filesystems/efivarfs.rst).
const attributeBytes = 4

// immutableFlag is FS_IMMUTABLE_FL (linux/fs.h).
const immutableFlag = 0x10

// bootOrder is the variable with the order of boot entries.
const bootOrder = "BootOrder-8be4df61-93ca-11d2-aa0d-00e098032b8c"

// clearText is the method of this step.
const clearText = "delete variables, network first in the boot order"

// readVariables reads the firmware's variables; nil: the machine has none, since its firmware is no UEFI.
func (m *Machine) readVariables() ([]plan.Variable, error) {
	entries, err := os.ReadDir(m.Firmware)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	variables := []plan.Variable{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(m.Firmware, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the variable %s: %w", e.Name(), err)
		}
		if len(data) < attributeBytes {
			continue // being deleted, or without a value: it does not exist
		}
		variables = append(variables, plan.Variable{Name: e.Name(), Attributes: binary.LittleEndian.Uint32(data), Value: data[attributeBytes:]})
	}
	return variables, nil
}

// planFirmware is the step about the firmware's variables before anything is done.
func (m *Machine) planFirmware(order boot.CleanOrder) api.CleanStep {
	s := api.CleanStep{Kind: api.CleanFirmware, Target: "UEFI variables", State: api.CleanPlanned, Method: clearText}
	variables, err := m.readVariables()
	switch {
	case err != nil:
		s.State, s.Message = api.CleanFailed, err.Error()
	case variables == nil:
		s.State, s.Method, s.Message = api.CleanSkipped, "", "none: the machine did not start by UEFI"
	case len(variables) == 0:
		s.State, s.Message = api.CleanFailed, "the firmware's variables can't be read: efivarfs is not mounted"
	default:
		s.Message = planText(plan.Firmware(variables, order.Variables))
	}
	return s
}

func planText(p plan.Variables) string {
	var parts []string
	if len(p.Delete) > 0 {
		parts = append(parts, "to be deleted: "+strings.Join(p.Delete, ", "))
	}
	return strings.Join(append(parts, staysText(p)...), "; ")
}

// staysText says what is left that nobody answers for.
func staysText(p plan.Variables) (parts []string) {
	if len(p.Unknown) > 0 {
		parts = append(parts, fmt.Sprintf("%d stay, since nothing tells whether they are the firmware's: %s", len(p.Unknown), strings.Join(p.Unknown, ", ")))
	}
	if p.NoNetwork {
		parts = append(parts, "the boot order stays: no entry leads to the network")
	}
	return parts
}

// cleanFirmware deletes what a tenant left in variables, and puts the network first in the boot order.
func (m *Machine) cleanFirmware(order boot.CleanOrder, out step) {
	if !out.isPlanned() {
		return
	}
	out.start()
	verified, message, err := m.clearVariables(order)
	if err != nil {
		out.finish(api.CleanFailed, "", err.Error())
		return
	}
	out.finish(api.CleanDone, verified, message)
}

func (s step) isPlanned() (planned bool) {
	s.change(func(c *api.CleanStep) { planned = c.State == api.CleanPlanned })
	return planned
}

func (m *Machine) clearVariables(order boot.CleanOrder) (verified, message string, err error) {
	variables, err := m.readVariables()
	if err != nil {
		return "", "", err
	}
	p := plan.Firmware(variables, order.Variables)
	for _, name := range p.Delete {
		if err := removeVariable(filepath.Join(m.Firmware, name)); err != nil {
			return "", "", fmt.Errorf("the firmware keeps the variable %s: %w", name, err)
		}
	}
	if p.BootOrder != nil {
		if err := writeVariable(filepath.Join(m.Firmware, bootOrder), p.BootOrder); err != nil {
			return "", "", fmt.Errorf("write the boot order: %w", err)
		}
	}
	if variables, err = m.readVariables(); err != nil {
		return "", "", err
	}
	again := plan.Firmware(variables, order.Variables)
	switch {
	case len(again.Delete) > 0:
		return "", "", fmt.Errorf("still there after their deletion: %s", strings.Join(again.Delete, ", "))
	case again.BootOrder != nil:
		return "", "", fmt.Errorf("the boot order is not as it was written: expected %04x", p.BootOrder)
	}
	parts := []string{}
	if len(p.Delete) > 0 {
		parts = append(parts, "deleted: "+strings.Join(p.Delete, ", "))
	}
	return "all variables were read again", strings.Join(slices.Concat(parts, staysText(again)), "; "), nil
}

// removeVariable deletes a variable. The kernel protects most from accidents by the flag "immutable".
func removeVariable(path string) error {
	if err := setMutable(path); err != nil {
		return err
	}
	return os.Remove(path)
}

func setMutable(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a file system without flags
	}
	if err != nil || flags&immutableFlag == 0 {
		return err
	}
	return unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags&^immutableFlag)
}

// writeVariable writes an order of entries. A variable is written by one call, with its attributes.
func writeVariable(path string, order []uint16) error {
	if _, err := os.Stat(path); err == nil {
		if err := setMutable(path); err != nil {
			return err
		}
	}
	data := binary.LittleEndian.AppendUint32(nil, plan.LastingAttributes)
	for _, n := range order {
		data = binary.LittleEndian.AppendUint16(data, n)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}
