package recipe

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/nearmetal/nearmetal/api"
)

// Disk says how the disk of another system is run.
type Disk struct {
	// OS equips the machine: linux unless given.
	OS api.System `json:"os,omitempty"`
	// Firmware boots the disk; empty: found by looking at the disk.
	Firmware api.Firmware `json:"firmware,omitempty"`
	// Probe tells when a member is ready; SSH unless given.
	Probe api.Probe `json:"probe,omitzero"`
}

// Bounds of a probe.
const (
	DefaultProbeTimeout = api.Duration(4 * time.Minute)
	minProbeTimeout     = api.Duration(time.Second)
	maxProbeTimeout     = api.Duration(time.Hour)
	maxConsoleText      = 200
)

// systems are those that a machine can be equipped for.
var systems = []string{string(api.SystemLinux), string(api.SystemWindows), string(api.SystemOther)}

// disk checks a recipe that imports a disk, to which nothing can be added.
func (c *checker) disk() {
	for _, field := range []string{"packages", "exclude", "files", "commands", "kernel", "root", "layers", "services"} {
		if c.source.Has(field) {
			c.add(field, "", "can't be applied to base.disk, which is imported as it is; omit it")
		}
	}
	for i, s := range c.recipe.Stacks {
		if s != api.StackVM {
			c.add(fmt.Sprintf("stacks[%d]", i), string(s), "an imported disk supports only vm")
		}
	}
	c.requirements()
	d := c.recipe.Disk
	if d.OS != "" || c.source.Has("disk.os") {
		c.oneOf("disk.os", string(d.OS), "system", systems)
	}
	if d.Firmware != "" || c.source.Has("disk.firmware") {
		c.oneOf("disk.firmware", string(d.Firmware), "kind of firmware", []string{string(api.FirmwareBIOS), string(api.FirmwareUEFI)})
	}
	c.probe(d.Probe)
}

func (c *checker) probe(p api.Probe) {
	given := 0
	for _, one := range []bool{p.TCP != 0 || c.source.Has("disk.probe.tcp"), p.SSH, p.Ping, p.Console != "" || c.source.Has("disk.probe.console")} {
		if one {
			given++
		}
	}
	switch {
	case given > 1:
		c.add("disk.probe", "", "names %d ways to tell whether a member is ready; give one of tcp, ssh, ping and console", given)
	case given == 0 && c.source.Has("disk.probe"):
		c.add("disk.probe", "", "names no way to tell whether a member is ready; give one of tcp, ssh, ping and console")
	}
	if (p.TCP != 0 || c.source.Has("disk.probe.tcp")) && (p.TCP < 1 || p.TCP > 65535) {
		c.add("disk.probe.tcp", fmt.Sprint(p.TCP), "is not a port; give a number from 1 to 65535")
	}
	if c.source.Has("disk.probe.console") && (p.Console == "" || len(p.Console) > maxConsoleText || strings.ContainsFunc(p.Console, unicode.IsControl)) {
		c.add("disk.probe.console", p.Console, "must be 1 to %d printable characters of one line", maxConsoleText)
	}
	if c.source.Has("disk.probe.timeout") && (p.Timeout < minProbeTimeout || p.Timeout > maxProbeTimeout) {
		c.add("disk.probe.timeout", "", "must be from %s to %s", time.Duration(minProbeTimeout), time.Duration(maxProbeTimeout))
	}
}

// normalizeDisk fills in how a disk is run.
func (r *Recipe) normalizeDisk() {
	d := &r.Disk
	if d.OS == "" {
		d.OS = api.SystemLinux
	}
	if p := &d.Probe; p.TCP == 0 && !p.Ping && p.Console == "" {
		p.SSH = true
	}
	if d.Probe.Timeout == 0 {
		d.Probe.Timeout = DefaultProbeTimeout
	}
}
