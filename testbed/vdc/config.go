package vdc

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/nearmetal/nearmetal/api"
)

// User and password of every BMC, and the ports of each.
const (
	bmcUser     = "operator"
	bmcPassword = "testbed-power"
	httpPort    = 8000
	httpsPort   = 443
	ipmiPort    = 623
	consolePort = 7000
	// firstBMC is the place of the first BMC's address in its network, gatewayBMC that of the outer end of the cable.
	firstBMC   = 11
	gatewayBMC = 1
)

var (
	nameForm    = regexp.MustCompile(`^[a-z0-9]{1,8}$`)
	machineForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,11}[a-z0-9])?$`)
)

// lowMemoryMiB is from how much memory on q35 has a part of it above 4 GiB (QEMU's hw/i386/pc_q35.c). SeaBIOS 1.16 then moves the 64-bit windows of
// bridges above 4 GiB, too. QEMU 10 maps the memory of igb's virtual functions at the lower 32 bits of its address, so it would not be found there.
const lowMemoryMiB = 0xb0000000 >> 20

// complete fills in defaults and tells what is wrong.
func (c Config) complete() (Config, error) {
	c.Name = orElse(c.Name, "dc")
	c.ProvisioningLink = orElse(c.ProvisioningLink, "nmprov0")
	c.BMCLink = orElse(c.BMCLink, "nmbmc0")
	if !c.BMCNetwork.IsValid() {
		c.BMCNetwork = netip.MustParsePrefix("10.98.0.0/24")
	}
	switch {
	case !nameForm.MatchString(c.Name):
		return c, fmt.Errorf("a virtual data centre can't be named %q; use one to eight lower-case letters and digits", c.Name)
	case len(c.Machines) == 0:
		return c, errors.New("a virtual data centre needs at least one machine")
	case !c.BMCNetwork.Addr().Is4() || c.BMCNetwork.Bits() > 24 || len(c.Machines) > 200:
		return c, fmt.Errorf("a BMC network is an IPv4 prefix of /24 or larger, for 200 machines at most: not %v for %d", c.BMCNetwork, len(c.Machines))
	}
	c.BMCNetwork = c.BMCNetwork.Masked()
	c.Emulator = orElse(c.Emulator, os.Getenv("NEARMETAL_QEMU10"))
	seen := map[string]bool{}
	machines := make([]MachineConfig, len(c.Machines))
	for i, m := range c.Machines {
		switch {
		case !machineForm.MatchString(m.Name):
			return c, fmt.Errorf("a machine can't be named %q; use up to 13 lower-case letters, digits and hyphens", m.Name)
		case seen[m.Name]:
			return c, fmt.Errorf("two machines are named %q", m.Name)
		case m.SRIOV && !filepath.IsAbs(c.Emulator):
			return c, fmt.Errorf("machine %q has SR-IOV, which Debian 12's QEMU doesn't model; run \"make qemu10\" and set NEARMETAL_QEMU10 to "+
				".build/qemu10/qemu-system-x86_64, as an absolute path", m.Name)
		case m.SRIOV && m.MemoryMiB >= lowMemoryMiB:
			return c, fmt.Errorf("machine %q has SR-IOV and %d MiB of memory; give it less than %d MiB, so that the firmware keeps PCI addresses under 4 GiB, "+
				"where QEMU maps virtual functions", m.Name, m.MemoryMiB, lowMemoryMiB)
		case m.HostInterface != HostNone && m.HostInterface != HostClosable && m.HostInterface != HostFixed:
			return c, fmt.Errorf("machine %q: a host interface is %q or %q, not %q", m.Name, HostClosable, HostFixed, m.HostInterface)
		case m.Firmware != api.FirmwareBIOS && m.Firmware != api.FirmwareUEFI:
			return c, fmt.Errorf("machine %q: firmware is %q or %q, not %q", m.Name, api.FirmwareBIOS, api.FirmwareUEFI, m.Firmware)
		}
		seen[m.Name] = true
		m.CPUs = orElse(m.CPUs, 2)
		m.MemoryMiB = orElse(m.MemoryMiB, 1024)
		m.Serial = orElse(m.Serial, "NM-"+m.Name)
		if m.DiskBytes == nil {
			m.DiskBytes = []int64{4 << 30}
		}
		machines[i] = m
	}
	c.Machines = machines
	return c, nil
}

func orElse[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// machines gives each its addresses. They follow from the names, so that a machine is the same one in the next data centre of the name.
func (c Config) machines(dir string) ([]*Machine, error) {
	all := make([]*Machine, len(c.Machines))
	for i, m := range c.Machines {
		bmc := addressAt(c.BMCNetwork, firstBMC+i)
		all[i] = &Machine{
			Name: m.Name, Firmware: m.Firmware,
			MAC: c.mac(i, 0), DataMAC: c.mac(i, 1),
			UUID:       uuid.NewSHA1(uuid.NameSpaceDNS, []byte(m.Name+"."+c.Name+".nearmetal-testbed")).String(),
			RedfishURL: fmt.Sprintf("http://%s:%d", bmc, httpPort),
			SecureURL:  fmt.Sprintf("https://%s", bmc),
			IPMI:       fmt.Sprintf("%s:%d", bmc, ipmiPort),
			User:       bmcUser, Password: bmcPassword, PasswordFile: passwordPath(dir),
			Console:    fmt.Sprintf("tcp://%s:%d", bmc, consolePort),
			ConsoleLog: filepath.Join(dir, "log", m.Name+".console"),
			cable:      dataBridge, vmPort: vmPort + i,
			bmc: bmc, config: m, emulator: c.Emulator, fault: &bmcFault{}, hung: new(atomic.Bool), unplugged: new(atomic.Bool),
		}
		if c.Switch {
			all[i].cable, all[i].SwitchPort = cableBridge+m.Name, switchPort+m.Name
		}
	}
	return all, nil
}

// mac is in QEMU's range of locally used addresses: two octets by the data centre's name, one by machine and NIC.
func (c Config) mac(machine, nic int) string {
	sum := sha256.Sum256([]byte(c.Name))
	number := uint16(2*machine + nic)
	return net.HardwareAddr{0x52, 0x54, 0x00, sum[0], sum[1] + byte(number>>8), byte(number)}.String()
}

// addressAt is an IPv4 network's address number n.
func addressAt(network netip.Prefix, n int) netip.Addr {
	four := network.Addr().As4()
	binary.BigEndian.PutUint32(four[:], binary.BigEndian.Uint32(four[:])+uint32(n))
	return netip.AddrFrom4(four)
}
