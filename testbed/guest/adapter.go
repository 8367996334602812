package guest

import (
	"fmt"
	"strconv"
)

// machine is QEMU's machine. An IOMMU that remaps interrupts needs the interrupt controller in QEMU.
func machine(cfg Config) string {
	if !cfg.hasIOMMU() {
		return "q35,accel=tcg"
	}
	return "q35,accel=tcg,kernel-irqchip=split"
}

// kernelArguments is the guest's kernel command line. With adapters, the kernel uses the IOMMU, for devices that it hands out only.
func kernelArguments(cfg Config) string {
	const all = "console=ttyS0 panic=-1 mitigations=off no_timer_check random.trust_cpu=on 8250.nr_uarts=4"
	if !cfg.hasIOMMU() {
		return all
	}
	return all + " intel_iommu=on iommu=pt"
}

// hasIOMMU reports whether the guest has devices that it can hand out.
func (cfg Config) hasIOMMU() bool { return cfg.Adapters > 0 || cfg.GPU }

// handedOut are QEMU's arguments for an IOMMU, adapters and a GPU, each behind a root port of its own: they have IOMMU groups of their own then.
func handedOut(cfg Config) []string {
	if !cfg.hasIOMMU() {
		return nil
	}
	args := []string{"-device", "intel-iommu,intremap=on,caching-mode=on"}
	if cfg.GPU {
		args = append(args, "-device", "pcie-root-port,id=gpuport,chassis=90,slot=90", "-device", "bochs-display,bus=gpuport,edid=off")
	}
	for n := range cfg.Adapters {
		id := strconv.Itoa(n)
		args = append(args,
			"-device", "pcie-root-port,id=root"+id+",chassis="+strconv.Itoa(n+1)+",slot="+strconv.Itoa(n+1),
			"-netdev", "hubport,id=wire"+id+",hubid="+id,
			"-device", fmt.Sprintf("igb,bus=root%s,netdev=wire%[1]s,mac=52:54:00:00:ff:%02x,romfile=", id, n),
		)
	}
	return args
}
