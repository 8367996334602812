package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// gib is the size of the disks of these tests.
const gib = 1 << 30

func TestTheBestMethodOfADiskIsTriedFirst(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		disk Disk
		want []Method
		note string
	}{
		{"a virtio disk that can discard", Disk{Name: "vda", Transport: "virtio", Discards: true}, []Method{Discard, ZeroOut, WriteZeroes}, ""},
		{"a hard disk", Disk{Name: "sda", Transport: "sas"}, []Method{ZeroOut, WriteZeroes}, ""},
		{"an eMMC that may discard securely", Disk{Name: "mmcblk0", Transport: "mmc", Discards: true, DiscardsMayBeSecure: true}, []Method{SecureDiscard, Discard, ZeroOut, WriteZeroes}, ""},
		{
			"an NVMe disk that can do all",
			Disk{Name: "nvme0n1", Transport: "nvme", Discards: true, NVMe: &NVMe{SanitizeCrypto: true, SanitizeBlock: true, Format: true, FormatCrypto: true}},
			[]Method{SanitizeCrypto, SanitizeBlock, FormatCrypto, FormatErase, Discard, ZeroOut, WriteZeroes},
			"",
		},
		{"an NVMe disk that can only be formatted", Disk{Name: "nvme0n1", Transport: "nvme", NVMe: &NVMe{Format: true}}, []Method{FormatErase, ZeroOut, WriteZeroes}, ""},
		{"a SATA disk", Disk{Name: "sda", Transport: "sata", ATA: &ATA{Security: true, Enhanced: true}}, []Method{ATAEnhanced, ATAErase, ZeroOut, WriteZeroes}, ""},
		{"a SATA disk without enhanced erase", Disk{Name: "sda", Transport: "sata", ATA: &ATA{Security: true}}, []Method{ATAErase, ZeroOut, WriteZeroes}, ""},
		{"a frozen SATA disk", Disk{Name: "sda", Transport: "sata", ATA: &ATA{Security: true, Frozen: true}}, []Method{ZeroOut, WriteZeroes}, "frozen"},
		{"a SATA disk with a password", Disk{Name: "sda", Transport: "sata", ATA: &ATA{Security: true, Enabled: true}}, []Method{ZeroOut, WriteZeroes}, "password"},
		{"a SATA disk without security", Disk{Name: "sda", Transport: "sata", ATA: &ATA{}}, []Method{ZeroOut, WriteZeroes}, ""},
		{"a zoned NVMe disk", Disk{Name: "nvme0n1", Transport: "nvme", Zoned: true, Discards: true, NVMe: &NVMe{Format: true}}, []Method{FormatErase}, ""},
		{"a disk that could not be asked", Disk{Name: "nvme0n1", Transport: "nvme", Problem: "no answer"}, []Method{ZeroOut, WriteZeroes}, "no answer"},
	} {
		c.disk.Bytes = gib
		got := Disks([]Disk{c.disk})[0]
		if !slices.Equal(got.Methods, c.want) || got.LeftAlone+got.Problem != "" || !strings.Contains(strings.Join(got.Notes, ";"), c.note) {
			t.Errorf("%s: got %q, skip %q, problem %q, notes %q; want %q", c.name, got.Methods, got.LeftAlone, got.Problem, got.Notes, c.want)
		}
	}
}

