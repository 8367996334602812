package vm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/machine/initrd"
)

// initrd returns the initial RAM disk that guests of an image boot with: the image's own, which has its kernel's modules, and behind it the boot
// agent and the member agent. The kernel unpacks both. One is kept for each image and version of the agents, which all its members read.
func (d *Driver) initrd(image environment.Image) (string, error) {
	d.boots.Lock()
	defer d.boots.Unlock()
	var boot, program []byte
	if d.agents == "" {
		var err error
		if boot, program, err = d.binaries(); err != nil {
			return "", err
		}
		one, other := sha256.Sum256(boot), sha256.Sum256(program)
		d.agents = hex.EncodeToString(one[:]) + hex.EncodeToString(other[:])
	}
	sum := sha256.Sum256([]byte(image.Digest + " " + d.agents))
	at := filepath.Join(d.cfg.StateDir, "libvirt", "boot", hex.EncodeToString(sum[:16]))
	if !isMissing(at) {
		return at, nil
	}
	if boot == nil {
		var err error
		if boot, program, err = d.binaries(); err != nil {
			return "", err
		}
	}
	if err := makeInitrd(at, image.Kernel.Initrd, boot, program); err != nil {
		return "", fmt.Errorf("making the initial RAM disk: %w", err)
	}
	return at, nil
}

// binaries loads both agents.
func (d *Driver) binaries() (boot, program []byte, err error) {
	boot, bootErr := d.cfg.Boot()
	program, programErr := d.cfg.Program()
	return boot, program, errors.Join(bootErr, programErr)
}

func makeInitrd(at, first string, boot, program []byte) error {
	// Those of other images and versions can be made again; a machine that boots from one has it open.
	if err := errors.Join(os.RemoveAll(filepath.Dir(at)), os.MkdirAll(filepath.Dir(at), 0o755)); err != nil {
		return err
	}
	modules, err := os.ReadFile(first)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	out.Write(modules)
	// The kernel looks for the next archive at a multiple of four bytes and skips zeroes before it.
	out.Write(make([]byte, (4-out.Len()%4)%4))
	if err := initrd.Guest(&out, boot, guestlink.ProgramPath, program); err != nil {
		return err
	}
	file, err := os.OpenFile(at+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, &out)
	err = errors.Join(err, file.Chmod(0o644), file.Close())
	if err == nil {
		err = os.Rename(at+".new", at)
	}
	return err
}

// usesPorts reports a port whose device nobody has open: it has no carrier then.
func (d *Driver) usesPorts(m driver.Member) error {
	for n := range m.Assignment.Ports {
		port := fabric.PortOf(&m.Assignment, n)
		if isPassedThrough(port) {
			continue // it has no device here
		}
		device := placeOf(port, 0).At
		if err := hasCarrier(device); err != nil {
			return fmt.Errorf("its device %s was removed and made again, which the machine can't follow; the member has to be replaced (%w)", device, err)
		}
	}
	return nil
}
