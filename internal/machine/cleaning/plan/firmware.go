package plan

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Variable is a variable of UEFI firmware (UEFI 2.10, section 8.2).
type Variable struct {
	// Name is NAME-GUID, as in efivarfs.
	Name       string
	Attributes uint32
	Value      []byte
}

// Bits of Attributes.
const (
	nonVolatile = 1 << 0
	// LastingAttributes are those of a variable that outlives the machine's power and that its system can change.
	LastingAttributes = nonVolatile | 1<<1 | 1<<2
)

// Lasts reports whether the variable outlives the machine's power.
func (v Variable) Lasts() bool { return v.Attributes&nonVolatile != 0 }

// GUIDs of variables. Those of systems and loaders hold what a tenant's system left, whoever made the firmware.
const (
	globalGUID   = "8be4df61-93ca-11d2-aa0d-00e098032b8c" // EFI_GLOBAL_VARIABLE
	securityGUID = "d719b2cb-3d3a-4596-a3bc-dad00e67656f" // EFI_IMAGE_SECURITY_DATABASE
)

var systemGUIDs = []string{
	"605dab50-e046-4300-abb6-3dd810dd8b23", // shim: keys that a machine's owner enrolls
	"4a67b082-0a4c-41cf-b6c7-440b29bb8c4f", // systemd's Boot Loader Interface
	"cfc8fc79-be2e-4ddc-97f0-9f98bfe298a0", // Linux: logs of crashes
	"1ce1e5bc-7ceb-42f2-81e5-8aadf180f57b", // Linux: a random seed
	"91376aff-cba6-42be-949d-06fde81128e8", // GRUB
	"77fa9abd-0359-4d32-bd60-28f4e78f784b", // Microsoft
	"7c436110-ab2a-4bbb-a880-fe41995c9f82", // Apple
	"0abba7dc-e516-4167-bbf5-4d9d1c739416", // fwupd: updates to be made at the next boot
}

// Variables is a plan for the variables of a machine's firmware.
type Variables struct {
	// Delete are the names of those that go.
	Delete []string
	// Unknown are the names of those that stay because nothing tells whether they are the firmware's.
	Unknown []string
	// BootOrder is the boot order to write: the network first. Nil: it is so already, or the firmware has no entry for the network.
	BootOrder []uint16
	// NoNetwork: no boot entry leads to the network.
	NoNetwork bool
}

// Firmware plans the variables. known are those that the machine had when it was first inspected, before it had a tenant; nil: not known.
//
// What stays: variables that do not last, keys of Secure Boot, the global variables that configure the machine, boot entries that the firmware makes
// itself, and variables that are known. A firmware may fail for good without a variable of its own, so what nobody knows stays, too.
func Firmware(variables []Variable, known []string) Variables {
	var p Variables
	var entries []entry
	var order []uint16
	for _, v := range variables {
		if !v.Lasts() {
			continue
		}
		name, guid := split(v.Name)
		switch {
		case guid == globalGUID:
			e, isEntry := bootEntry(name, v.Value)
			switch {
			case name == "BootOrder":
				order = numbers(v.Value)
			case isEntry && e.system:
				p.Delete = append(p.Delete, v.Name)
			case isEntry:
				entries = append(entries, e)
			case forSystems(name):
				p.Delete = append(p.Delete, v.Name)
			}
		case guid == securityGUID || slices.Contains(known, v.Name):
		case slices.Contains(systemGUIDs, guid) || known != nil:
			p.Delete = append(p.Delete, v.Name)
		default:
			p.Unknown = append(p.Unknown, v.Name)
		}
	}
	p.NoNetwork = !slices.ContainsFunc(entries, func(e entry) bool { return e.network })
	if next := bootOrder(order, entries); !p.NoNetwork && !slices.Equal(next, order) {
		p.BootOrder = next
	}
	return p
}

