package smbios

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// structure is a structure with its header; formatted is what follows it.
func structure(kind byte, formatted []byte, texts ...string) []byte {
	out := append([]byte{kind, byte(4 + len(formatted)), 1, 0}, formatted...)
	for _, t := range texts {
		out = append(append(out, t...), 0)
	}
	if len(texts) == 0 {
		out = append(out, 0)
	}
	return append(out, 0)
}

// at is a formatted area of length bytes after the header, with values at the specification's offsets.
func at(length int, values map[int]any) []byte {
	area := make([]byte, length+4)
	for offset, value := range values {
		switch v := value.(type) {
		case byte:
			area[offset] = v
		case uint16:
			binary.LittleEndian.PutUint16(area[offset:], v)
		case uint32:
			binary.LittleEndian.PutUint32(area[offset:], v)
		case uint64:
			binary.LittleEndian.PutUint64(area[offset:], v)
		case []byte:
			copy(area[offset:], v)
		}
	}
	return area[4:]
}

// server is the table of a server with what is read of each type.
func server() []byte {
	var t []byte
	for _, s := range [][]byte{
		structure(0, at(0x14, map[int]any{0x04: byte(1), 0x05: byte(2), 0x08: byte(3)}), "Example BIOS", "1.2.3", "04/01/2026"),
		structure(1, at(0x17, map[int]any{
			0x04: byte(1), 0x05: byte(2), 0x07: byte(3),
			0x08: []byte{0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff},
		}), "Example", "R 7000 ", "SN42"),
		structure(2, at(0x0b, map[int]any{0x08: byte(1)}), "board tag"),
		structure(3, at(0x11, map[int]any{0x08: byte(1)}), "rack 7"),
		structure(4, at(0x2c, map[int]any{0x18: byte(0x41)})),
		structure(4, at(0x2c, map[int]any{0x18: byte(0x41)})),
		structure(4, at(0x2c, map[int]any{0x18: byte(0x00)})), // an empty socket
		structure(11, []byte{2}, "one", "nearmetal-enroll:abc"),
		structure(17, at(0x58, map[int]any{0x0c: uint16(0x4000), 0x10: byte(1)}), "DIMM A1"),                                   // 16 GiB
		structure(17, at(0x58, map[int]any{0x0c: uint16(0x7fff), 0x1c: uint32(65536), 0x10: byte(1)}), "DIMM A2"),              // 64 GiB
		structure(17, at(0x58, map[int]any{0x0c: uint16(0x8000 | 512), 0x10: byte(1)}), "old"),                                 // 512 KiB
		structure(17, at(0x58, map[int]any{0x0c: uint16(0), 0x10: byte(1)}), "DIMM A3"),                                        // empty
		structure(17, at(0x58, map[int]any{0x0c: uint16(0xffff)})),                                                             // unknown
		structure(17, at(0x58, map[int]any{0x0c: uint16(0x7fff), 0x1c: uint32(131072), 0x28: byte(7), 0x3c: uint64(4 << 30)})), // persistent
		structure(38, at(0x0e, map[int]any{0x04: byte(1), 0x05: byte(0x20)})),
		structure(127, nil),
	} {
		t = append(t, s...)
	}
	return t
}

