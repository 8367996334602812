package inspection

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/inspectiontest"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/sysfs"
)

var update = flag.Bool("update", false, "write the golden files of what is inspected")

// scripted answers as the devices of a server would.
type scripted struct {
	wake    map[string]string
	address string
	err     error
	hang    chan struct{}
}

func (s scripted) WakeOn(nic string) (string, error) {
	if s.hang != nil {
		<-s.hang
	}
	return s.wake[nic], s.err
}

func (s scripted) BMCAddress(context.Context) (string, error) { return s.address, nil }

// golden compares hardware with the file of that name.
func golden(t *testing.T, file string, hw api.Hardware) {
	t.Helper()
	got, err := json.MarshalIndent(hw, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s differs; look at it after go test -update\ngot:\n%s", file, got)
	}
}

func TestAServersHardwareIsFound(t *testing.T) {
	t.Parallel()
	root := inspectiontest.Read(t, "testdata/two-socket.tree").Unpack(t)
	hw, problems := Collect(t.Context(), Source{
		Root: root, BootMAC: "B4:2E:99:00:00:01",
		Devices: scripted{wake: map[string]string{"eno1": "pumbg"}, address: "10.20.0.11"},
	})
	if len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
	golden(t, "testdata/two-socket.json", hw)
}

func TestAnEmulatedMachinesHardwareIsFound(t *testing.T) {
	t.Parallel()
	root := inspectiontest.Read(t, "testdata/qemu.tree").Unpack(t)
	hw, problems := Collect(t.Context(), Source{Root: root, BootMAC: "52:54:00:00:00:01"})
	if len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
	golden(t, "testdata/qemu.json", hw)
}

func TestTwoInspectionsOfOneMachineAreEqual(t *testing.T) {
	t.Parallel()
	root := inspectiontest.Read(t, "testdata/two-socket.tree").Unpack(t)
	first, _ := Collect(t.Context(), Source{Root: root})
	for range 20 {
		if again, _ := Collect(t.Context(), Source{Root: root}); !reflect.DeepEqual(first, again) {
			t.Fatalf("got %+v\nfirst %+v", again, first)
		}
	}
}

func TestAnEmptyMachineIsToldAsProblemsNotAsFailure(t *testing.T) {
	t.Parallel()
	hw, problems := Collect(t.Context(), Source{Root: t.TempDir()})
	if len(problems) != 4 {
		t.Errorf("got problems %v, want kernel version, architecture, CPU and memory", problems)
	}
	for name, list := range map[string]bool{
		"disks": hw.Disks != nil, "nics": hw.NICs != nil, "hcas": hw.HCAs != nil, "gpus": hw.GPUs != nil, "pci": hw.PCI != nil, "numa": hw.NUMANodes != nil,
	} {
		if !list {
			t.Errorf("%s is null in JSON, want an empty list", name)
		}
	}
}

func TestADriverThatHangsLosesItsPartOnly(t *testing.T) {
	t.Parallel()
	root := inspectiontest.Read(t, "testdata/qemu.tree").Unpack(t)
	synctest.Test(t, func(t *testing.T) { // time passes for the driver that hangs only, however slow this machine is
		hang := make(chan struct{})
		defer close(hang)
		hw, problems := Collect(t.Context(), Source{Root: root, Devices: scripted{hang: hang}, PartDeadline: time.Second})
		if len(problems) != 1 || problems[0].String() != "nics: its driver did not answer in time" {
			t.Errorf("got problems %v", problems)
		}
		if len(hw.NICs) != 0 || len(hw.Disks) != 3 {
			t.Errorf("got %d NICs and %d disks, want 0 and 3", len(hw.NICs), len(hw.Disks))
		}
	})
}

func TestAnErrorOfADeviceIsAProblemAndTheRestIsThere(t *testing.T) {
	t.Parallel()
	root := inspectiontest.Read(t, "testdata/qemu.tree").Unpack(t)
	hw, problems := Collect(t.Context(), Source{Root: root, Devices: scripted{err: errors.New("ask eth0 what wakes it: I/O error")}})
	if len(problems) != 1 || !strings.Contains(problems[0].String(), "nics: ask eth0") || len(hw.NICs) != 1 {
		t.Errorf("got problems %v, NICs %v", problems, hw.NICs)
	}
}