// bootOrder returns the entries that stay: those of the network first, each kind in the order it had.
func bootOrder(order []uint16, entries []entry) []uint16 {
	place := func(e entry) int {
		if i := slices.Index(order, e.number); i >= 0 {
			return i
		}
		return len(order) + int(e.number)
	}
	slices.SortFunc(entries, func(a, b entry) int {
		if a.network != b.network {
			if a.network {
				return -1
			}
			return 1
		}
		return place(a) - place(b)
	})
	next := make([]uint16, len(entries))
	for i, e := range entries {
		next[i] = e.number
	}
	return next
}

// forSystems reports whether a global variable is there for systems to set: what runs, or is asked of the firmware, at the next boot.
func forSystems(name string) bool {
	if slices.Contains([]string{"BootNext", "DriverOrder", "SysPrepOrder", "OsIndications", "OsRecoveryOrder"}, name) {
		return true
	}
	for _, prefix := range []string{"Driver", "SysPrep", "OsRecovery"} {
		if numbered(name, prefix) {
			return true
		}
	}
	return false
}

// split divides NAME-GUID.
func split(name string) (short, guid string) {
	const guidLength = 36
	if len(name) < guidLength+2 {
		return name, ""
	}
	at := len(name) - guidLength
	return name[:at-1], strings.ToLower(name[at:])
}

// numbered reports whether a name is a prefix and four hexadecimal digits (section 3.1.1).
func numbered(name, prefix string) bool {
	digits, ok := strings.CutPrefix(name, prefix)
	return ok && len(digits) == 4 && strings.Trim(digits, "0123456789ABCDEFabcdef") == ""
}

// entry is a boot entry: Boot#### (section 3.1.3, EFI_LOAD_OPTION).
type entry struct {
	number uint16
	// network: it leads to the network. system: it names a file on a disk, as what a system installs does, or a URI that somebody has set.
	network, system bool
}

// Types and subtypes of device path nodes (section 10.3).
const (
	messaging, media            = 3, 4
	nodeMAC, nodeIPv4, nodeIPv6 = 11, 12, 13
	nodeURI                     = 24
	nodeHardDrive, nodeFilePath = 1, 4
	nodeHeader                  = 4
	endOfPath                   = 0x7f
)

func bootEntry(name string, value []byte) (e entry, ok bool) {
	if !numbered(name, "Boot") {
		return entry{}, false
	}
	if _, err := fmt.Sscanf(name, "Boot%04x", &e.number); err != nil {
		return entry{}, false
	}
	for _, node := range devicePath(value) {
		switch {
		case node[0] == messaging && node[1] == nodeURI && len(node) > nodeHeader:
			e.system = true // a firmware's own entry gets its URI by DHCP: somebody has set this one
		case node[0] == messaging && slices.Contains([]byte{nodeMAC, nodeIPv4, nodeIPv6, nodeURI}, node[1]):
			e.network = true
		case node[0] == media && (node[1] == nodeHardDrive || node[1] == nodeFilePath):
			e.system = true
		}
	}
	return e, true
}

// devicePath returns the nodes of a load option's device paths; of a damaged one, those before the damage.
func devicePath(option []byte) (nodes [][]byte) {
	const header = 6 // attributes and the length of the paths
	if len(option) < header {
		return nil
	}
	length := int(binary.LittleEndian.Uint16(option[4:]))
	at := header
	for at+2 <= len(option) && (option[at] != 0 || option[at+1] != 0) {
		at += 2
	}
	at += 2
	for end := min(len(option), at+length); at+nodeHeader <= end; {
		size := int(binary.LittleEndian.Uint16(option[at+2:]))
		if size < nodeHeader || at+size > end {
			break
		}
		if option[at] != endOfPath {
			nodes = append(nodes, option[at:at+size])
		}
		at += size
	}
	return nodes
}

// numbers reads an order of entries.
func numbers(value []byte) (all []uint16) {
	for ; len(value) >= 2; value = value[2:] {
		all = append(all, binary.LittleEndian.Uint16(value))
	}
	return all
}
