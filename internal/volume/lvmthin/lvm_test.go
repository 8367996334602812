package lvmthin

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// row is one of a report of LVM 2.03.16.
func row(name, size, pool, tags, more string) string {
	return fmt.Sprintf(`{"lv_name":%q, "lv_size":%q, "lv_tags":%q, "pool_lv":%q, %s}`, name, size, tags, pool, more)
}

const (
	ofPool = `"segtype":"thin-pool", "zero":"zero", "chunk_size":"65536", "lv_metadata_size":"4194304", "data_percent":"10.50", "metadata_percent":"10.84", "lv_health_status":"", "lv_active":"active", "vg_extent_size":"4194304"`
	ofThin = `"segtype":"thin", "zero":"zero", "chunk_size":"0", "lv_metadata_size":"", "data_percent":"", "metadata_percent":"", "lv_health_status":"", "lv_active":"active", "vg_extent_size":"4194304"`
)

func report(rows ...string) []byte {
	return []byte(`{"report":[{"lv":[` + strings.Join(rows, ",") + `]}]}`)
}

func TestAReportIsRead(t *testing.T) {
	f, err := parse(report(
		row("[lvol0_pmspare]", "4194304", "", "", `"segtype":"linear", "zero":"unknown", "chunk_size":"0", "lv_active":""`),
		row("thin", "734003200", "", "", ofPool),
		row("[thin_tdata]", "734003200", "", "", `"segtype":"linear", "zero":"unknown"`),
		row("nearmetal+vol-1+volume", "71303168", "thin", "nearmetal,nearmetal.bytes=67108865", ofThin),
		row("nearmetal+vol-1+snapshot+snap.a", "67108864", "thin", "nearmetal,nearmetal.bytes=67108864,nearmetal.held=8388608", strings.Replace(ofThin, `"active"`, `""`, 1)),
		row("nearmetal+vol-2+draft", "67108864", "thin", "nearmetal", ofThin),
		row("nearmetal+vol-3+volume", "67108864", "thin", "backup", ofThin), // without the tag
		row("data", "67108864", "thin", "nearmetal", ofThin),                // without the prefix
		row("nearmetal+vol-4+volume", "67108864", "other", "nearmetal", ofThin),
		row("root", "67108864", "", "nearmetal", `"segtype":"linear"`),
	), "thin")
	if err != nil {
		t.Fatal(err)
	}
	if p := f.Pool; p == nil || p.Size != 700<<20 || p.Metadata != 4<<20 || p.Chunk != 64<<10 || p.Extent != 4<<20 || !p.Zeroes || !p.Active || p.DataPart != 10.5 || p.Health != "" {
		t.Errorf("the pool is %+v", f.Pool)
	}
	const want = "[{nearmetal+vol-1+volume 71303168 true vol-1 volume  67108865 0} " +
		"{nearmetal+vol-1+snapshot+snap.a 67108864 false vol-1 snapshot snap.a 67108864 8388608} " +
		"{nearmetal+vol-2+draft 67108864 true vol-2 draft  67108864 0} " +
		"{nearmetal+vol-3+volume 67108864 true    67108864 0} " +
		"{data 67108864 true    67108864 0}]"
	if got := fmt.Sprint(f.Logical); got != want {
		t.Errorf("in the pool are\n%s, want\n%s", got, want)
	}
	r := f.room()
	if r.UsedBytes != 735*mib/10 || r.HeldBytes() != 68*mib+8*mib+64*mib || r.PromisedBytes() != r.HeldBytes()+128*mib {
		t.Errorf("the room is %+v", r)
	}
}

func TestNamesThatAreNoVolumesAreOfOthers(t *testing.T) {
	for _, name := range []string{
		"nearmetal", "nearmetal+", "nearmetal+vol-1", "nearmetal++volume", "nearmetal+vol-1+other", "nearmetal+vol-1+volume+x", "nearmetal+vol-1+snapshot",
		"nearmetal+vol-1+snapshot+", "nearmetal+vol-1+snapshot+a+b", "xnearmetal+vol-1+volume",
	} {
		f, err := parse(report(row(name, "1", "thin", "nearmetal", ofThin)), "thin")
		if err != nil || len(f.Logical) != 1 || f.Logical[0].own() {
			t.Errorf("%s: %+v, %v", name, f.Logical, err)
		}
	}
	for _, l := range []logical{{UID: "a", Role: roleVolume}, {UID: "a.b-c_d", Role: roleSnapshot, Snapshot: "e-f"}, {UID: "a", Role: roleOld}, {UID: "a", Role: roleCopy}} {
		name := nameOf(l.UID, l.Role, l.Snapshot)
		f, err := parse(report(row(name, "1", "thin", "nearmetal", ofThin)), "thin")
		if err != nil || len(f.Logical) != 1 || f.get(l.UID, l.Role, l.Snapshot) == nil {
			t.Errorf("%s: %+v, %v", name, f.Logical, err)
		}
	}
}

func TestAReportThatLacksANumberIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"a size":            string(report(row("x", "many", "thin", "", ofThin))),
		"a chunk":           string(report(row("thin", "1", "", "", strings.Replace(ofPool, `"65536"`, `"0"`, 1)))),
		"a size in a tag":   string(report(row("nearmetal+a+volume", "1", "thin", "nearmetal,nearmetal.bytes=x", ofThin))),
		"the end":           `{"report":[`,
		"what is in a pool": string(report(row("thin", "1", "", "", strings.Replace(ofPool, `"10.50"`, `"x"`, 1)))),
	} {
		if f, err := parse([]byte(text), "thin"); err == nil {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestADevicesNameHasItsHyphensDoubled(t *testing.T) {
	if name := mapperName("vg-0", nameOf("vol-1", roleSnapshot, "a-b")); name != "vg--0-nearmetal+vol--1+snapshot+a--b" {
		t.Error(name)
	}
}

// status is an answer of the device mapper with one target.
func status(targets uint32, kind, text string) []byte {
	block := make([]byte, 1<<10)
	binary.NativeEndian.PutUint32(block[atDataStart:], headBytes)
	binary.NativeEndian.PutUint32(block[atTargets:], targets)
	copy(block[headBytes+24:], kind)
	copy(block[headBytes+specBytes:], text)
	return block
}

func TestWhatAThinVolumeHasMappedIsRead(t *testing.T) {
	if sectors, err := mappedSectors(status(1, "thin", "53760 131071")); err != nil || sectors != 53760 {
		t.Errorf("%d, %v", sectors, err)
	}
	for name, block := range map[string][]byte{
		"failed": status(1, "thin", "Fail"), "another type": status(1, "linear", ""), "no target": status(0, "thin", "1 1"), "two targets": status(2, "thin", "1 1"),
	} {
		if sectors, err := mappedSectors(block); err == nil {
			t.Errorf("%s: %d", name, sectors)
		}
	}
}

func TestAPoolSaysWhatIsWrongWithIt(t *testing.T) {
	s := New(Config{Group: "vg0", Pool: "volumes"})
	for health, want := range map[string]string{
		"":                   "",
		"out_of_data":        "thin pool vg0/volumes is out of data space, because more was promised than it has; make it larger: lvextend -L +SIZE vg0/volumes",
		"metadata_read_only": "lvextend --poolmetadatasize +SIZE vg0/volumes",
		"failed":             "run: lvconvert --repair vg0/volumes",
		"partial":            "LVM says of thin pool vg0/volumes: partial",
	} {
		if got := strings.Join(s.problems(&pool{Active: true, Zeroes: true, Health: health}), "\n"); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", health, got, want)
		}
	}
	if got := fmt.Sprint(s.problems(&pool{})); !strings.Contains(got, "lvchange -ay vg0/volumes") || !strings.Contains(got, "lvchange --zero y vg0/volumes") {
		t.Error(got)
	}
}

func TestAHostWithoutDeviceMapperSaysSo(t *testing.T) {
	if control, err := openMapper(); err == nil {
		_ = control.Close()
		needs.Hardware(t, "this kernel has a device mapper; make test-volume-guest tests what is done with it")
	}
	s := New(Config{Group: "vg0", Pool: "volumes"})
	d := s.Describe(t.Context())
	if d.Kind != "" || d.CapacityBytes != 0 || !strings.Contains(strings.Join(d.Problems, "\n"), "the kernel has no device mapper; run: modprobe dm-thin-pool") {
		t.Errorf("it is %+v", d)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("closing what has no devices: %v", err)
	}
	if all, err := s.List(); err == nil {
		t.Errorf("there are the volumes %v, where nothing could be looked at", all)
	}
}
