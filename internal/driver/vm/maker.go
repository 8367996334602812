package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"

	"github.com/nearmetal/nearmetal/api"
)

// maker reports what makes machines on this host, for whoever chooses where a machine can move. It starts no daemon.
func (d *Driver) maker(ctx context.Context) (*api.MachineMaker, error) {
	m := &api.MachineMaker{}
	var qemuErr, libvirtErr error
	m.QEMU, qemuErr = seriesOf(ctx, emulator)
	m.Libvirt, libvirtErr = seriesOf(ctx, "libvirtd")
	if err := errors.Join(qemuErr, libvirtErr); err != nil {
		return nil, err
	}
	if !d.hardware().KVM {
		return m, nil
	}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil, err
	}
	p := readProcessor(string(text))
	m.Processor = &api.ProcessorKind{Vendor: p.Vendor, Family: p.Family, Model: p.Model}
	return m, nil
}

// seriesOf asks a program for its version, and returns the series.
func seriesOf(ctx context.Context, program string) (string, error) {
	text, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("asking %s for its version: %w", program, err)
	}
	series := seriesIn(string(text))
	if series == "" {
		return "", fmt.Errorf("%s reports no version: %.100q", program, text)
	}
	return series, nil
}

// versionWords are what QEMU and libvirtd report of their version: "QEMU emulator version 7.2.19", "libvirtd (libvirt) 9.0.0". The series is its first
// two numbers.
var versionWords = regexp.MustCompile(`(?:version|\(libvirt\)) (\d+\.\d+)`)

func seriesIn(text string) string {
	if found := versionWords.FindStringSubmatch(text); found != nil {
		return found[1]
	}
	return ""
}
