// Package firmwarelist compares the firmware of machines with a list of the versions that an operator allows.
//
// It is pure but for reading the list. What becomes of a machine whose firmware is not on the list is the leader's to decide. Start with Parse.
package firmwarelist

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/nearmetal/nearmetal/api"
)

// List is what an operator allows, as written in YAML. Patterns have * for any text, ? for any character and [...] for one of several (path.Match).
type List struct {
	// Machines are the versions by product. The first entry that a machine matches counts; a machine that matches none is not on the list.
	Machines []Machine `yaml:"machines"`
	// Adapters are the versions by type of HCA. An adapter of another type is not judged.
	Adapters []Adapter `yaml:"adapters"`
}

// Machine is an entry for machines of a vendor and a product.
type Machine struct {
	// Vendor and Product are patterns of what inspection found; empty: any.
	Vendor  string `yaml:"vendor"`
	Product string `yaml:"product"`
	// BIOS are patterns of the version of BIOS or UEFI, and BMC those of the BMC's. Empty: any version.
	BIOS []string `yaml:"bios"`
	BMC  []string `yaml:"bmc"`
}

// Adapter is an entry for HCAs of a type.
type Adapter struct {
	// Type is a pattern of the type of HCA that inspection found.
	Type string `yaml:"type"`
	// Firmware are patterns of its version.
	Firmware []string `yaml:"firmware"`
}

// Parse reads a list. The error says what is wrong, and where.
func Parse(text []byte) (*List, error) {
	var l List
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&l); err != nil {
		return nil, errors.New(yaml.FormatError(err, false, true))
	}
	if len(l.Machines) == 0 && len(l.Adapters) == 0 {
		return nil, errors.New("the list names neither machines nor adapters, so that no firmware would be allowed; add entries, or omit the list")
	}
	for i, m := range l.Machines {
		if err := check(append([]string{m.Vendor, m.Product}, append(m.BIOS, m.BMC...)...)); err != nil {
			return nil, fmt.Errorf("machines[%d]: %w", i, err)
		}
	}
	for i, a := range l.Adapters {
		if a.Type == "" || len(a.Firmware) == 0 {
			return nil, fmt.Errorf("adapters[%d]: give its type, and the versions of its firmware", i)
		}
		if err := check(append([]string{a.Type}, a.Firmware...)); err != nil {
			return nil, fmt.Errorf("adapters[%d]: %w", i, err)
		}
	}
	return &l, nil
}

func check(patterns []string) error {
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("%q is no pattern: a [ has no ], or a \\ ends it", p)
		}
	}
	return nil
}

// Problem says why a machine's firmware is not on the list, "" where it is. Without a list all firmware is.
func (l *List) Problem(hw *api.Hardware) string {
	if l == nil || hw == nil {
		return ""
	}
	if len(l.Machines) > 0 {
		if problem := l.machineProblem(hw); problem != "" {
			return problem
		}
	}
	for _, h := range hw.HCAs {
		for _, a := range l.Adapters {
			if !matches(a.Type, h.Type) {
				continue
			}
			if !matchesAny(a.Firmware, h.Firmware) {
				return fmt.Sprintf("adapter %s (%s) has firmware %s, which is not on the firmware list (%s)", h.Name, h.Type, known(h.Firmware), strings.Join(a.Firmware, ", "))
			}
			break
		}
	}
	return ""
}

func (l *List) machineProblem(hw *api.Hardware) string {
	for _, m := range l.Machines {
		if m.Vendor != "" && !matches(m.Vendor, hw.Vendor) || m.Product != "" && !matches(m.Product, hw.Product) {
			continue
		}
		if len(m.BIOS) > 0 && !matchesAny(m.BIOS, hw.FirmwareVersion) {
			return fmt.Sprintf("its firmware is %s, which is not on the firmware list (%s)", known(hw.FirmwareVersion), strings.Join(m.BIOS, ", "))
		}
		bmc := ""
		if hw.BMC != nil {
			bmc = hw.BMC.Version
		}
		if len(m.BMC) > 0 && !matchesAny(m.BMC, bmc) {
			return fmt.Sprintf("its BMC has firmware %s, which is not on the firmware list (%s)", known(bmc), strings.Join(m.BMC, ", "))
		}
		return ""
	}
	return fmt.Sprintf("its product %q is not on the firmware list", strings.TrimSpace(hw.Vendor+" "+hw.Product))
}

func known(text string) string { return cmp.Or(text, "of an unknown version") }

func matchesAny(patterns []string, text string) bool {
	for _, p := range patterns {
		if matches(p, text) {
			return true
		}
	}
	return false
}

// matches is path.Match for text in which a slash is nothing special.
func matches(pattern, text string) bool {
	const slash = "\x00"
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", slash), strings.ReplaceAll(text, "/", slash))
	return err == nil && ok
}