func TestTheEnrolmentTokenIsFoundWhereMachinesCarryIt(t *testing.T) {
	t.Parallel()
	tree := inspectiontest.Read(t, "testdata/qemu.tree")
	hw, _ := Collect(t.Context(), Source{Root: tree.Unpack(t)})
	if hw.EnrollmentToken != "s3cret" {
		t.Errorf("OEM string: got %q", hw.EnrollmentToken)
	}
	delete(tree, "sys/firmware/dmi/tables/DMI")
	tree["proc/cmdline"] = "quiet nearmetal.enroll=fr0m-arguments\n"
	hw, problems := Collect(t.Context(), Source{Root: tree.Unpack(t)})
	if hw.EnrollmentToken != "fr0m-arguments" || len(problems) > 0 {
		t.Errorf("kernel's arguments: got %q, problems %v", hw.EnrollmentToken, problems)
	}
}

func TestNamesComeFromTheDatabaseIfThereIsOne(t *testing.T) {
	t.Parallel()
	tree := inspectiontest.Read(t, "testdata/two-socket.tree")
	tree["usr/share/misc/pci.ids"] = "# a comment\n15b3  Mellanox Technologies\n\t101b  MT28908 Family [ConnectX-6]\n\t\t15b3 0006  a subsystem\n" +
		"10de  NVIDIA Corporation\n\t20b0  GA100 [A100 SXM4 40GB]\nC 03  Display controller\n"
	hw, _ := Collect(t.Context(), Source{Root: tree.Unpack(t)})
	names := map[string]string{}
	for _, f := range hw.PCI {
		names[f.Device] = f.Name
	}
	if got, want := names["15b3:101b"], "Mellanox Technologies MT28908 Family [ConnectX-6]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := names["8086:1521"]; got == "" {
		t.Error("a device that the database lacks has no name")
	}
}

// Only what outlives the machine's power can be a tenant's at the next boot.
func TestLastingVariablesOfTheFirmwareAreNoted(t *testing.T) {
	t.Parallel()
	const dir = "sys/firmware/efi/efivars/"
	tree := sysfs.At(inspectiontest.Tree{dir + "Setup-x": "\x07\x00\x00\x00a", dir + "SecureBoot-x": "\x06\x00\x00\x00\x01", dir + "Empty-x": "\x07\x00\x00\x00"}.Unpack(t))
	if got := lastingVariables(tree); !slices.Equal(got, []string{"Setup-x"}) {
		t.Errorf("got %q", got)
	}
}

func TestInfiniBandPortsAreKnownByTheirGUIDsAndAWatchdogByItsDriver(t *testing.T) {
	t.Parallel()
	const hca, pci = "sys/class/infiniband/mlx5_0", "sys/devices/pci0000:00/0000:17:00.0"
	tree := inspectiontest.Tree{
		pci + "/class": "0x020700\n", hca + "/device": inspectiontest.LinkTo + "../../../devices/pci0000:00/0000:17:00.0", hca + "/node_guid": "0002:c903:00a1:b2c2\n",
		hca + "/ports/1/link_layer": "InfiniBand\n", hca + "/ports/1/state": "4: ACTIVE\n", hca + "/ports/1/gids/0": "fe80:0000:0000:0000:0002:C903:00a1:b2c3\n",
		hca + "/ports/2/link_layer": "Ethernet\n", hca + "/ports/2/gids/0": "fe80:0000:0000:0000:0202:c9ff:fea1:b2c4\n",
		hca + "/ports/3/link_layer": "InfiniBand\n", hca + "/ports/3/gids/0": "fe80:0000:0000:0000:0000:0000:0000:0000\n",
		"sys/class/watchdog/watchdog0/identity": "Software Watchdog\n", "sys/class/watchdog/watchdog1/identity": "i6300ESB timer\n",
	}
	hw, problems := Collect(t.Context(), Source{Root: tree.Unpack(t)})
	if len(hw.HCAs) != 1 || !slices.Equal(hw.HCAs[0].PortGUIDs, []string{"0002c90300a1b2c3"}) {
		t.Errorf("its adapters are %+v (%v)", hw.HCAs, problems)
	}
	if hw.Watchdog != "i6300ESB timer" {
		t.Errorf("its watchdog is %q", hw.Watchdog)
	}
}
