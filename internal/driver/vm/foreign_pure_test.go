package vm

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// golden compares a text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *updateGolden {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestAMachineOfAnotherSystemIsDescribedToLibvirt(t *testing.T) {
	for name, c := range map[string]struct {
		disk api.ForeignDisk
		kvm  bool
	}{
		"foreign-linux.xml":   {api.ForeignDisk{OS: api.SystemLinux, Firmware: api.FirmwareUEFI}, false},
		"foreign-windows.xml": {api.ForeignDisk{OS: api.SystemWindows, Firmware: api.FirmwareUEFI}, true},
		"foreign-other.xml":   {api.ForeignDisk{OS: api.SystemOther, Firmware: api.FirmwareBIOS}, false},
	} {
		m := goldenMember()
		m.Assignment.Display = c.disk.OS == api.SystemWindows
		got, err := newForeignDomain(m, c.disk, viewOf(m.Assignment.ID), "00000000-0000-8000-8000-000000000000", hardware{KVM: c.kvm}).xml()
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, got)
	}
}

// goldenSeed is what a member's seed is made of.
func goldenSeed() (driver.Member, guestlink.Setup) {
	m := goldenMember()
	m.Files = []driver.File{
		{Path: "/etc/hosts", Content: []byte("127.0.0.1\tlocalhost\n"), Mode: 0o644},
		{Path: "/etc/passwd", Content: []byte("root:*:0:0\n"), Mode: 0o644},
		{Path: "/etc/ssh/sshd_config", Content: []byte("of the product's own members\n"), Mode: 0o644},
		{Path: "/etc/ssh/nearmetal_ca.pub", Content: []byte("ssh-ed25519 CA\n"), Mode: 0o644},
		{Path: "/etc/ssh/authorized_principals/hpc", Content: []byte("uid.c1-0.1\n"), Mode: 0o644},
		{Path: "/etc/nearmetal/ssh/id_ed25519", Content: []byte("user key\n"), Mode: 0o600, OwnedByUser: true},
		{Path: hostKey, Content: []byte("host key\n"), Mode: 0o600},
		{Path: hostKey + ".pub", Content: []byte("ssh-ed25519 HOST\n"), Mode: 0o644},
		{Path: hostKey + "-cert.pub", Content: []byte("ssh-ed25519-cert-v01@openssh.com CERT\n"), Mode: 0o644},
	}
	m.Networks[0].Gateway = netip.MustParseAddr("10.64.0.1")
	return m, guestlink.Setup{Interfaces: []guestlink.Interface{
		{MAC: "02:6e:00:01:00:02", Name: "eth0", Address: netip.MustParsePrefix("10.64.0.2/20"), MTU: 1450, Gateway: netip.MustParseAddr("10.64.0.1"), Routes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}},
		{MAC: "02:6e:00:02:00:02", Name: "eth1", Address: netip.MustParsePrefix("10.64.16.2/20"), MTU: 1450},
	}}
}

func TestTheSeedTellsCloudInitWhatTheMemberIsAndKeepsTheSystemsAccounts(t *testing.T) {
	m, setup := goldenSeed()
	data, err := seed(m, setup)
	if err != nil {
		t.Fatal(err)
	}
	needs.Program(t, "isoinfo")
	file := filepath.Join(t.TempDir(), "seed.iso")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range []string{"META-DATA.", "NETWORK-CONFIG.", "USER-DATA."} {
		out, err := exec.CommandContext(t.Context(), "isoinfo", "-i", file, "-x", "/"+name+";1").Output()
		if err != nil || len(out) == 0 {
			t.Fatalf("isoinfo finds no %s: %v", name, err)
		}
		if !json.Valid(bytes.TrimPrefix(out, []byte("#cloud-config\n"))) {
			t.Errorf("%s is not JSON: %s", name, out)
		}
		all.WriteString("== " + name + "\n" + string(out) + "\n")
	}
	golden(t, "seed.txt", all.String())
	out, err := exec.CommandContext(t.Context(), "isoinfo", "-d", "-i", file).Output()
	if err != nil || !strings.Contains(string(out), "Volume id: CIDATA") {
		t.Errorf("isoinfo: %v\n%s", err, out)
	}
}

func TestTheSeedHasTheIPv6AddressesOfNetworksThatHaveThem(t *testing.T) {
	m, setup := goldenSeed()
	setup.Interfaces[1].Address6 = netip.MustParsePrefix("fd12:3456:789a:1::2/64")
	data, err := seed(m, setup)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(data, []byte(`"fd12:3456:789a:1::2/64"`)); n != 1 {
		t.Errorf("the address is in the seed %d times, want once", n)
	}
}

