package service_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
)

func (l *lab) awaitStage(stage api.BootStage) netboot.Event {
	l.t.Helper()
	return l.await("the end of stage "+string(stage), func(e netboot.Event) bool { return e.Stage == stage })
}

// A UEFI machine's whole way: firmware's DHCP, loader over TFTP, iPXE's DHCP, script, kernel and initrd; then the boot agent's DHCP.
func TestAMachineBootsByStages(t *testing.T) {
	l := newLab(t, nil)
	l.start()
	boot := l.boot(7, api.BootEnvironment)
	l.service.SetTable(l.table(1, boot))
	l.setMAC(known)

	told, err := l.udhcpc("-V", "PXEClient:Arch:00007:UNDI:003016", "-x", "0x5d:0007", "-O", "tftp", "-O", "bootfile")
	if err != nil {
		t.Fatal(err)
	}
	if told["ip"] != "10.77.1.1" || told["boot_file"] != "snponly.efi" || told["siaddr"] != "10.77.0.1" || told["router"] != "10.77.0.254" {
		t.Fatalf("firmware was told %v", told)
	}
	e := l.awaitStage(api.StageFirmware)
	if e.Generation != 7 || e.Firmware != api.FirmwareUEFI || e.Architecture != "x86_64" || e.MAC.String() != known {
		t.Errorf("event %+v", e)
	}
	l.run("tftp", "-m", "binary", "10.77.0.1", "-c", "get", "snponly.efi", "loader")
	l.awaitStage(api.StageDHCP)

	told, err = l.udhcpc("-V", "PXEClient:Arch:00007:UNDI:003010", "-x", "0x5d:0007", "-x", "0x4d:69505845")
	if err != nil {
		t.Fatal(err)
	}
	url := told["boot_file"]
	if told["ip"] != "10.77.1.1" || url != "http://10.77.0.1:8069/boot/02-00-00-00-00-01.ipxe?generation=7" {
		t.Fatalf("iPXE was told %v", told)
	}
	script := l.run("curl", "-sSf", url)
	if !strings.Contains(script, "nearmetal.token=token/02:00:00:00:00:01/7/boot0") {
		t.Fatalf("the script is %s", script)
	}
	for _, d := range []string{boot.Kernel.Hex(), boot.Initrd.Hex()} {
		l.run("curl", "-sSf", "-o", "got", "http://10.77.0.1:8069/images/"+d)
		got, _ := os.ReadFile(filepath.Join(l.blobs.dir, "got"))
		want, _ := os.ReadFile(filepath.Join(l.blobs.dir, d))
		if string(got) != string(want) {
			t.Fatalf("%s came as %d bytes instead of %d", d, len(got), len(want))
		}
	}
	loader, _ := os.ReadFile(filepath.Join(l.blobs.dir, "loader"))
	want := int64(len(loader) + len(script) + 7*300_000)
	if e := l.awaitStage(api.StageLoader); e.Bytes != want || e.Generation != 7 {
		t.Errorf("event %+v, want %d bytes", e, want)
	}
	told, err = l.udhcpc("-x", "hostname:n1") // the boot agent, with another client identifier
	if err != nil || told["ip"] != "10.77.1.1" || told["boot_file"] != "" {
		t.Errorf("the system was told %v, %v", told, err)
	}
}

func TestAScriptIsForItsMachineOnly(t *testing.T) {
	l := newLab(t, nil)
	l.start()
	l.service.SetTable(l.table(1, l.boot(7, api.BootEnvironment)))
	l.setMAC(stranger)
	if _, err := l.udhcpc(); err != nil {
		t.Fatal(err)
	}
	out, err := l.try("curl", "-sS", "-f", "http://10.77.0.1:8069/boot/02-00-00-00-00-01.ipxe?generation=7")
	if err == nil || strings.Contains(out, "token") {
		t.Errorf("a stranger got a machine's script: %s", out)
	}
	l.await("a problem", func(e netboot.Event) bool { return strings.Contains(e.Problem, "which has another address") })
	if out := l.run("curl", "-sSf", "http://10.77.0.1:8069/boot/02-00-00-00-00-99.ipxe"); !strings.Contains(out, "nearmetal.purpose=enroll") {
		t.Errorf("a stranger boots: %s", out)
	}
}
