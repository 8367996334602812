package partitions

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Definition is one definition of a partition in an operator's file.
type Definition struct {
	Name string
	// PKey is the partition key without the membership bit.
	PKey int
	// Line is where it begins, from 1.
	Line int
	// All: every adapter port is a member. Ports are those listed by their GUID.
	All   bool
	Ports []uint64
}

// longestLine is the longest line that OpenSM reads as one, in bytes (osm_prtn_config.c: char line[4096]).
const longestLine = 4094

// Parse reads an operator's file as OpenSM does. Its errors name the line, and what OpenSM would do about it.
func Parse(text string) ([]Definition, error) {
	var all []Definition
	var statement strings.Builder
	begun := 0
	for i, line := range strings.Split(text, "\n") {
		number := i + 1
		if len(line) > longestLine {
			return nil, fmt.Errorf("line %d has %d characters: OpenSM reads no more than %d at once; divide it after a comma", number, len(line), longestLine)
		}
		if at := strings.IndexFunc(line, func(r rune) bool { return r < ' ' && r != '\t' && r != '\r' || r == 0xfffd }); at >= 0 {
			return nil, fmt.Errorf("line %d, character %d: it is not text; the file is damaged", number, at+1)
		}
		line, _, _ = strings.Cut(line, "#")
		for {
			part, rest, ends := strings.Cut(line, ";")
			if begun == 0 && strings.TrimSpace(part) != "" {
				begun = number
			}
			statement.WriteString(part + "\n")
			if !ends {
				break
			}
			if begun != 0 {
				d, err := parseDefinition(statement.String(), begun)
				if err != nil {
					return nil, err
				}
				all = append(all, d)
			}
			statement.Reset()
			line, begun = rest, 0
		}
	}
	if begun != 0 {
		return nil, fmt.Errorf("line %d: the definition that begins there has no semicolon at its end", begun)
	}
	return all, nil
}

// parseDefinition reads NAME=PKEY,FLAG...: PORT, PORT... without its semicolon.
func parseDefinition(text string, line int) (Definition, error) {
	head, body, ok := strings.Cut(text, ":")
	if !ok {
		return Definition{}, fmt.Errorf("line %d: there is no colon between a partition and its ports", line)
	}
	first, _, _ := strings.Cut(head, ",")
	name, key, named := strings.Cut(first, "=")
	name, key = strings.TrimSpace(name), strings.TrimSpace(key)
	if !named && name != "" && name[0] >= '0' && name[0] <= '9' {
		name, key = "", name
	}
	if key == "" {
		return Definition{}, fmt.Errorf("line %d: partition %q has no key: OpenSM would choose one that a tenant may have; write %s=KEY", line, name, name)
	}
	pkey, err := strconv.ParseUint(key, 0, 16)
	if err != nil || pkey&0x7fff == 0 {
		return Definition{}, fmt.Errorf("line %d: %q is not a partition key, 0x0001 to 0x7fff", line, key)
	}
	d := Definition{Name: name, PKey: int(pkey & 0x7fff), Line: line}
	for row, list := range strings.Split(body, "\n") {
		if before, _, found := strings.Cut(list, "="); found && strings.TrimSpace(before) == "mgid" {
			continue // a multicast group takes the whole line
		}
		for _, entry := range strings.Split(list, ",") {
			port, _, _ := strings.Cut(entry, "=")
			if err := d.add(strings.TrimSpace(port)); err != nil {
				return Definition{}, fmt.Errorf("line %d: %w", line+strings.Count(head, "\n")+row, err)
			}
		}
	}
	return d, nil
}

// add adds a port specifier to a definition.
func (d *Definition) add(port string) error {
	switch {
	case port == "" || port == "NONE" || port == "SELF" || port == "ALL_SWITCHES" || port == "ALL_ROUTERS":
	case port == "ALL" || port == "ALL_CAS":
		d.All = true
	default:
		guid, err := strconv.ParseUint(port, 0, 64)
		if err != nil || guid == 0 {
			return fmt.Errorf("%q is neither a port GUID, such as 0x0002c903000e0b73, nor one of ALL, ALL_CAS, ALL_SWITCHES, ALL_ROUTERS and SELF", port)
		}
		d.Ports = append(d.Ports, guid)
	}
	return nil
}

// Keys are the partition keys of an operator's file, in order.
func Keys(definitions []Definition) []int {
	var keys []int
	for _, d := range definitions {
		keys = append(keys, d.PKey)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
