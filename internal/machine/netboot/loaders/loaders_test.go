package loaders

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// The numbers are IANA's "Processor Architecture Types", https://www.iana.org/assignments/dhcpv6-parameters.
func TestEachTypeOfMachineGetsALoaderItCanRun(t *testing.T) {
	all := Set{"undionly.kpxe": {1}, "snponly.efi": {1}, "arm64-efi/snponly.efi": {1}}
	for _, tc := range []struct {
		kind     uint16
		name     string
		firmware api.Firmware
		http     bool
		loader   string
	}{
		{0, "x86_64", api.FirmwareBIOS, false, "undionly.kpxe"},
		{7, "x86_64", api.FirmwareUEFI, false, "snponly.efi"},
		{9, "x86_64", api.FirmwareUEFI, false, "snponly.efi"},
		{11, "aarch64", api.FirmwareUEFI, false, "arm64-efi/snponly.efi"},
		{16, "x86_64", api.FirmwareUEFI, true, "snponly.efi"},
		{19, "aarch64", api.FirmwareUEFI, true, "arm64-efi/snponly.efi"},
		{10, "armv7l", api.FirmwareUEFI, false, ""},
		{15, "i686", api.FirmwareUEFI, true, ""},
	} {
		a, ok := Find([]uint16{4711, tc.kind})
		if !ok || a.Name != tc.name || a.Firmware != tc.firmware || a.HTTP != tc.http {
			t.Errorf("type %d is %+v, %v; want %+v", tc.kind, a, ok, tc)
		}
		if got := all.For(a); got != tc.loader {
			t.Errorf("type %d gets %q, want %q", tc.kind, got, tc.loader)
		}
	}
	if a, ok := Find([]uint16{4711}); ok {
		t.Errorf("a type nobody knows is %+v", a)
	}
	a, _ := Find([]uint16{0})
	if got := (Set{"ipxe.pxe": {1}, "snponly.efi": {1}}).For(a); got != "ipxe.pxe" {
		t.Errorf("without the best loader of its kind, BIOS gets %q", got)
	}
}

func TestOnlyLoadersOfTheTableAreRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("passwd", "root")
	if _, err := Read(dir); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "install the package ipxe") {
		t.Errorf("a directory without a loader: %v", err)
	}
	write("arm64-efi/snponly.efi", "arm64")
	write("snponly.efi", "x64")
	set, err := Read(dir)
	if err != nil || len(set) != 2 {
		t.Fatalf("read %d loaders, %v; want 2", len(set), err)
	}
	for name, want := range map[string]string{"/snponly.efi": "x64", "arm64-efi/snponly.efi": "arm64", "passwd": "", "//snponly.efi": "", "../snponly.efi": ""} {
		if got, ok := set.Get(name); string(got) != want || ok != (want != "") {
			t.Errorf("%s gives %q, %v", name, got, ok)
		}
	}
	write("undionly.kpxe", "")
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "undionly.kpxe is not a loader") {
		t.Errorf("an empty loader: %v", err)
	}
}
