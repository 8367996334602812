package bootagent

import (
	"bytes"
	"context"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// netTree is a folder like /sys/class/net. Each interface has an address, a device and perhaps a master.
func netTree(t *testing.T, interfaces map[string][3]string) string {
	t.Helper()
	dir := t.TempDir()
	classes := filepath.Join(dir, "net")
	for name, of := range interfaces {
		at := filepath.Join(classes, name)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "address"), []byte(of[0]+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if of[1] != "" {
			device := filepath.Join(dir, "devices", of[1])
			if err := os.MkdirAll(device, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(device, filepath.Join(at, "device")); err != nil {
				t.Fatal(err)
			}
		}
		if of[2] != "" {
			if err := os.Symlink("../"+of[2], filepath.Join(at, "master")); err != nil {
				t.Fatal(err)
			}
		}
	}
	return classes
}

func TestThePartsOfAMasterMakeWayForOtherNames(t *testing.T) {
	const mac, other = "02:6e:00:01:00:02", "02:6e:00:02:00:02"
	dir := netTree(t, map[string][3]string{
		"lo": {"00:00:00:00:00:00"}, "eth0": {mac, "virtio1"}, "eth1": {mac, "virtio1", "eth0"}, "eth2": {mac, "0000:0a:00.0", "eth0"},
		"eth3": {other, "virtio2"}, "eth3nsby": {other, "virtio2", "eth3"}, // named before
		"eth4": {other, "virtio3", "bond0"}, "bond0": {other}, // a tenant's own
	})
	names, err := partNames(dir)
	if want := map[string]string{"eth1": "eth0nsby", "eth2": "eth0npri"}; err != nil || !cmp.Equal(names, want) {
		t.Errorf("got %v, %v; want %v", names, err, want)
	}
	for master, want := range map[string]string{"eth0": "eth2", "eth3": "", "bond0": "", "lo": ""} {
		if got := primaryOf(dir, master); got != want {
			t.Errorf("the function of %s is %q, want %q", master, got, want)
		}
	}
}

func TestOnlyTheMasterOfAPairIsGivenAnAddress(t *testing.T) {
	const mac = "02:6e:00:01:00:02"
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// The name is one that this machine has, so that it is found.
	pair := netTree(t, map[string][3]string{"lo": {mac, "virtio1"}, "eth1": {mac, "virtio1", "lo"}, "eth2": {mac, "0000:0a:00.0", "lo"}})
	if nic, err := findPair(ctx, pair, mac); err != nil || nic.Name != "lo" {
		t.Errorf("got %v, %v; want the master", nic, err)
	}
	if !hasPrimary(pair, mac) || hasPrimary(netTree(t, map[string][3]string{"eth0": {mac, "virtio1"}, "eth1": {mac, "virtio1", "eth0"}}), mac) {
		t.Error("a pair has its function, and a standby alone has none")
	}
	for name, dir := range map[string]string{
		"a function alone":     netTree(t, map[string][3]string{"eth0": {mac, "0000:0a:00.0"}}),
		"a NIC without a pair": netTree(t, map[string][3]string{"eth0": {mac, "virtio1"}}),
		"another's pair":       netTree(t, map[string][3]string{"lo": {"02:6e:00:01:00:03", "virtio1"}, "eth1": {"02:6e:00:01:00:03", "virtio1", "lo"}}),
	} {
		if nic, err := findPair(ctx, dir, mac); err == nil || !strings.Contains(err.Error(), "net_failover") {
			t.Errorf("%s: got %v, %v", name, nic, err)
		}
	}
}

func TestAnAddressIsAnnouncedToAll(t *testing.T) {
	i := guestlink.Interface{MAC: "02:6e:00:01:00:02", Address: netip.MustParsePrefix("10.65.0.2/20")}
	want, err := hex.DecodeString("ffffffffffff" + "026e00010002" + "0806" + "0001080006040001" + "026e00010002" + "0a410002" + "000000000000" + "0a410002")
	if got := gratuitousARP(i); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x (%v)", got, want, err)
	}
	if got := gratuitousARP(guestlink.Interface{MAC: "x"}); got != nil {
		t.Errorf("without a MAC: %x", got)
	}
}

func TestAnInterfaceThatIsRemovedIsNoticed(t *testing.T) {
	const at = "/devices/pci0000:00/0000:01:00.0/net/eth0npri"
	if !isGoneNIC([]byte("remove@" + at + "\x00ACTION=remove\x00SUBSYSTEM=net\x00INTERFACE=eth0npri\x00")) {
		t.Error("a removed interface is not noticed")
	}
	if isGoneNIC([]byte("remove@/devices/x\x00ACTION=remove\x00SUBSYSTEM=pci\x00")) || isGoneNIC([]byte("add@"+at+"\x00ACTION=add\x00SUBSYSTEM=net\x00")) {
		t.Error("another event counts as a removed interface")
	}
}
