package compatibility

import (
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// server is a machine that suits everything here.
func server() *api.Hardware {
	return &api.Hardware{
		Architecture: "x86_64", Firmware: api.FirmwareUEFI, MemoryBytes: 4 << 30,
		CPU:   api.CPU{Model: "Example 9000", Flags: []string{"avx2", "avx512f"}},
		Disks: []api.Disk{{Name: "sda", SizeBytes: 100 << 30, Transport: "sata"}, {Name: "nvme0n1", SizeBytes: 1 << 40, Transport: "nvme"}},
		NICs:  []api.NIC{{Name: "eth0", TotalVFs: 8}},
		HCAs:  []api.HCA{{Name: "mlx5_0"}},
		GPUs:  []api.GPU{{Model: "Example GPU"}},
	}
}

// environment needs all a server has.
func environment() api.Image {
	return api.Image{
		Digest: "sha256:1", Environment: "e", Architecture: "x86_64", RootBytes: 512 << 20, MetalBytes: 40 << 20,
		Requirements: api.Requirements{
			Architecture: "x86_64", MemoryBytes: 1 << 30, DiskBytes: 200 << 30, CPUFlags: []string{"avx512f"},
			Devices: Devices(), Firmware: api.FirmwareUEFI,
		},
	}
}

func TestAnEnvironmentSuitsAMachineOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		machine func(*api.Hardware)
		image   func(*api.Image)
		want    []string
	}{
		{name: "it suits"},
		{
			name: "a kernel without the drivers of disks and network",
			machine: func(hw *api.Hardware) {
				hw.PCI = []api.PCI{
					{Address: "0000:01:00.0", Class: "020000", Device: "8086:10c9", Name: "Intel 82576", Driver: "igb", Module: "igb"},
					{Address: "0000:02:00.0", Class: "010000", Device: "1022:2020", Driver: "am53c974", Module: "am53c974"},
					{Address: "0000:03:00.0", Class: "010802", Device: "1b36:0010", Driver: "nvme", Module: "nvme"},
					{Address: "0000:04:00.0", Class: "010601", Device: "8086:2922", Driver: "ahci"},
					{Address: "0000:05:00.0", Class: "0c0330", Device: "8086:31a8", Driver: "xhci_hcd", Module: "xhci_pci"},
					{Address: "0000:06:00.0", Class: "020000", Device: "1af4:1000", Driver: "virtio-pci", Module: "virtio_pci"},
					{Address: "0000:07:00.0", Class: "020000", Device: "10ec:8139"},
				}
			},
			image: func(i *api.Image) { i.Drivers = []string{"nvme", "virtio_pci"} },
			want: []string{
				"the image's kernel has no module igb for the network controller 0000:01:00.0 (Intel 82576)",
				"the image's kernel has no module am53c974 for the storage controller 0000:02:00.0 (1022:2020)",
			},
		},
		{
			name: "a kernel of which no drivers are known",
			machine: func(hw *api.Hardware) {
				hw.PCI = []api.PCI{{Address: "0000:01:00.0", Class: "020000", Device: "8086:10c9", Module: "igb"}}
			},
		},
		{
			name:    "another architecture, told once",
			machine: func(hw *api.Hardware) { hw.Architecture = "aarch64" },
			want:    []string{"the image is built for x86_64, but the machine is aarch64"},
		},
		{
			name:  "no kernel",
			image: func(i *api.Image) { i.MetalBytes = 0 },
			want:  []string{"the environment has no kernel, so it supports containers only; add a kernel to its recipe"},
		},
		{
			name:    "another firmware",
			machine: func(hw *api.Hardware) { hw.Firmware = api.FirmwareBIOS },
			want:    []string{"the image needs uefi firmware, but the machine boots by bios"},
		},
		{
			name:    "exactly the memory it needs",
			machine: func(hw *api.Hardware) { hw.MemoryBytes = 512<<20 + 1<<30 + 256<<20 },
		},
		{
			name:    "a byte of memory less",
			machine: func(hw *api.Hardware) { hw.MemoryBytes = 512<<20 + 1<<30 + 256<<20 - 1 },
			want: []string{
				"the image needs 1.8 GiB of memory (512.0 MiB for its root, 1.0 GiB for work, 256.0 MiB for the system), but the machine has 1.7 GiB",
			},
		},
		{
			name:    "an image larger than the machine",
			machine: func(hw *api.Hardware) { hw.MemoryBytes = 2 << 30 },
			image:   func(i *api.Image) { i.RootBytes = 3 << 30 },
			want: []string{
				"the image is too large for the machine: its root takes 3.0 GiB of memory and the system 256.0 MiB, but the machine has 2.0 GiB",
			},
		},
		{
			name:    "an initrd larger than the machine",
			machine: func(hw *api.Hardware) { hw.MemoryBytes = 2 << 30 },
			image:   func(i *api.Image) { i.MetalBytes = 1 << 30 },
			want:    []string{"kernel and initrd of 1.0 GiB need 3.0 GiB of memory to start, but the machine has 2.0 GiB"},
		},
		{
			name:    "the largest disk is too small",
			machine: func(hw *api.Hardware) { hw.Disks[1].SizeBytes = 120 << 30 },
			want:    []string{"the image needs a disk of 200.0 GiB, but the machine's largest is nvme0n1 with 120.0 GiB"},
		},
		{
			name:    "no disk",
			machine: func(hw *api.Hardware) { hw.Disks = nil },
			want: []string{
				"the image needs a disk of 200.0 GiB, but the machine has none", "the image needs an NVMe disk, but none of the machine's 0 disks is one",
			},
		},
		{
			name:  "CPU flags, each told once",
			image: func(i *api.Image) { i.Requirements.CPUFlags = []string{"amx_tile", "avx2", "sve", "amx_tile"} },
			want:  []string{"the image needs the CPU flags amx_tile, sve, which Example 9000 lacks"},
		},
		{
			name:    "no devices",
			machine: func(hw *api.Hardware) { hw.HCAs, hw.GPUs, hw.NICs[0].TotalVFs = nil, nil, 0 },
			want: []string{
				"the image needs an HCA (InfiniBand or RoCE), but the machine has none", "the image needs a GPU, but the machine has none",
				"the image needs a NIC or HCA with SR-IOV, but none of the machine's 1 has virtual functions; SR-IOV may be off in its firmware",
			},
		},
		{
			name:    "SR-IOV of an HCA will do",
			machine: func(hw *api.Hardware) { hw.NICs[0].TotalVFs, hw.HCAs[0].TotalVFs = 0, 16 },
		},
		{
			name:  "a class nobody knows",
			image: func(i *api.Image) { i.Requirements.Devices = []string{"fpga"} },
			want:  []string{`the image needs a device of class "fpga", which is unknown; the classes are hca, gpu, nvme, sriov`},
		},
		{
			name:    "nothing is asked for, of nothing",
			machine: func(hw *api.Hardware) { *hw = api.Hardware{Architecture: "x86_64", MemoryBytes: 1 << 30} },
			image:   func(i *api.Image) { i.Requirements = api.Requirements{} },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			hw, img := server(), environment()
			if tt.machine != nil {
				tt.machine(hw)
			}
			if tt.image != nil {
				tt.image(&img)
			}
			if got := Check(hw, img); !slices.Equal(got, tt.want) {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

func TestAMachineThatWasNeverInspectedSuitsNothing(t *testing.T) {
	t.Parallel()
	if got := Check(nil, environment()); len(got) != 1 || !strings.Contains(got[0], "never inspected") {
		t.Errorf("got %q", got)
	}
}

func TestCheckingChangesNeitherMachineNorImage(t *testing.T) {
	t.Parallel()
	hw, img := server(), environment()
	img.Requirements.CPUFlags = []string{"avx512f", "sve", "sve", "avx2"}
	Check(hw, img)
	if want := []string{"avx512f", "sve", "sve", "avx2"}; !slices.Equal(img.Requirements.CPUFlags, want) {
		t.Errorf("the image's flags became %v", img.Requirements.CPUFlags)
	}
}

func TestVerdictsComeByName(t *testing.T) {
	t.Parallel()
	b, a, old := environment(), environment(), environment()
	b.Environment, a.Environment, old.Environment = "b", "a", "b"
	old.Digest, a.MetalBytes = "sha256:0", 0
	got := Environments(server(), []api.Image{b, a, old})
	var names []string
	for _, v := range got {
		names = append(names, v.Environment+" "+v.Digest)
	}
	if want := []string{"a sha256:1", "b sha256:0", "b sha256:1"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	if len(got[0].Problems) != 1 || got[1].Problems != nil {
		t.Errorf("only the environment without a kernel has a problem; got %+v", got)
	}
}
