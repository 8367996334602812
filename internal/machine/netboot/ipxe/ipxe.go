// Package ipxe writes the iPXE script of each machine: what it loads, with which arguments, and how it ends when it shall load nothing.
//
// It is pure and knows only what it is given; who may have a script is decided by who serves it. Start with Script.
package ipxe

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
)

// Paths of the HTTP server.
const (
	ScriptPath = "/boot/"   // + MAC with hyphens + ".ipxe", ?generation=N
	LoaderPath = "/loader/" // + name of a loader
	ImagePath  = "/images/" // + digits of a digest
	// GenerationQuery names the boot that a script was announced for.
	GenerationQuery = "generation"
	scriptSuffix    = ".ipxe"
)

// Base is the URL of the HTTP server, without a closing slash.
func Base(n netboot.Network) string {
	return "http://" + netip.AddrPortFrom(n.Address.Addr(), uint16(n.HTTPPort)).String()
}

// URL is where a machine finds its script for a boot; nil for one that is not meant to boot.
func URL(n netboot.Network, mac string, boot *netboot.Boot) string {
	generation := int64(0)
	if boot != nil {
		generation = boot.Generation
	}
	return Base(n) + ScriptPath + strings.ReplaceAll(mac, ":", "-") + scriptSuffix + "?" + GenerationQuery + "=" + strconv.FormatInt(generation, 10)
}

// MAC is the MAC that the last part of a script's path names, with colons and in lower case; false when it is none.
func MAC(name string) (string, bool) {
	name, ok := strings.CutSuffix(name, scriptSuffix)
	if !ok || len(name) != 17 {
		return "", false
	}
	mac := strings.ToLower(strings.ReplaceAll(name, "-", ":"))
	for i, r := range []byte(mac) {
		if i%3 == 2 && r != ':' || i%3 != 2 && !strings.ContainsRune("0123456789abcdef", rune(r)) {
			return "", false
		}
	}
	return mac, true
}

// LoaderURL is where UEFI HTTP boot finds a loader.
func LoaderURL(n netboot.Network, name string) string { return Base(n) + LoaderPath + name }

// Machine is whom a script is for.
type Machine struct {
	MAC string
	// Name is empty for a stranger.
	Name string
	// Firmware is empty while not known.
	Firmware api.Firmware
}

// Script is the script for a boot. Arguments are the kernel's, all of them.
//
// A transfer that fails is tried again for about two minutes, each time with a script fetched anew: so a machine outlives a restart of the
// server, and never loads what it is no longer meant to. Loaders of 2019 (Debian's) and of today understand all of it.
func Script(n netboot.Network, m Machine, boot *netboot.Boot, arguments string) string {
	var b strings.Builder
	head(&b, m, fmt.Sprintf("%s, generation %d", boot.Purpose, boot.Generation))
	fmt.Fprintf(&b, "echo Nearmetal: %s boots for: %s\n", title(m), boot.Purpose)
	// The initrds are named because an EFI kernel of before 5.8, or a loader of before 2021, finds them by these names only. The kernel unpacks
	// them one behind the other (Documentation/driver-api/early-userspace/buffer-format.rst).
	names := "initrd=initrd"
	if boot.Agent != "" {
		names += " initrd=agent"
	}
	fmt.Fprintf(&b, "kernel --name kernel %s %s %s || goto again\n", blobURL(n, boot.Kernel), names, arguments)
	fmt.Fprintf(&b, "initrd --name initrd %s || goto again\n", blobURL(n, boot.Initrd))
	if boot.Agent != "" {
		fmt.Fprintf(&b, "initrd --name agent %s || goto again\n", blobURL(n, boot.Agent))
	}
	b.WriteString("boot || goto again\n")
	again(&b, URL(n, m.MAC, boot))
	end(&b, m)
	return b.String()
}

// Arguments are all arguments of the kernel of a boot. own are those of the boot agent that are this machine's and this server's alone.
func Arguments(n netboot.Network, b *netboot.Boot, own boot.Arguments) string {
	own.Purpose, own.Manifest, own.Images = b.Purpose, b.Manifest, Base(n)+ImagePath
	return strings.TrimSpace(b.Arguments + " " + own.Encode())
}

// Again is the script for a machine that asks for an earlier boot's: it fetches the present one's; nil: that of one that is not decided yet.
func Again(n netboot.Network, m Machine, boot *netboot.Boot) string {
	var b strings.Builder
	why := "the requested script is of an earlier boot"
	if boot == nil {
		why = "its boot image is being chosen"
	}
	head(&b, m, why)
	again(&b, URL(n, m.MAC, boot))
	end(&b, m)
	return b.String()
}

// End is the script for a machine that is not meant to boot: it goes on with its next boot device.
func End(m Machine, why string) string {
	var b strings.Builder
	head(&b, m, why)
	fmt.Fprintf(&b, "echo Nearmetal: %s: %s\n", title(m), why)
	end(&b, m)
	return b.String()
}

func blobURL(n netboot.Network, d image.Digest) string { return Base(n) + ImagePath + d.Hex() }

func title(m Machine) string {
	if m.Name == "" {
		return m.MAC
	}
	return m.Name
}

func head(b *strings.Builder, m Machine, what string) {
	fmt.Fprintf(b, "#!ipxe\n# %s (%s): %s\n", title(m), m.MAC, what)
}

// again fetches a script, for about two minutes. What was loaded is freed first: a second copy may not fit.
func again(b *strings.Builder, url string) {
	b.WriteString(":again\nimgfree ||\nset tries:int32 0\n:more\nsleep 2 ||\n")
	fmt.Fprintf(b, "chain --replace --autofree %s ||\n", url)
	b.WriteString("inc tries\niseq ${tries} 40 || goto more\n")
}

// end leaves iPXE. BIOS firmware often can't go on after a loader has run (its exit hangs or begins again), so the first disk is started
// directly; without one, and under UEFI, exit returns to the firmware's boot order.
func end(b *strings.Builder, m Machine) {
	b.WriteString(":end\n")
	if m.Firmware == api.FirmwareBIOS {
		b.WriteString("sanboot --no-describe --drive 0x80 ||\n")
	}
	b.WriteString("exit\n")
}
