// Package smbios reads the tables that a machine's firmware describes it with: System Management BIOS, DMTF DSP0134 version 3.7.
//
// Firmware writes them and much of it carelessly, so whatever a table says is checked against its length and a broken structure
// ends the reading with what was read until then. It takes bytes and never looks for them. Start with Parse.
package smbios

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Table is what is of interest in the tables of one machine. What firmware does not tell is empty.
type Table struct {
	FirmwareVendor, FirmwareVersion, FirmwareDate string // type 0, section 7.1
	Vendor, Product, Serial, UUID                 string // type 1, section 7.2
	// AssetTags are those of the baseboards and chassis (types 2 and 3, sections 7.3 and 7.4).
	AssetTags []string
	// OEMStrings are all strings of type 11 (section 7.12).
	OEMStrings []string
	Memory     []MemoryDevice
	// Sockets is the number of populated processor sockets (type 4, section 7.5).
	Sockets int
	IPMI    *IPMI
}

// MemoryDevice is one populated memory slot (type 17, section 7.18).
type MemoryDevice struct {
	Slot      string
	SizeBytes int64 // of volatile memory
}

// IPMI is the interface to the management controller (type 38, section 7.39).
type IPMI struct {
	Interface string // KCS, SMIC, BT, SSIF
	Version   string // of the IPMI specification, such as 2.0
}

// MemoryBytes is the volatile memory of all slots.
func (t Table) MemoryBytes() int64 {
	var sum int64
	for _, m := range t.Memory {
		sum += m.SizeBytes
	}
	return sum
}

// ErrBroken: the table does not keep to its own lengths.
var ErrBroken = errors.New("broken SMBIOS table")

// Structure is one structure of the table.
type Structure struct {
	Type   byte
	Handle uint16
	// Formatted is the formatted area with its header of four bytes; offsets of the specification count from its start.
	Formatted []byte
	Strings   []string
}

// Structure types (section 7, table 4).
const (
	typeFirmware  = 0
	typeSystem    = 1
	typeBaseboard = 2
	typeChassis   = 3
	typeProcessor = 4
	typeOEM       = 11
	typeMemory    = 17
	typeIPMI      = 38
	typeEnd       = 127
)

// Parse reads a structure table, as the kernel shows it in /sys/firmware/dmi/tables/DMI. With ErrBroken it returns what it read until then.
func Parse(data []byte) (Table, error) {
	var t Table
	structures, err := Structures(data)
	for _, s := range structures {
		t.add(s)
	}
	return t, err
}

// Structures splits a table (section 6.1.2: header, formatted area, strings, two zero bytes). The structure of type 127 ends it.
func Structures(data []byte) ([]Structure, error) {
	var out []Structure
	for at := 0; at < len(data); {
		rest := data[at:]
		if len(rest) < 4 || rest[1] < 4 || int(rest[1]) > len(rest) {
			return out, fmt.Errorf("%w: structure %d at byte %d is too short for its header or formatted area", ErrBroken, len(out), at)
		}
		length := int(rest[1])
		s := Structure{Type: rest[0], Handle: binary.LittleEndian.Uint16(rest[2:]), Formatted: rest[:length]}
		end := bytes.Index(rest[length:], []byte{0, 0})
		if s.Type == typeEnd {
			return append(out, s), nil // some firmware leaves out what ends even this one
		}
		if end < 0 {
			return out, fmt.Errorf("%w: the strings of structure %d at byte %d are not terminated", ErrBroken, len(out), at)
		}
		if end > 0 {
			for text := range bytes.SplitSeq(rest[length:length+end], []byte{0}) {
				s.Strings = append(s.Strings, strings.TrimSpace(strings.ToValidUTF8(string(text), "")))
			}
		}
		out = append(out, s)
		at += length + end + 2
	}
	return out, nil
}