func TestWhatIsLeftAloneIsNamedWithTheReason(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		disk          Disk
		skip, problem string
	}{
		{Disk{Name: "loop0", Virtual: true, Bytes: gib}, "no device", ""},
		{Disk{Name: "zram0", Virtual: true, Bytes: gib}, "no device", ""},
		{Disk{Name: "sr0", NotADisk: true, Removable: true, Bytes: gib}, "no disk", ""},
		{Disk{Name: "sdb", Removable: true, Transport: "usb", Bytes: gib}, "removable", ""},
		{Disk{Name: "sdc", Transport: "usb", Removable: true, Model: "card reader"}, "removable", ""},
		{Disk{Name: "sdk", Transport: "sata", Serial: "dead"}, "", "no blocks"},
		{Disk{Name: "mmcblk0boot0", Transport: "mmc", FirmwarePart: true, ReadOnly: true, Bytes: gib}, "firmware", ""},
		{Disk{Name: "sdl", Transport: "sas", Zoned: true, Bytes: gib}, "", "zones"},
		{Disk{Name: "nvme0c0n1", Path: true, Bytes: gib}, "one path", ""},
		{Disk{Name: "sdd", SameAs: "sda", Bytes: gib}, "another path to sda", ""},
		{Disk{Name: "sde", Transport: "iscsi", Bytes: gib}, "network", ""},
		{Disk{Name: "sdf", Transport: "fc", Bytes: gib}, "network", ""},
		{Disk{Name: "nvme1n1", NVMe: &NVMe{Remote: true}, Transport: "nvme", Bytes: gib}, "network", ""},
		{Disk{Name: "fd0", ReadOnly: true, Bytes: gib}, "read-only", ""},
		{Disk{Name: "sdg", ReadOnly: true, Transport: "sata", Bytes: gib}, "", "read-only"},
		{Disk{Name: "sdh", Holders: []string{"md0"}, Bytes: gib}, "", "held by md0"},
		{Disk{Name: "sdj", ATA: &ATA{Sectors: 100, Native: 150}, Bytes: gib}, "", "50 sectors are hidden"},
		{Disk{Name: "nvme2n1", NVMe: &NVMe{Controller: "nvme2", Unattached: []uint32{3}, SanitizeBlock: true}, Bytes: gib}, "", "[3] of nvme2 are not attached"},
	} {
		got := Disks([]Disk{c.disk})[0]
		if (got.LeftAlone == "") != (c.skip == "") || !strings.Contains(got.LeftAlone, c.skip) || (got.Problem == "") != (c.problem == "") || !strings.Contains(got.Problem, c.problem) {
			t.Errorf("%s: skip %q, problem %q; want %q, %q", c.disk.Name, got.LeftAlone, got.Problem, c.skip, c.problem)
		}
		if len(got.Methods) > 0 {
			t.Errorf("%s: it is to be erased by %q", c.disk.Name, got.Methods)
		}
	}
}

// A disk's own methods may return noise, advice may be followed in part, and the rest must read as zeroes.
func TestEachMethodHasAnExpectation(t *testing.T) {
	t.Parallel()
	for m, want := range map[Method]Expectation{
		SanitizeCrypto: Changed, SanitizeBlock: Changed, FormatCrypto: Changed, FormatErase: Changed, ATAEnhanced: Changed, ATAErase: Changed,
		SecureDiscard: ZeroesEverywhere, Discard: ZeroesEverywhere, ZeroOut: Zeroes, WriteZeroes: Zeroes,
	} {
		if got := m.Expect(); got != want {
			t.Errorf("%s: got %d, want %d", m, got, want)
		}
	}
}

func TestSamplesHoldBothEndsOfADisk(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for _, bytes := range []int64{4096, 1 << 20, 3<<20 + 512, 65 << 20, 200 << 20, 1<<40 + 512, 20e12 / 4096 * 4096} {
		areas := Samples(bytes, 512, random.Int64N)
		first, last := areas[0], areas[len(areas)-1]
		if first.Offset != 0 || last.Offset+last.Bytes != bytes {
			t.Errorf("%d bytes: from %d to %d", bytes, first.Offset, last.Offset+last.Bytes)
		}
		total := int64(0)
		for _, a := range areas {
			if a.Offset < 0 || a.Offset+a.Bytes > bytes || a.Bytes <= 0 || a.Offset%512 != 0 || a.Bytes%512 != 0 {
				t.Fatalf("%d bytes: area %+v", bytes, a)
			}
			total += a.Bytes
		}
		if bytes <= 65<<20 && total != bytes || bytes > 200<<20 && (first.Bytes != 1<<20 || last.Bytes != 1<<20 || len(areas) != samples+2) {
			t.Errorf("%d bytes: %d areas with %d bytes", bytes, len(areas), total)
		}
	}
}

func FuzzFirmware(f *testing.F) {
	f.Add("Boot0001-"+globalGUID, uint32(7), []byte{1, 0, 0, 0, 4, 0, 0, 0, 0x7f, 0xff, 4, 0})
	f.Fuzz(func(_ *testing.T, name string, attributes uint32, value []byte) {
		Firmware([]Variable{{name, attributes, value}, {"BootOrder-" + globalGUID, 7, value}}, nil)
	})
}

// option is a load option with these nodes of its device path.
func option(nodes ...string) []byte {
	path := strings.Join(nodes, "") + "\x7f\xff\x04\x00"
	return []byte("\x01\x00\x00\x00" + string([]byte{byte(len(path)), 0}) + "x\x00\x00\x00" + path)
}

const (
	network = "\x03\x0b\x25\x00123456789012345678901234567890123" // a MAC
	ownURI  = "\x03\x18\x04\x00"
	setURI  = "\x03\x18\x0c\x00http://x"
	file    = "\x04\x04\x08\x00a\x00\x00\x00"
	shell   = "\x04\x06\x14\x001234567890123456" // in the firmware's own volume
)