func TestATableIsReadByTheSpecification(t *testing.T) {
	t.Parallel()
	got, err := Parse(server())
	if err != nil {
		t.Fatal(err)
	}
	want := Table{
		FirmwareVendor: "Example BIOS", FirmwareVersion: "1.2.3", FirmwareDate: "04/01/2026",
		Vendor: "Example", Product: "R 7000", Serial: "SN42", UUID: "00112233-4455-6677-8899-aabbccddeeff",
		AssetTags: []string{"board tag", "rack 7"}, OEMStrings: []string{"one", "nearmetal-enroll:abc"}, Sockets: 2,
		Memory: []MemoryDevice{{"DIMM A1", 16 << 30}, {"DIMM A2", 64 << 30}, {"old", 512 << 10}, {"", 4 << 30}},
		IPMI:   &IPMI{Interface: "KCS", Version: "2.0"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got, want := got.MemoryBytes(), int64(84<<30+512<<10); got != want {
		t.Errorf("memory: got %d, want %d", got, want)
	}
}

func TestABrokenTableGivesWhatCameBeforeTheBreak(t *testing.T) {
	t.Parallel()
	whole := server()
	firmware := len(structure(0, at(0x14, nil), "Example BIOS", "1.2.3", "04/01/2026"))
	for name, data := range map[string][]byte{
		"a header cut off":         append(whole[:firmware:firmware], 1, 27),
		"a length below four":      append(whole[:firmware:firmware], 1, 3, 0, 0, 0, 0),
		"a formatted area cut off": append(whole[:firmware:firmware], 1, 200, 0, 0, 0, 0),
		"strings without an end":   append(whole[:firmware:firmware], 1, 4, 0, 0, 'a', 'b', 0),
	} {
		got, err := Parse(data)
		if !errors.Is(err, ErrBroken) {
			t.Errorf("%s: got error %v, want ErrBroken", name, err)
		}
		if got.FirmwareVersion != "1.2.3" || got.Product != "" {
			t.Errorf("%s: got %+v, want what the first structure says", name, got)
		}
	}
}

func TestAStringThatIsNotThereIsEmpty(t *testing.T) {
	t.Parallel()
	got, err := Parse(structure(1, at(0x17, map[int]any{0x04: byte(3), 0x05: byte(1), 0x08: []byte(strings.Repeat("\xff", 16))}), "only"))
	if err != nil || got.Vendor != "" || got.Product != "only" || got.UUID != "" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// recorded is the table in a recorded tree.
func recorded(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "== sys/firmware/dmi/tables/DMI hex\n")
	if !found {
		t.Fatalf("%s has no SMBIOS table", file)
	}
	digits, _, _ := strings.Cut(rest, "== ")
	data, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestDmidecodeReadsTheSame(t *testing.T) {
	t.Parallel()
	dmidecode := needs.Program(t, "dmidecode")
	table := recorded(t, "../testdata/qemu.tree")
	got, err := Parse(table)
	if err != nil {
		t.Fatal(err)
	}
	// A dump is the 64-bit entry point (section 5.2.2), padded to 32 bytes, and the table.
	entry := append([]byte("_SM3_\x00\x18\x03\x00\x00\x01\x00"), make([]byte, 12)...)
	binary.LittleEndian.PutUint32(entry[12:], uint32(len(table)))
	binary.LittleEndian.PutUint64(entry[16:], 32)
	var sum byte
	for _, b := range entry {
		sum += b
	}
	entry[5] = -sum
	dump := filepath.Join(t.TempDir(), "dump")
	if err := os.WriteFile(dump, append(append(entry, make([]byte, 8)...), table...), 0o600); err != nil {
		t.Fatal(err)
	}
	said := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), dmidecode, append([]string{"--from-dump", dump, "-q"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("dmidecode: %v\n%s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for keyword, value := range map[string]string{
		"bios-vendor": got.FirmwareVendor, "bios-version": got.FirmwareVersion, "bios-release-date": got.FirmwareDate,
		"system-manufacturer": got.Vendor, "system-product-name": got.Product, "system-serial-number": got.Serial, "system-uuid": got.UUID,
		"chassis-asset-tag": strings.Join(got.AssetTags, "\n"),
	} {
		if want := said("-s", keyword); value != want {
			t.Errorf("%s: got %q, dmidecode says %q", keyword, value, want)
		}
	}
	if n := len(regexp.MustCompile(`Status: Populated`).FindAllString(said("-t", "4"), -1)); got.Sockets != n {
		t.Errorf("sockets: got %d, dmidecode says %d", got.Sockets, n)
	}
	if memory := said("-t", "17"); got.MemoryBytes() != 1<<30 || !strings.Contains(memory, "Size: 1 GB") {
		t.Errorf("memory: got %d, dmidecode says\n%s", got.MemoryBytes(), memory)
	}
	if ipmi := said("-t", "38"); got.IPMI == nil || !strings.Contains(ipmi, "Interface Type: "+got.IPMI.Interface) ||
		!strings.Contains(ipmi, "Specification Version: "+got.IPMI.Version) {
		t.Errorf("IPMI: got %+v, dmidecode says\n%s", got.IPMI, ipmi)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(server())
	f.Add(recorded(f, "../testdata/qemu.tree"))
	f.Fuzz(func(t *testing.T, data []byte) {
		table, err := Parse(data)
		if err != nil && !errors.Is(err, ErrBroken) {
			t.Errorf("an error of another kind: %v", err)
		}
		if table.MemoryBytes() < 0 && len(data) < 1<<10 {
			t.Errorf("memory of %d bytes", table.MemoryBytes())
		}
	})
}
