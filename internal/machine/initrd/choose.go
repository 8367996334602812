package initrd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/machine/kernelmodule"
)

// essential returns what every boot needs: a kernel that has one neither as a module nor built in can't boot machines.
func essential() []string {
	return []string{"nbd", "loop", "dm_mod", "erofs", "overlay"}
}

// usual returns the modules a machine may need before its root is there: drivers of the NICs that servers have, and of disks that a root
// may be kept on. Those that a kernel lacks are left out, as are NICs that need firmware from files. All others are loaded from the root.
func usual() []string {
	return []string{
		"squashfs", "af_packet",
		// NICs: virtual ones, then by maker.
		"virtio_pci", "virtio_net", "vmxnet3", "hv_netvsc", "xen_netfront", "ena", "gve",
		"e1000", "e1000e", "igb", "igc", "ixgbe", "ixgbevf", "i40e", "iavf", "ice", "mlx4_core", "mlx4_en", "mlx5_core", "bnxt_en", "tg3",
		"cxgb4", "qede", "sfc", "enic", "be2net", "atlantic", "r8169", "8139cp", "8139too", "sky2", "atl1c", "alx", "forcedeth",
		// arm64 servers' own.
		"thunder_xcv", "nicvf", "hns3", "hclge", "xgene_enet", "virtio_mmio",
		// Disks, random numbers, the power button.
		"virtio_blk", "virtio_scsi", "nvme", "ahci", "sd_mod", "ata_piix", "megaraid_sas", "mpt3sas", "virtio_rng", "button", "evdev",
		// softdeps name them by alias only.
		"crc32c_intel", "crc32c_generic",
	}
}

// forInspection returns what only inspection and cleaning look at: more disk controllers, TPMs, HCAs, the BMC, sensors, watchdogs, memory errors, EFI variables.
func forInspection() []string {
	return []string{
		"smartpqi", "hpsa", "aacraid", "vmd", "mlx5_ib", "mlx4_ib", "ipmi_si", "ipmi_devintf", "ipmi_ssif", "efivarfs",
		"tpm_tis", "tpm_crb", "mpi3mr", "pm80xx", "isci", "mvsas", "aic94xx", "sata_nv", "sata_sil24", "sata_mv", "ata_generic", "nd_pmem", "mmc_block", "sdhci_pci",
		// Watchdogs, and what their devices hang on.
		"i6300esb", "iTCO_wdt", "lpc_ich", "i2c_i801", "sp5100_tco", "hpwdt",
		"coretemp", "k10temp", "amd64_edac", "sb_edac", "skx_edac", "i10nm_edac", "ie31200_edac",
	}
}

// choose returns the names of all modules of an initrd, sorted.
func choose(index *kernelmodule.Index, small bool, extra []string) ([]string, error) {
	var names, missing []string
	for _, name := range slices.Concat(essential(), extra) {
		switch {
		case index.Has(name):
			names = append(names, name)
		case !index.Builtin(name):
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("the kernel lacks the modules %s, so machines can't boot with it; install its full module package", strings.Join(missing, ", "))
	}
	wanted := usual()
	if !small {
		wanted = append(wanted, forInspection()...)
	}
	for _, name := range wanted {
		if index.Has(name) {
			names = append(names, kernelmodule.Name(name))
		}
	}
	return index.Closure(names), nil
}
