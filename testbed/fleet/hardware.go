package fleet

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/nearmetal/nearmetal/api"
)

// kind is a model of machine that data centres have many of.
type kind struct {
	product       string
	model         string
	sockets       int
	cores         int // of one socket
	memoryGiB     int64
	nvme, sata    int
	hcas, gpus    int
	speedMbps     int64
	virtualFuncts int
}

func kinds() []kind {
	return []kind{
		{"Compute 1000", "Example CPU 16C 2.90GHz", 2, 16, 256, 0, 1, 1, 0, 25000, 16},
		{"Compute 2000", "Example CPU 32C 2.60GHz", 2, 32, 512, 1, 0, 1, 0, 100000, 16},
		{"Accelerated 4", "Example CPU 28C 2.00GHz", 2, 28, 1024, 4, 0, 2, 4, 200000, 16},
		{"Storage 12", "Example CPU 12C 3.20GHz", 1, 12, 192, 2, 12, 0, 0, 25000, 8},
		{"Edge 1", "Example CPU 8C 3.40GHz", 1, 8, 64, 1, 0, 0, 0, 1000, 0},
	}
}

// Hardware is what machine i of a seed is made of: always the same, like no other one's in MACs, serial numbers and UUID.
func Hardware(seed uint64, i int) api.Hardware {
	r := rand.New(rand.NewPCG(seed, uint64(i)))
	k := kinds()[r.IntN(len(kinds()))]
	firmware := api.FirmwareBIOS
	if i%2 == 1 {
		firmware = api.FirmwareUEFI
	}
	hw := api.Hardware{
		Vendor: "Example Systems", Product: k.product, Serial: fmt.Sprintf("EX%02X%06d", seed&0xff, i), UUID: uuid(seed, i),
		Architecture: "x86_64", Firmware: firmware, FirmwareVersion: "Example 1.4.2 (02/01/2026)",
		CPU: api.CPU{
			Model: k.model, Vendor: "GenuineIntel", Sockets: k.sockets, Cores: k.sockets * k.cores, Threads: 2 * k.sockets * k.cores,
			Flags: []string{"aes", "avx", "avx2", "avx512f", "sse2", "vmx"}, Virtualization: true,
		},
		MemoryBytes: k.memoryGiB << 30 / 64 * 63, // what a kernel leaves of it
		Disks:       []api.Disk{}, HCAs: []api.HCA{}, GPUs: []api.GPU{}, PCI: []api.PCI{},
		BMC: &api.BMC{Interface: "KCS", Version: "2.0"}, KernelVersion: "6.1.0-37-amd64",
	}
	for node := range k.sockets {
		hw.NUMANodes = append(hw.NUMANodes, api.NUMANode{ID: node, MemoryBytes: hw.MemoryBytes / int64(k.sockets)})
	}
	for n := range k.nvme {
		hw.Disks = append(hw.Disks, api.Disk{
			Name: fmt.Sprintf("nvme%dn1", n), Model: "Example NVMe 3.84TB", Serial: fmt.Sprintf("NV%s%d", hw.Serial, n), SizeBytes: 3840755982336,
			Transport: "nvme", NUMANode: n % k.sockets,
		})
	}
	for n := range k.sata {
		hw.Disks = append(hw.Disks, api.Disk{
			Name: "sd" + string(rune('a'+n)), Model: "Example HDD 8TB", Serial: fmt.Sprintf("HD%s%d", hw.Serial, n), SizeBytes: 8001563222016,
			Rotational: true, Transport: "sata",
		})
	}
	for n := range 2 {
		address := fmt.Sprintf("0000:17:00.%d", n)
		speed := k.speedMbps * int64(1-n) // the second has no cable
		hw.NICs = append(hw.NICs, api.NIC{
			Name: fmt.Sprintf("eno%d", n+1), MAC: MAC(seed, i, n), Driver: "example", SpeedMbps: speed, Carrier: n == 0, PCI: address,
			TotalVFs: k.virtualFuncts, WakeOn: "g",
		})
		hw.PCI = append(hw.PCI, api.PCI{
			Address: address, Class: "020000", Device: "8086:1592", Name: "Example network controller", Driver: "example", TotalVFs: k.virtualFuncts,
		})
	}
	hw.NICs[0].Role = "provisioning"
	for n := range k.hcas {
		hw.HCAs = append(hw.HCAs, api.HCA{
			Name: fmt.Sprintf("mlx5_%d", n), Type: "MT4123", Firmware: "20.41.1000", GUID: fmt.Sprintf("b859:9f%02x:%04x:%04x", seed&0xff, i, n),
			Ports: []string{"1: InfiniBand, active, 200 Gb/sec"}, PCI: fmt.Sprintf("0000:%02x:00.0", 0x98+n), NUMANode: n % k.sockets, TotalVFs: 8,
		})
	}
	for n := range k.gpus {
		hw.GPUs = append(hw.GPUs, api.GPU{Model: "Example GPU 40GB", PCI: fmt.Sprintf("0000:%02x:00.0", 0x31+n), NUMANode: n % k.sockets})
	}
	return hw
}

// MAC is of NIC n of machine i: locally administered (IEEE 802, bit 1 of the first byte), unlike any other one's of up to 2^16 machines.
func MAC(seed uint64, i, n int) string {
	return fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", seed>>8&0xff, seed&0xff, i>>8&0xff, i&0xff, n)
}

func uuid(seed uint64, i int) string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], seed)
	binary.BigEndian.PutUint64(b[8:], uint64(i))
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80 // version 4 (RFC 9562)
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
