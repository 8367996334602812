package vdc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A machine's tap comes with each power-on, and a switch's port stays: between them are a bridge of the machine's own and a pair of links. These begin
// their names: the bridge, the link's end on it, and the end that is the switch's port.
const (
	cableBridge = "b-"
	cableEnd    = "c-"
	switchPort  = "s-"
	// switchBridge is the Open vSwitch bridge.
	switchBridge = "br0"
)

// switchSchema is of Open vSwitch's database, in Debian's package openvswitch-common.
const switchSchema = "/usr/share/openvswitch/vswitch.ovsschema"

// Switch is the managed switch of the data network.
type Switch struct {
	// Address is that of its database (OVSDB, RFC 7047), unix:PATH.
	Address string
	// Bridge is that of its ports. All of them are trunks of all VLANs until somebody manages them.
	Bridge string
}

// SwitchName is how settings of the site name the switch.
const SwitchName = "switch"

// Settings are those of a site that manages these ports of the switch, in YAML, with the VLANs of its networks. Ports that are not named stay trunks of all
// VLANs.
func (s Switch) Settings(vlans string, ports ...string) string {
	return fmt.Sprintf("backend: openvswitch\nvlans: %s\nswitches:\n- name: %s\n  address: %s\n  bridge: %s\n  ports: [%s]\n",
		vlans, SwitchName, s.Address, s.Bridge, strings.Join(ports, ", "))
}

// SettingsFile is the path of settings by which all machines' ports of the switch of the data centre of that name are managed, with the VLANs 100-199.
func SettingsFile(name string) string { return filepath.Join(switchDir(Dir(name)), "settings.yaml") }

// Switch is the one of a data centre whose Config has it, and zero for others.
func (dc *DataCentre) Switch() Switch {
	if !dc.config.Switch {
		return Switch{}
	}
	return Switch{Address: "unix:" + filepath.Join(switchDir(dc.dir), "db.sock"), Bridge: switchBridge}
}

func switchDir(dir string) string { return filepath.Join(dir, "switch") }

// makeSwitch makes the switch's database. The programs inside start a switch where there is one.
func (dc *DataCentre) makeSwitch() error {
	if !dc.config.Switch {
		return nil
	}
	for _, program := range []string{"ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("a managed switch needs Open vSwitch: %w; install the Debian package openvswitch-switch", err)
		}
	}
	dir := switchDir(dc.dir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if output, err := exec.Command("ovsdb-tool", "create", filepath.Join(dir, "conf.db"), switchSchema).CombinedOutput(); err != nil {
		return fmt.Errorf("making the database of the managed switch: %w\n%s", err, output)
	}
	return nil
}

// setUpSwitch waits for the switch, and gives it its bridge and ports.
func (dc *DataCentre) setUpSwitch(ctx context.Context) error {
	if !dc.config.Switch {
		return nil
	}
	err := until(ctx, dc.keeper.ended, func() error { return dc.vsctl(ctx, "--no-wait", "init") })
	if err != nil {
		return fmt.Errorf("waiting for the managed switch: %w", err)
	}
	args := []string{"add-br", switchBridge, "--", "set", "bridge", switchBridge, "datapath_type=netdev"}
	for _, m := range dc.machines {
		args = append(args, "--", "add-port", switchBridge, m.SwitchPort)
	}
	if dc.config.DataLink != "" {
		args = append(args, "--", "add-port", switchBridge, dataUplink)
	}
	if err := dc.vsctl(ctx, args...); err != nil {
		return err
	}
	ports := make([]string, len(dc.machines))
	for i, m := range dc.machines {
		ports[i] = m.SwitchPort
	}
	return os.WriteFile(SettingsFile(dc.config.Name), []byte(dc.Switch().Settings("100-199", ports...)), 0o600)
}

// vsctl runs ovs-vsctl, which waits until the switch has done what it is told.
func (dc *DataCentre) vsctl(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "ovs-vsctl", append([]string{"--db=" + dc.Switch().Address}, args...)...)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ovs-vsctl: %w: %s", err, bytes.TrimSpace(output))
	}
	return nil
}

// cableMachines makes the links from machines' bridges to ports of the switch.
func (dc *DataCentre) cableMachines(in *netlink.Handle) error {
	for _, m := range dc.machines {
		end := named(cableEnd + m.Name)
		bridge, err := in.LinkByName(m.cable)
		if err != nil {
			return err
		}
		end.MasterIndex = bridge.Attrs().Index
		if err := in.LinkAdd(&netlink.Veth{LinkAttrs: end, PeerName: m.SwitchPort}); err != nil {
			return fmt.Errorf("making the cable of machine %s to the switch: %w", m.Name, err)
		}
		for _, name := range []string{end.Name, m.SwitchPort} {
			if err := raise(in, name); err != nil {
				return err
			}
		}
		if err := dc.inside.Do(func() error { return fillChecksums(end.Name) }); err != nil {
			return err
		}
	}
	return nil
}

// ethtoolSetTransmitChecksums is ETHTOOL_STXCSUM of linux/ethtool.h.
const ethtoolSetTransmitChecksums = 0x17

// fillChecksums makes the kernel cut packets to size and fill in their checksums before they leave by a link. A virtio NIC leaves both to the host, and a
// pair of links to whoever is at its other end. A switch in userspace reads frames as they are.
func fillChecksums(link string) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	value := [2]uint32{ethtoolSetTransmitChecksums, 0} // ethtool_value: off
	var request struct {                               // ifreq of linux/if.h
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], link)
	request.data = unsafe.Pointer(&value)
	_, _, failed := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(&value)
	if failed != 0 {
		return fmt.Errorf("switching off checksum offload of link %s: %w", link, failed)
	}
	return nil
}
