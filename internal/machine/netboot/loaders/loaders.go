// Package loaders knows the network boot loaders: which one a machine of an architecture gets, and their content.
//
// It is a table (RFC 4578 and IANA's list of processor architecture types) and a set of files read once; nothing but these files can be
// fetched. Start with Architectures.
package loaders

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// DefaultDir is where Debian's package ipxe has its loaders. Its ipxe.efi is a link to /boot; snponly.efi, which we prefer, is not: it uses
// the driver of the firmware that has just spoken DHCP with that NIC, so it works with every NIC the firmware boots from.
const DefaultDir = "/usr/lib/ipxe"

// maxBytes bounds a loader's size; iPXE's largest is about 1 MiB.
const maxBytes = 16 << 20

// Architecture is what one type of DHCP option 93 means.
type Architecture struct {
	// Type is the number in option 93 (client system architecture type, RFC 4578 section 2.1, IANA "Processor Architecture Types").
	Type uint16
	// Name is the architecture as uname -m tells.
	Name     string
	Firmware api.Firmware
	// HTTP: the firmware boots from an HTTP URL (UEFI 2.5, HTTP Boot) instead of PXE with TFTP.
	HTTP bool
	// Files are the loaders it can run, the best first. None: known, but nothing can boot it.
	Files []string
}

func x64() []string { return []string{"snponly.efi", "ipxe.efi"} }
func arm64() []string {
	return []string{"snponly-arm64.efi", "ipxe-arm64.efi", "arm64-efi/snponly.efi"}
}

// Architectures is the table of option 93. RFC 4578 as printed has 7 for EFI byte code and 9 for x86-64; firmware says 7 for x86-64 (its
// erratum 4625, and UEFI's list), some says 9, so both are x86-64.
func Architectures() []Architecture {
	return []Architecture{
		{Type: 0, Name: "x86_64", Firmware: api.FirmwareBIOS, Files: []string{"undionly.kpxe", "ipxe.pxe"}},
		{Type: 6, Name: "i686", Firmware: api.FirmwareUEFI},
		{Type: 7, Name: "x86_64", Firmware: api.FirmwareUEFI, Files: x64()},
		{Type: 9, Name: "x86_64", Firmware: api.FirmwareUEFI, Files: x64()},
		{Type: 10, Name: "armv7l", Firmware: api.FirmwareUEFI},
		{Type: 11, Name: "aarch64", Firmware: api.FirmwareUEFI, Files: arm64()},
		{Type: 15, Name: "i686", Firmware: api.FirmwareUEFI, HTTP: true},
		{Type: 16, Name: "x86_64", Firmware: api.FirmwareUEFI, HTTP: true, Files: x64()},
		{Type: 18, Name: "armv7l", Firmware: api.FirmwareUEFI, HTTP: true},
		{Type: 19, Name: "aarch64", Firmware: api.FirmwareUEFI, HTTP: true, Files: arm64()},
	}
}

// Find returns the first architecture of the types a client lists.
func Find(types []uint16) (Architecture, bool) {
	for _, t := range types {
		all := Architectures()
		if i := slices.IndexFunc(all, func(a Architecture) bool { return a.Type == t }); i >= 0 {
			return all[i], true
		}
	}
	return Architecture{}, false
}

// Set is loaders by name; immutable.
type Set map[string][]byte

// Read reads the loaders of the table that are in dir; the error wraps fs.ErrNotExist when there is none.
func Read(dir string) (Set, error) {
	set := Set{}
	for _, a := range Architectures() {
		for _, name := range a.Files {
			if set[name] != nil {
				continue
			}
			content, err := read(filepath.Join(dir, filepath.FromSlash(name)))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("network boot loader: %w", err)
			}
			set[name] = content
		}
	}
	if len(set) == 0 {
		return nil, fmt.Errorf("no network boot loader in %s (such as undionly.kpxe or snponly.efi); install the package ipxe, "+
			"or give a directory with loaders: %w", dir, fs.ErrNotExist)
	}
	return set, nil
}

func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() == 0 || info.Size() > maxBytes {
		return nil, fmt.Errorf("%s is not a loader: it must be a file of 1 to %d bytes", path, maxBytes)
	}
	return os.ReadFile(path)
}

// For names the loader for an architecture, "" when there is none.
func (s Set) For(a Architecture) string {
	for _, name := range a.Files {
		if s[name] != nil {
			return name
		}
	}
	return ""
}

// Get returns a loader by the name a client asked for: one leading slash is forgiven (RFC 1350 clients write both), nothing else is.
func (s Set) Get(name string) ([]byte, bool) {
	content, ok := s[strings.TrimPrefix(name, "/")]
	return content, ok
}
