package inspection

import (
	"context"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/devices"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/sysfs"
)

// Faults reads the errors that the machine below a root has counted: of memory controllers with a driver (EDAC), and of disks that say something.
// What can't be read is left out, never zero.
func Faults(ctx context.Context, root string, wear func(api.Disk) (devices.Wear, error)) api.HardwareFaults {
	tree := sysfs.At(root)
	out := api.HardwareFaults{Boot: tree.Text("proc/sys/kernel/random/boot_id")}
	const dir = "sys/devices/system/edac/mc/"
	for _, name := range tree.Names(dir) {
		corrected, okCorrected := tree.Int(dir + name + "/ce_count")
		uncorrected, okUncorrected := tree.Int(dir + name + "/ue_count")
		if okCorrected && okUncorrected {
			out.Memory = append(out.Memory, api.MemoryFaults{Controller: name, Corrected: corrected, Uncorrected: uncorrected})
		}
	}
	var hw api.Hardware
	if fill, _ := readDisks(ctx, source{Source: Source{Root: root}, tree: tree}); fill != nil {
		fill(&hw)
	}
	for _, disk := range hw.Disks {
		if ctx.Err() != nil {
			break
		}
		if seen, err := wear(disk); err == nil && seen.Known {
			out.Disks = append(out.Disks, api.DiskFaults{
				Name: disk.Name, Model: disk.Model, Serial: disk.Serial, Failing: seen.Failing, MediaErrors: seen.MediaErrors,
			})
		}
	}
	return out
}

// Wear asks a disk of the running machine for its wear.
func Wear(disk api.Disk) (devices.Wear, error) { return realDisks{}.Wear(disk) }