func TestTheSeedNamesNoResolverWhereNoNodeSeesTheTraffic(t *testing.T) {
	m, setup := goldenSeed()
	if links, err := json.Marshal(seedNetwork(m, setup)); err != nil || !bytes.Contains(links, []byte(`"addresses":["10.64.0.1"]`)) {
		t.Errorf("on a bridge: %s, %v; want the gateway as resolver", links, err)
	}
	m.Assignment.Ports = slices.Clone(m.Assignment.Ports)
	m.Assignment.Ports[0].Kind, m.Assignment.Ports[0].Device, m.Assignment.Ports[0].Part = api.PortVF, "0000:3b:00.0", "vf0"
	if links, err := json.Marshal(seedNetwork(m, setup)); err != nil || bytes.Contains(links, []byte("nameservers")) {
		t.Errorf("on a function: %s, %v; want no resolver", links, err)
	}
}

func TestUserDataStandsBesideTheProductsOwnInTheSeed(t *testing.T) {
	m, setup := goldenSeed()
	m.Files = append(m.Files, driver.File{Path: userDataFile, Content: []byte("#cloud-config\nhostname: other\npackages: [htop]\n"), Mode: 0o600})
	data, err := seed(m, setup)
	if err != nil {
		t.Fatal(err)
	}
	text, err := userData(m)
	if err != nil || !bytes.Contains(data, text) {
		t.Fatalf("the seed does not hold the user data: %v", err)
	}
	golden(t, "user-data.txt", string(text))
}

func TestADiskIsAsLargeAsItWasAssignedAndNeverSmallerThanItsImage(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name            string
		assigned, image int64
		want            int64
		problem         string
	}{
		{"a larger disk", 20 * gib, 3 * gib, 20 * gib, ""},
		{"a disk of the image's size", 3 * gib, 3 * gib, 3 * gib, ""},
		{"an assignment of a version without disks", 0, 3 * gib, 3 * gib, ""},
		{"an image that has grown", 3 * gib, 4 * gib, 0, `its disk has 3GiB, and the disk of environment "debian-cloud" has 4GiB`},
	} {
		got, err := diskSize(&api.Assignment{DiskBytes: c.assigned, Environment: "debian-cloud"}, api.Bytes(c.image))
		if got != c.want || (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: got %d, %v", c.name, got, err)
		}
	}
}

// TestTheFileOfAFullDiskIsNoLargerThanItsBound fills a disk of which a part was discarded meanwhile. With discard=unmap the
// file would have gaps, and be larger than the disk.
func TestTheFileOfAFullDiskIsNoLargerThanItsBound(t *testing.T) {
	needs.Program(t, "qemu-img")
	needs.Program(t, "qemu-io")
	const size = 256 << 20
	dir := t.TempDir()
	base, file := filepath.Join(dir, "base"), filepath.Join(dir, "disk")
	if out, err := exec.CommandContext(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2", base, "1M").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	head, err := overlay(size, base)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeOwned(file, head, os.Getuid()); err != nil {
		t.Fatal(err)
	}
	fill := exec.CommandContext(t.Context(), "qemu-io", "-d", "ignore", "-f", "qcow2", "-c", "write -P 7 128M 128M", "-c", "discard 128M 64M", "-c", "write -P 8 0 192M", file)
	if out, err := fill.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() <= size || info.Size() > overlayBound(size) {
		t.Errorf("the file of a full disk of %d bytes has %d, and its bound is %d", size, info.Size(), overlayBound(size))
	}
}

func TestAPrivateDiskIsAnEmptyOneOverTheImage(t *testing.T) {
	needs.Program(t, "qemu-img")
	base := filepath.Join(t.TempDir(), "base")
	for _, size := range []int64{1 << 20, 10 << 30, 2 << 40} {
		if out, err := exec.CommandContext(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2", base, "1M").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		file := filepath.Join(t.TempDir(), "disk")
		head, err := overlay(size, base)
		if err != nil {
			t.Fatal(err)
		}
		if err := writeOwned(file, head, os.Getuid()); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), "qemu-img", "check", "-q", "-f", "qcow2", file).CombinedOutput(); err != nil {
			t.Errorf("a disk of %d bytes: %v: %s", size, err, out)
		}
		out, err := exec.CommandContext(t.Context(), "qemu-img", "info", "--output=json", "-f", "qcow2", file).Output()
		var info struct {
			Size   int64  `json:"virtual-size"`
			Base   string `json:"backing-filename"`
			Format string `json:"backing-filename-format"`
		}
		if err != nil || json.Unmarshal(out, &info) != nil || info.Size != size || info.Base != base || info.Format != "qcow2" {
			t.Errorf("qemu-img sees %+v (%v)", info, err)
		}
	}
	if _, err := overlay(1<<50, base); err == nil {
		t.Error("a disk that no table of one cluster covers was made")
	}
}