func TestVariablesOfTenantsGoAndTheFirmwaresStay(t *testing.T) {
	t.Parallel()
	const foreign, loader = "11111111-2222-3333-4444-555555555555", "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
	variables := []Variable{
		{"PK-" + globalGUID, 0x27, nil},
		{"KEK-" + globalGUID, 0x27, nil},
		{"db-" + securityGUID, 0x27, nil},
		{"dbx-" + securityGUID, 0x27, nil},
		{"Timeout-" + globalGUID, 7, nil},
		{"SecureBoot-" + globalGUID, 6, nil},
		{"Volatile-" + foreign, 6, nil},
		{"Setup-" + foreign, 7, nil},
		{"Secret-" + foreign, 7, nil},
		{"LoaderSystemToken-" + loader, 7, nil},
		{"BootNext-" + globalGUID, 7, nil},
		{"OsIndications-" + globalGUID, 7, nil},
		{"Driver0001-" + globalGUID, 7, nil},
		{"DriverOrder-" + globalGUID, 7, nil},
		{"Boot0000-" + globalGUID, 7, option(shell)},
		{"Boot0001-" + globalGUID, 7, option(file)},
		{"Boot0002-" + globalGUID, 7, option(network)},
		{"Boot0003-" + globalGUID, 7, option(network, ownURI)},
		{"Boot0004-" + globalGUID, 7, option(network, setURI)},
		{"BootOrder-" + globalGUID, 7, []byte{1, 0, 0, 0, 3, 0, 2, 0, 4, 0}},
	}
	always := []string{
		"LoaderSystemToken-" + loader, "BootNext-" + globalGUID, "OsIndications-" + globalGUID, "Driver0001-" + globalGUID, "DriverOrder-" + globalGUID,
		"Boot0001-" + globalGUID, "Boot0004-" + globalGUID,
	}
	for _, c := range []struct {
		name            string
		known           []string
		delete, unknown []string
	}{
		{"nobody knows what was there before", nil, always, []string{"Setup-" + foreign, "Secret-" + foreign}},
		{"inspection saw what was there before", []string{"Setup-" + foreign}, append([]string{"Secret-" + foreign}, always...), nil},
	} {
		p := Firmware(variables, c.known)
		slices.Sort(p.Delete)
		slices.Sort(c.delete)
		if !slices.Equal(p.Delete, c.delete) || !slices.Equal(p.Unknown, c.unknown) || p.NoNetwork {
			t.Errorf("%s: got %+v\nwant %q to go, %q unknown", c.name, p, c.delete, c.unknown)
		}
		if want := []uint16{3, 2, 0}; !slices.Equal(p.BootOrder, want) {
			t.Errorf("%s: the boot order is %v, want %v", c.name, p.BootOrder, want)
		}
	}
}

func TestABootOrderIsWrittenOnlyForTheNetwork(t *testing.T) {
	t.Parallel()
	order := func(numbers string) Variable { return Variable{"BootOrder-" + globalGUID, 7, []byte(numbers)} }
	entry := func(n int, nodes ...string) Variable {
		return Variable{fmt.Sprintf("Boot%04X-%s", n, globalGUID), 7, option(nodes...)}
	}
	if p := Firmware([]Variable{order("\x00\x00"), entry(0, shell)}, nil); p.BootOrder != nil || !p.NoNetwork {
		t.Errorf("without a network entry: %+v", p)
	}
	if p := Firmware([]Variable{order("\x0a\x00\x00\x00"), entry(0, shell), entry(10, network)}, nil); p.BootOrder != nil || p.NoNetwork {
		t.Errorf("with the network first already: %+v", p)
	}
	if p := Firmware([]Variable{entry(0, shell), entry(10, network)}, nil); !slices.Equal(p.BootOrder, []uint16{10, 0}) {
		t.Errorf("without an order: %+v", p)
	}
}

func TestDisksOfOneControllerAreOneGroup(t *testing.T) {
	t.Parallel()
	steps := Disks([]Disk{{Name: "nvme0n1", NVMe: &NVMe{Controller: "nvme0"}}, {Name: "nvme0n2", NVMe: &NVMe{Controller: "nvme0"}}, {Name: "sda", ATA: &ATA{Erase: time.Minute}}})
	if steps[0].Group() != steps[1].Group() || steps[0].Group() == steps[2].Group() {
		t.Errorf("groups %q, %q, %q", steps[0].Group(), steps[1].Group(), steps[2].Group())
	}
}
