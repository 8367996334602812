package initrd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/kernelmodule"
)

// essential returns what every boot needs: a kernel that has one neither as a module nor built in can't boot machines.
func essential() []string {
	return []string{"nbd", "loop", "dm_mod", "erofs", "overlay"}
}

// usual returns the modules a machine may need before its root is there: drivers of the NICs and disks that servers have, and what
// inspection looks at. Those that a kernel lacks are left out. All others are loaded from the root.
func usual() []string {
	return []string{
		"squashfs", "af_packet",
		// NICs: virtual ones, then by maker.
		"virtio_pci", "virtio_net", "vmxnet3", "hv_netvsc", "xen_netfront", "ena", "gve",
		"e1000", "e1000e", "igb", "igc", "ixgbe", "ixgbevf", "i40e", "iavf", "ice",
		"mlx4_core", "mlx4_en", "mlx5_core", "mlx5_ib", "mlx4_ib",
		"bnx2", "bnx2x", "bnxt_en", "tg3", "cxgb4", "qede", "sfc", "enic", "be2net", "atlantic", "r8169", "8139cp", "8139too", "sky2", "atl1c", "alx", "forcedeth",
		// The buses of arm64 servers and their NICs.
		"thunder_xcv", "nicvf", "hns3", "hclge", "fec", "stmmac", "dwmac_generic", "macb", "xgene_enet", "virtio_mmio",
		// Disks.
		"virtio_blk", "virtio_scsi", "nvme", "ahci", "sd_mod", "ata_piix", "megaraid_sas", "mpt3sas", "smartpqi", "hpsa", "aacraid", "vmd",
		// What inspection reads: BMC, sensors, memory errors, EFI variables; and the power button.
		"ipmi_si", "ipmi_devintf", "ipmi_ssif", "coretemp", "k10temp", "amd64_edac", "sb_edac", "skx_edac", "i10nm_edac", "ie31200_edac", "efivarfs",
		"button", "evdev", "virtio_rng",
		// softdeps name it by alias only.
		"crc32c_intel", "crc32c_generic",
	}
}

// choose returns the names of all modules of an initrd, sorted.
func choose(index *kernelmodule.Index, extra []string) ([]string, error) {
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
		return nil, fmt.Errorf("it lacks the modules %s: machines can't boot with it; install its whole module package", strings.Join(missing, ", "))
	}
	for _, name := range usual() {
		if index.Has(name) {
			names = append(names, kernelmodule.Name(name))
		}
	}
	return index.Closure(names), nil
}
