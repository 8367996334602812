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
	sum := sha256.New()
	for _, part := range [][]byte{[]byte(image.Digest), d.cfg.Boot, d.cfg.Program} {
		one := sha256.Sum256(part)
		_, _ = sum.Write(one[:])
	}
	dir := filepath.Join(d.cfg.StateDir, "libvirt", "boot")
	at := filepath.Join(dir, hex.EncodeToString(sum.Sum(nil)[:16]))
	if !isMissing(at) {
		return at, nil
	}
	if err := d.makeInitrd(at, image.Kernel.Initrd); err != nil {
		return "", fmt.Errorf("making the initial RAM disk: %w", err)
	}
	return at, nil
}

func (d *Driver) makeInitrd(at, first string) error {
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
	if err := initrd.Guest(&out, d.cfg.Boot, guestlink.ProgramPath, d.cfg.Program); err != nil {
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
		device := fabric.TAP(fabric.PortOf(&m.Assignment, n)).At
		if err := hasCarrier(device); err != nil {
			return fmt.Errorf("its device %s was removed and made again, which the machine can't follow; the member has to be replaced (%w)", device, err)
		}
	}
	return nil
}