// add takes what is of interest in a structure. The first of several systems or firmwares is the machine's own.
func (t *Table) add(s Structure) {
	switch s.Type {
	case typeFirmware:
		if t.FirmwareVersion == "" {
			t.FirmwareVendor, t.FirmwareVersion, t.FirmwareDate = s.text(0x04), s.text(0x05), s.text(0x08)
		}
	case typeSystem:
		if t.Product == "" {
			t.Vendor, t.Product, t.Serial, t.UUID = s.text(0x04), s.text(0x05), s.text(0x07), s.uuid(0x08)
		}
	case typeBaseboard, typeChassis:
		if tag := s.text(0x08); tag != "" {
			t.AssetTags = append(t.AssetTags, tag)
		}
	case typeProcessor:
		if status, ok := s.byte(0x18); ok && status&0x40 != 0 { // bit 6: the socket is populated
			t.Sockets++
		}
	case typeOEM:
		t.OEMStrings = append(t.OEMStrings, s.Strings...)
	case typeMemory:
		if m := s.memory(); m.SizeBytes > 0 {
			t.Memory = append(t.Memory, m)
		}
	case typeIPMI:
		t.IPMI = s.ipmi()
	}
}

// memory reads a memory device. Of persistent memory only the part that is used as volatile counts.
func (s Structure) memory() MemoryDevice {
	m := MemoryDevice{Slot: s.text(0x10)}
	size, _ := s.word(0x0c)
	switch {
	case size == 0 || size == 0xffff: // empty, unknown
	case size == 0x7fff: // in the extended size, in MiB
		if mib, ok := s.dword(0x1c); ok {
			m.SizeBytes = int64(mib&0x7fffffff) << 20
		}
	case size&0x8000 != 0:
		m.SizeBytes = int64(size&0x7fff) << 10
	default:
		m.SizeBytes = int64(size) << 20
	}
	if technology, ok := s.byte(0x28); ok && technology >= 0x05 && technology <= 0x07 { // NVDIMM-F, NVDIMM-P, Optane
		m.SizeBytes = 0
		if volatile, ok := s.qword(0x3c); ok && volatile < 1<<62 {
			m.SizeBytes = int64(volatile)
		}
	}
	return m
}

// ipmi reads an IPMI device: interface type and the revision of the specification, a digit in each half of the byte.
func (s Structure) ipmi() *IPMI {
	kind, _ := s.byte(0x04)
	names := []string{"unknown", "KCS", "SMIC", "BT", "SSIF"}
	out := &IPMI{Interface: names[0]}
	if int(kind) < len(names) {
		out.Interface = names[kind]
	}
	if revision, ok := s.byte(0x05); ok {
		out.Version = fmt.Sprintf("%d.%d", revision>>4, revision&0x0f)
	}
	return out
}

// text is the string that the byte at offset numbers, from 1; "" when there is none.
func (s Structure) text(offset int) string {
	n, _ := s.byte(offset)
	if n == 0 || int(n) > len(s.Strings) {
		return ""
	}
	return s.Strings[n-1]
}

// uuid reads a UUID, its first three fields little-endian (section 7.2.1). All zeros or all ones is none.
func (s Structure) uuid(offset int) string {
	if len(s.Formatted) < offset+16 {
		return ""
	}
	b := bytes.Clone(s.Formatted[offset : offset+16])
	if all(b, 0) || all(b, 0xff) {
		return ""
	}
	b[0], b[1], b[2], b[3] = b[3], b[2], b[1], b[0]
	b[4], b[5], b[6], b[7] = b[5], b[4], b[7], b[6]
	h := hex.EncodeToString(b)
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

func all(b []byte, value byte) bool { return bytes.Count(b, []byte{value}) == len(b) }

func (s Structure) byte(offset int) (byte, bool) {
	if len(s.Formatted) <= offset {
		return 0, false
	}
	return s.Formatted[offset], true
}

func (s Structure) word(offset int) (uint16, bool) {
	if len(s.Formatted) < offset+2 {
		return 0, false
	}
	return binary.LittleEndian.Uint16(s.Formatted[offset:]), true
}

func (s Structure) dword(offset int) (uint32, bool) {
	if len(s.Formatted) < offset+4 {
		return 0, false
	}
	return binary.LittleEndian.Uint32(s.Formatted[offset:]), true
}

func (s Structure) qword(offset int) (uint64, bool) {
	if len(s.Formatted) < offset+8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(s.Formatted[offset:]), true
}
