package guest

import (
	"fmt"
	"strconv"
)

// machine is QEMU's machine. An IOMMU that remaps interrupts needs the interrupt controller in QEMU.
func machine(cfg Config) string {
	if cfg.Adapters == 0 {
		return "q35,accel=tcg"
	}
	return "q35,accel=tcg,kernel-irqchip=split"
}

// kernelArguments is the guest's kernel command line. With adapters, the kernel uses the IOMMU, for devices that it hands out only.
func kernelArguments(cfg Config) string {
	const all = "console=ttyS0 panic=-1 mitigations=off no_timer_check random.trust_cpu=on 8250.nr_uarts=4"
	if cfg.Adapters == 0 {
		return all
	}
	return all + " intel_iommu=on iommu=pt"
}

// adapters are QEMU's arguments for an IOMMU and so many adapters, each behind a root port of its own: functions have IOMMU groups of their own then.
func adapters(count int) []string {
	if count == 0 {
		return nil
	}
	args := []string{"-device", "intel-iommu,intremap=on,caching-mode=on"}
	for n := range count {
		id := strconv.Itoa(n)
		args = append(args,
			"-device", "pcie-root-port,id=root"+id+",chassis="+strconv.Itoa(n+1)+",slot="+strconv.Itoa(n+1),
			"-netdev", "hubport,id=wire"+id+",hubid="+id,
			"-device", fmt.Sprintf("igb,bus=root%s,netdev=wire%[1]s,mac=52:54:00:00:ff:%02x,romfile=", id, n),
		)
	}
	return args
}
