package vdc

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test ./testbed/vdc -update writes it); got:\n%s", path, got)
	}
}

func testMachines(t *testing.T) []*Machine {
	t.Helper()
	cfg, err := Config{Name: "golden", Machines: []MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS},
		{
			Name: "u1", Firmware: api.FirmwareUEFI, CPUs: 4, MemoryMiB: 2048, DiskBytes: []int64{1 << 30, 2 << 30},
			Serial: "SN<1>", OEMStrings: []string{"nearmetal-token=a&b"},
		},
		{Name: "diskless", Firmware: api.FirmwareUEFI, DiskBytes: []int64{}},
		{Name: "sriov", Firmware: api.FirmwareBIOS, SRIOV: true},
		{Name: "kcs", Firmware: api.FirmwareBIOS, HostInterface: HostClosable},
		{Name: "watched", Firmware: api.FirmwareBIOS, Watchdog: true},
		{Name: "gpu", Firmware: api.FirmwareBIOS, GPU: true},
	}, Emulator: "/QEMU10/qemu-system-x86_64"}.complete()
	if err != nil {
		t.Fatal(err)
	}
	machines, err := cfg.machines("/DIR")
	if err != nil {
		t.Fatal(err)
	}
	return machines
}

func TestAMachinesXMLIsAsTheGoldenFilesSay(t *testing.T) {
	for _, m := range testMachines(t) {
		got, err := domainXML(m, "/DIR", m.Name == "diskless")
		if err != nil {
			t.Fatal(err)
		}
		golden(t, m.Name+".xml", got)
	}
}

func TestLossIsDroppedBothWaysAtTheCable(t *testing.T) {
	golden(t, "loss.nft", lossRules(0.025))
	if strings.Contains(lossRules(0), "chain") {
		t.Error("without loss there still is a chain")
	}
}

func TestACutNICKeepsAllElseOfIt(t *testing.T) {
	m := testMachines(t)[0]
	text, err := domainXML(m, "/DIR", false)
	if err != nil {
		t.Fatal(err)
	}
	got, err := interfaceXML(text, m.DataMAC, "down")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`type="bridge"`, m.DataMAC, `bridge="data"`, `<link state="down"></link>`, `enabled="no"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
	if again, err := interfaceXML("<domain>"+got+"</domain>", m.DataMAC, "up"); err != nil || strings.Count(again, "<link") != 1 || !strings.Contains(again, "up") {
		t.Errorf("cut and restored: %s, %v", again, err)
	}
	if _, err := interfaceXML(text, "52:54:00:ff:ff:ff", "down"); err == nil {
		t.Error("a NIC that no machine has was found")
	}
}

func TestMachinesAreTheSameInTheNextDataCentreOfTheName(t *testing.T) {
	first, second := testMachines(t), testMachines(t)
	seen := map[string]bool{}
	for i := range first {
		if first[i].UUID != second[i].UUID || first[i].MAC != second[i].MAC {
			t.Errorf("%s is %s %s and then %s %s", first[i].Name, first[i].UUID, first[i].MAC, second[i].UUID, second[i].MAC)
		}
		for _, mac := range []string{first[i].MAC, first[i].DataMAC} {
			if seen[mac] {
				t.Errorf("two NICs have %s", mac)
			}
			seen[mac] = true
		}
	}
}

func TestABadConfigIsRefusedWithItsReason(t *testing.T) {
	t.Setenv("NEARMETAL_QEMU10", "")
	bios := MachineConfig{Name: "a", Firmware: api.FirmwareBIOS}
	for _, test := range []struct {
		config Config
		want   string
	}{
		{Config{}, "needs at least one machine"},
		{Config{Name: "../x", Machines: []MachineConfig{bios}}, `named "../x"`},
		{Config{Machines: []MachineConfig{{Name: "A b", Firmware: api.FirmwareBIOS}}}, `named "A b"`},
		{Config{Machines: []MachineConfig{bios, bios}}, "two machines"},
		{Config{Machines: []MachineConfig{{Name: "a", Firmware: "coreboot"}}}, "coreboot"},
		{Config{Machines: []MachineConfig{{Name: "a", Firmware: api.FirmwareBIOS, SRIOV: true}}}, "make qemu10"},
		{Config{Emulator: "/qemu", Machines: []MachineConfig{{Name: "a", Firmware: api.FirmwareBIOS, SRIOV: true, MemoryMiB: 2816}}}, "less than 2816 MiB"},
	} {
		if _, err := test.config.complete(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v, want %q in it", test.config, err, test.want)
		}
	}
}
