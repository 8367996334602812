package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/goccy/go-yaml"

	"github.com/nearmetal/nearmetal/internal/energy/command"
	"github.com/nearmetal/nearmetal/internal/energy/pdu"
)

// energyFile is the file of --energy-sources.
type energyFile struct {
	// Outlets are those of this machine, whose power is added up.
	Outlets []pdu.Outlet `yaml:"outlets"`
	// Command is a program with its arguments that prints the machine's power or energy.
	Command []string `yaml:"command"`
}

// mostOutlets bounds the outlets of one machine.
const mostOutlets = 8

// readEnergyFile reads and checks the file of --energy-sources. It may hold passwords, so it must be its owner's alone.
func readEnergyFile(name string) (energyFile, error) {
	var f energyFile
	info, err := os.Stat(name)
	if err != nil {
		return f, fmt.Errorf("read the sources of energy readings: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return f, fmt.Errorf("%s may hold passwords and a program that the agent runs, but others than its owner can use it; run: chmod 600 %s", name, name)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return f, fmt.Errorf("read the sources of energy readings: %w", err)
	}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&f); err != nil {
		return f, fmt.Errorf("%s: %s", name, yaml.FormatError(err, false, true))
	}
	if err := f.check(); err != nil {
		return f, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// check reports what is wrong with it.
func (f *energyFile) check() error {
	if len(f.Outlets) == 0 && len(f.Command) == 0 {
		return errors.New("it names no source; give outlets, a command, or both")
	}
	if len(f.Outlets) > mostOutlets {
		return fmt.Errorf("it has %d outlets; a machine has %d at most", len(f.Outlets), mostOutlets)
	}
	for i := range f.Outlets {
		if err := f.Outlets[i].Check(); err != nil {
			return err
		}
	}
	if len(f.Command) > 0 {
		return command.Check(f.Command)
	}
	return nil
}
