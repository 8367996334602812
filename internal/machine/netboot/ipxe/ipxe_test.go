package ipxe_test

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/ipxe"
)

var update = flag.Bool("update", false, "write the golden files")

func TestScriptsAreAsWritten(t *testing.T) {
	network := netboot.Network{Address: netip.MustParsePrefix("10.77.0.1/16"), HTTPPort: 8069}
	boot := func(purpose api.BootPurpose, generation int64) *netboot.Boot {
		return &netboot.Boot{
			Purpose: purpose, Generation: generation, Kernel: image.DigestOf([]byte("kernel")), Initrd: image.DigestOf([]byte("initrd")),
			Agent: image.DigestOf([]byte("agent")),
		}
	}
	n1 := func(f api.Firmware) ipxe.Machine {
		return ipxe.Machine{MAC: "02:00:00:00:00:01", Name: "n1", Firmware: f}
	}
	whole := boot(api.BootEnvironment, 7)
	whole.Agent = ""
	unknown := ipxe.Machine{MAC: "02:00:00:00:00:99", Firmware: api.FirmwareUEFI}
	const arguments = "console=ttyS0 nearmetal.server=10.77.0.1:7443 nearmetal.token=TOKEN"
	for name, script := range map[string]string{
		"enroll-uefi":            ipxe.Script(network, unknown, boot(api.BootEnroll, 0), arguments),
		"inspect-bios":           ipxe.Script(network, n1(api.FirmwareBIOS), boot(api.BootInspect, 3), arguments),
		"inspect-uefi":           ipxe.Script(network, n1(api.FirmwareUEFI), boot(api.BootInspect, 3), arguments),
		"environment-bios":       ipxe.Script(network, n1(api.FirmwareBIOS), boot(api.BootEnvironment, 7), arguments),
		"environment-uefi":       ipxe.Script(network, n1(api.FirmwareUEFI), boot(api.BootEnvironment, 7), arguments),
		"one-initrd":             ipxe.Script(network, n1(api.FirmwareUEFI), whole, arguments),
		"not-meant-to-boot-bios": ipxe.End(n1(api.FirmwareBIOS), "not meant to boot from the network"),
		"not-meant-to-boot-uefi": ipxe.End(n1(api.FirmwareUEFI), "not meant to boot from the network"),
		"not-decided-yet":        ipxe.Again(network, n1(api.FirmwareBIOS), nil),
		"earlier-generation":     ipxe.Again(network, n1(api.FirmwareUEFI), boot(api.BootEnvironment, 7)),
	} {
		path := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.WriteFile(path, []byte(script), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), script); diff != "" {
			t.Errorf("%s: -want +got (go test -update writes it):\n%s", name, diff)
		}
	}
}

func FuzzMAC(f *testing.F) {
	f.Add("02-00-00-00-00-01.ipxe")
	f.Add("02:00:00:00:00:0G.ipxe")
	f.Fuzz(func(t *testing.T, name string) {
		mac, ok := ipxe.MAC(name)
		if ok && (len(mac) != 17 || mac[2] != ':') {
			t.Errorf("%q is no MAC", mac)
		}
	})
}

func TestAScriptsNameIsAMAC(t *testing.T) {
	for name, want := range map[string]string{
		"02-00-00-00-00-ab.ipxe": "02:00:00:00:00:ab", "02:00:00:00:00:AB.ipxe": "02:00:00:00:00:ab", "02-00-00-00-00-ab": "", "02-00-00-00-00-a.ipxe": "",
		"02-00-00-00-00-ag.ipxe": "", "02-00-00-00-00.ab.ipxe": "", "020-0-00-00-00-ab.ipxe": "", "..-..-..-..-..-...ipxe": "",
	} {
		if got, ok := ipxe.MAC(name); got != want || ok != (want != "") {
			t.Errorf("MAC(%q) = %q, %v; want %q", name, got, ok, want)
		}
	}
}
