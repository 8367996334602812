package inspection_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/inspection"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/devices"
)

func TestErrorsOfMemoryAndDisksAreReadAndNothingIsMadeUp(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"proc/sys/kernel/random/boot_id":               "b00t",
		"sys/devices/system/edac/mc/mc0/ce_count":      "3",
		"sys/devices/system/edac/mc/mc0/ue_count":      "1",
		"sys/devices/system/edac/mc/mc1/ce_count":      "7", // the other counter can't be read
		"sys/devices/system/edac/mc/power/control":     "auto",
		"sys/block/sda/size":                           "2048",
		"sys/block/sda/device/model":                   "Disk",
		"sys/block/sdb/size":                           "2048",
		"sys/block/sdb/device/model":                   "Silent",
		"sys/block/sdc/size":                           "2048",
		"sys/block/sdc/device/model":                   "Broken",
		"sys/block/loop0/size":                         "2048",
		"sys/block/sda/device/serial":                  "s1",
		"sys/devices/system/edac/mc/mc2/seconds_since": "1",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := inspection.Faults(context.Background(), root, func(d api.Disk) (devices.Wear, error) {
		switch d.Name {
		case "sda":
			return devices.Wear{Known: true, Failing: "it has become read-only", MediaErrors: 4}, nil
		case "sdc":
			return devices.Wear{}, errors.New("no answer")
		}
		return devices.Wear{}, nil
	})
	want := api.HardwareFaults{
		Boot: "b00t", Memory: []api.MemoryFaults{{Controller: "mc0", Corrected: 3, Uncorrected: 1}},
		Disks: []api.DiskFaults{{Name: "sda", Model: "Disk", Serial: "s1", Failing: "it has become read-only", MediaErrors: 4}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
