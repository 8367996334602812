package vdc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/nearmetal/nearmetal/api"
)

// bootVariables are a UEFI machine's variables, as its BMC changes them: firmware reads them when it starts, so a machine that is on gets the
// change when it is off next.
type bootVariables struct {
	machine string
	path    string
	tool    string // virt-fw-vars

	mu sync.Mutex
	// told is whether BootNext may be set, due the change that waits for the machine to be off.
	told bool
	due  *string
}

func variablesPath(dir, machine string) string { return filepath.Join(dir, "disks", machine+".vars") }

// makeVariables gives a UEFI machine the variables of one that was never on.
func makeVariables(path string) (err error) {
	from, err := os.Open(ovmfVars)
	if err != nil {
		return fmt.Errorf("OVMF's variables (Debian package ovmf): %w", err)
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}

// set makes the next boot one by UEFI HTTP boot from uri, or no special one when that is empty.
func (v *bootVariables) set(ctx context.Context, uri string, power api.PowerState) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if power != api.PowerOff {
		v.due = &uri
		return nil
	}
	v.due = nil
	return v.write(ctx, uri)
}

// off makes a change that waited.
func (v *bootVariables) off(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.due == nil {
		return nil
	}
	uri := *v.due
	v.due = nil
	return v.write(ctx, uri)
}

// write needs the lock. BootNext is good for one boot (UEFI 2.10, section 3.1.1), as the boot override "Once" is.
func (v *bootVariables) write(ctx context.Context, uri string) error {
	args := []string{"--inplace", v.path}
	switch {
	case uri != "":
		args = append(args, "--set-boot-uri", uri)
	case v.told:
		args = append(args, "--delete", "BootNext")
	default:
		return nil
	}
	if output, err := exec.CommandContext(ctx, v.tool, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("changing the UEFI variables of %s: %w\n%s", v.machine, err, output)
	}
	v.told = uri != ""
	return nil
}

// setBoot is a BMC's order about its machine's next boot.
func (dc *DataCentre) setBoot(ctx context.Context, m *Machine, uri string) error {
	if m.variables == nil {
		if uri == "" {
			return nil
		}
		return errors.New("UEFI HTTP boot needs UEFI firmware")
	}
	power, err := dc.Power(m.Name)
	if err != nil {
		return err
	}
	return m.variables.set(ctx, uri, power)
}
