package api

// Hardware is the hardware that inspection found in a machine. Lists are in a stable order, so that two inspections of one machine are equal.
type Hardware struct {
	Vendor       string   `json:"vendor,omitempty"`
	Product      string   `json:"product,omitempty"`
	Serial       string   `json:"serial,omitempty"`
	UUID         string   `json:"uuid,omitempty"` // SMBIOS 3.7, section 7.2.1
	Architecture string   `json:"architecture"`   // as uname -m tells
	Firmware     Firmware `json:"firmware"`
	// FirmwareVersion is that of BIOS or UEFI, with its date.
	FirmwareVersion string `json:"firmware_version,omitempty"`
	SecureBoot      bool   `json:"secure_boot,omitempty"`
	// FirmwareVariables are the lasting UEFI variables that the machine had when it was first inspected, as NAME-GUID: a cleaning leaves them.
	FirmwareVariables []string `json:"firmware_variables,omitempty"`
	// EnrollmentToken is the token that the machine carries: the SMBIOS OEM string or asset tag after "nearmetal-enroll:", or the kernel's command line.
	EnrollmentToken string     `json:"enrollment_token,omitempty"`
	CPU             CPU        `json:"cpu"`
	MemoryBytes     int64      `json:"memory_bytes"`
	NUMANodes       []NUMANode `json:"numa_nodes"`
	Disks           []Disk     `json:"disks"`
	NICs            []NIC      `json:"nics"`
	HCAs            []HCA      `json:"hcas"`
	GPUs            []GPU      `json:"gpus"`
	PCI             []PCI      `json:"pci"`
	BMC             *BMC       `json:"bmc,omitempty"`
	// Watchdog is the machine's hardware watchdog, by its driver's own words; empty: none was found.
	Watchdog      string `json:"watchdog,omitempty"`
	KernelVersion string `json:"kernel_version"`
}

// CPU is all processors of a machine, which are alike.
type CPU struct {
	Model   string `json:"model"`
	Vendor  string `json:"vendor,omitempty"`
	Sockets int    `json:"sockets"`
	Cores   int    `json:"cores"`
	Threads int    `json:"threads"`
	// NUMANodes has the NUMA node of each CPU by the CPU's number, -1 for one that is off. Empty: unknown.
	NUMANodes []int    `json:"numa_nodes,omitempty"`
	Flags     []string `json:"flags,omitempty"`
	// Virtualization: VMX or SVM is there and on.
	Virtualization bool `json:"virtualization"`
}

// Disk is a block device that is no partition.
type Disk struct {
	Name       string `json:"name"` // sda, nvme0n1
	Model      string `json:"model,omitempty"`
	Serial     string `json:"serial,omitempty"`
	SizeBytes  int64  `json:"size_bytes"`
	Rotational bool   `json:"rotational,omitempty"`
	Transport  string `json:"transport,omitempty"` // nvme, sata, virtio ...
	NUMANode   int    `json:"numa_node"`
}

// NIC is an Ethernet interface.
type NIC struct {
	Name   string `json:"name"`
	MAC    string `json:"mac"`
	Driver string `json:"driver,omitempty"`
	// Role is the purpose of the NIC, as far as it is known: provisioning (the machine booted from it), data, management, storage.
	Role      string `json:"role,omitempty"`
	SpeedMbps int64  `json:"speed_mbps,omitempty"`
	Carrier   bool   `json:"carrier"`
	PCI       string `json:"pci,omitempty"` // 0000:01:00.0
	NUMANode  int    `json:"numa_node"`
	// TotalVFs is the number of SR-IOV virtual functions it can have (sriov_totalvfs).
	TotalVFs int       `json:"total_vfs,omitempty"`
	IOMMU    *IOMMU    `json:"iommu,omitempty"`
	WakeOn   string    `json:"wake_on,omitempty"` // letters of ethtool: g is the magic packet
	LLDP     *Neighbor `json:"lldp,omitempty"`
}

// Neighbor is the switch at the other end, by its own description (LLDP, IEEE 802.1AB).
type Neighbor struct {
	Chassis string `json:"chassis"`
	Port    string `json:"port"`
	System  string `json:"system,omitempty"`
}

// HCA is an InfiniBand or RoCE adapter.
type HCA struct {
	Name     string   `json:"name"` // mlx5_0
	Type     string   `json:"type,omitempty"`
	Firmware string   `json:"firmware,omitempty"`
	GUID     string   `json:"guid"`
	Ports    []string `json:"ports"` // "1: InfiniBand, active, 100 Gb/sec"
	// PortGUIDs are those of its ports that speak InfiniBand, 16 hexadecimal digits each.
	PortGUIDs []string `json:"port_guids,omitempty"`
	PCI       string   `json:"pci,omitempty"`
	NUMANode  int      `json:"numa_node"`
	TotalVFs  int      `json:"total_vfs,omitempty"`
	IOMMU     *IOMMU   `json:"iommu,omitempty"`
}

// IOMMU is what keeps an adapter's functions apart, as the kernel of the inspection saw it. An adapter with functions and without an IOMMU can't give them to
// virtual machines.
type IOMMU struct {
	// Group is the number of the adapter's group.
	Group string `json:"group"`
	// Company is what shares a group with the adapter or one of its functions, but for bridges: no virtual machine can have them. ACS in the machine's
	// firmware, or another slot, parts them.
	Company []string `json:"company,omitempty"`
}

// GPU is a processor of display or 3D class (PCI class 03).
type GPU struct {
	Model    string `json:"model"`
	PCI      string `json:"pci"`
	NUMANode int    `json:"numa_node"`
}

// PCI is a PCI function.
type PCI struct {
	Address string `json:"address"`
	Class   string `json:"class"`  // six hexadecimal digits
	Device  string `json:"device"` // VENDOR:DEVICE, four hexadecimal digits each
	Name    string `json:"name,omitempty"`
	Driver  string `json:"driver,omitempty"`
	// Module is the kernel module with that driver; empty where the driver is a part of the kernel that inspected the machine.
	Module   string `json:"module,omitempty"`
	TotalVFs int    `json:"total_vfs,omitempty"`
	NUMANode int    `json:"numa_node"`
}

// BMC is the management controller as seen from inside.
type BMC struct {
	Interface string `json:"interface"` // KCS, SSIF ... (SMBIOS type 38)
	Version   string `json:"version,omitempty"`
	Address   string `json:"address,omitempty"` // its LAN address, where the driver tells
}

// Requirements are the needs of an environment that a machine must meet to run it.
type Requirements struct {
	Architecture string `json:"architecture,omitempty"`
	// MemoryBytes is the least memory besides what its root takes.
	MemoryBytes Bytes `json:"memory,omitempty"`
	// DiskBytes is the least size of the largest disk.
	DiskBytes Bytes `json:"disk,omitempty"`
	// CPUFlags must all be there.
	CPUFlags []string `json:"cpu_flags,omitempty"`
	// Devices are classes of which at least one must be there: hca, gpu, nvme, sriov.
	Devices  []string `json:"devices,omitempty"`
	Firmware Firmware `json:"firmware,omitempty"`
}
