package diskimage_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/environment/diskimage"
)

// qcow2 is the head of a qcow2 image of a disk of 1 MiB, with its L1 table at the second cluster.
func qcow2(change func(head []byte)) []byte {
	file := make([]byte, 4<<16)
	copy(file, "QFI\xfb")
	for offset, value := range map[int]uint32{4: 3, 20: 16, 36: 1, 56: 1, 100: 104} {
		binary.BigEndian.PutUint32(file[offset:], value)
	}
	for offset, value := range map[int]uint64{24: 1 << 20, 40: 1 << 16, 48: 2 << 16} {
		binary.BigEndian.PutUint64(file[offset:], value)
	}
	if change != nil {
		change(file)
	}
	return file
}

func put32(offset int, value uint32) func([]byte) {
	return func(head []byte) { binary.BigEndian.PutUint32(head[offset:], value) }
}

func put64(offset int, value uint64) func([]byte) {
	return func(head []byte) { binary.BigEndian.PutUint64(head[offset:], value) }
}

func TestAnImageThatLeadsElsewhereOrLiesAboutItsSizeIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"a backing file":             {qcow2(put64(8, 200)), "has a backing file"},
		"a backing file of no name":  {qcow2(put32(16, 14)), "has a backing file"},
		"an external data file":      {qcow2(put64(72, 4)), "keeps its data in another file"},
		"encryption":                 {qcow2(put32(32, 2)), "is encrypted"},
		"a mark of damage":           {qcow2(put64(72, 2)), "marked as damaged"},
		"an unknown feature":         {qcow2(put64(72, 1<<40)), "features that are unknown"},
		"a huge L1 table":            {qcow2(put32(36, 1<<31)), "L1 table has 2147483648 entries"},
		"a huge refcount table":      {qcow2(put32(56, 1<<31)), "refcount table has 2147483648 clusters"},
		"an L1 table beyond the end": {qcow2(put64(40, 1<<40)), "is truncated: its L1 table"},
		"an L1 table at the end of numbers": {qcow2(func(head []byte) {
			put64(40, 1<<64-1<<16)(head)
			put32(36, 1<<14)(head)
		}), "is truncated: its L1 table"},
		"an L1 table between clusters": {qcow2(put64(40, 1<<16+8)), "between two clusters"},
		"clusters of 2 GiB":            {qcow2(put32(20, 31)), "clusters of 2^31 bytes"},
		"a disk of 16 EiB":             {qcow2(put64(24, 1<<63)), "at most 2048 GiB are supported"},
		"a disk of no bytes":           {qcow2(put64(24, 0)), "its disk has 0 bytes"},
		"version 1":                    {qcow2(put32(4, 1)), "format qcow;"},
		"version 9":                    {qcow2(put32(4, 9)), "version 9"},
		"a header cut off":             {qcow2(nil)[:60], "header is longer"},
		"VMDK":                         {append([]byte("KDMV"), make([]byte, 1<<20)...), "format VMDK"},
		"a compressed file":            {append([]byte("\x1f\x8b\x08"), make([]byte, 1<<20)...), "format gzip"},
		"a raw disk cut off":           {make([]byte, 1<<20+7), "no whole number of sectors"},
		"an empty file":                {nil, "its disk has 0 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := diskimage.Inspect(bytes.NewReader(c.file), int64(len(c.file)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestAPlainImageIsTakenByItsHead(t *testing.T) {
	file := qcow2(nil)
	if info, err := diskimage.Inspect(bytes.NewReader(file), int64(len(file))); err != nil || info != (diskimage.Info{Format: diskimage.QCOW2, DiskBytes: 1 << 20}) {
		t.Errorf("got %+v, %v", info, err)
	}
	raw := make([]byte, 1<<20)
	if info, err := diskimage.Inspect(bytes.NewReader(raw), 1<<20); err != nil || info != (diskimage.Info{Format: diskimage.Raw, DiskBytes: 1 << 20}) {
		t.Errorf("got %+v, %v", info, err)
	}
}

// partition is a disk of 1 MiB whose first partition, of a type, begins at sector 100.
func partition(kind byte) []byte {
	disk := make([]byte, 1<<20)
	disk[510], disk[511], disk[446+4] = 0x55, 0xaa, kind
	binary.LittleEndian.PutUint32(disk[446+8:], 100)
	return disk
}

// fat puts the head of a FAT file system at sector 100.
func fat(disk []byte) []byte {
	sector := disk[100*512:]
	copy(sector[82:], "FAT32")
	sector[510], sector[511] = 0x55, 0xaa
	return disk
}

// gpt is a disk with a GUID partition table whose only partition is an EFI system partition.
func gpt(change func(disk []byte)) []byte {
	disk := partition(0xee)
	copy(disk[512:], "EFI PART")
	binary.LittleEndian.PutUint64(disk[512+72:], 2)
	binary.LittleEndian.PutUint32(disk[512+80:], 128)
	binary.LittleEndian.PutUint32(disk[512+84:], 128)
	copy(disk[1024:], []byte{0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b})
	binary.LittleEndian.PutUint64(disk[1024+32:], 100)
	if change != nil {
		change(disk)
	}
	return disk
}

func TestTheFirmwareFollowsFromWhatTheDiskHas(t *testing.T) {
	code := partition(0x83)
	code[0] = 0xfa
	for name, c := range map[string]struct {
		disk []byte
		want diskimage.Boot
		text string
	}{
		"code in the first sector":              {code, diskimage.Boot{BIOS: true}, ""},
		"an EFI system partition":               {fat(partition(0xef)), diskimage.Boot{UEFI: true}, ""},
		"one in a GUID partition table":         {fat(gpt(nil)), diskimage.Boot{UEFI: true}, ""},
		"an EFI system partition that is empty": {partition(0xef), diskimage.Boot{}, "no EFI system partition"},
		"a partition and nothing that boots":    {partition(0x83), diskimage.Boot{}, "no boot loader"},
		"a file system":                         {make([]byte, 1<<20), diskimage.Boot{}, "no boot loader"},
		"a table of 4 billion entries":          {gpt(func(d []byte) { binary.LittleEndian.PutUint32(d[512+80:], 1<<31) }), diskimage.Boot{}, "is damaged"},
		"a table beyond the end":                {gpt(func(d []byte) { binary.LittleEndian.PutUint64(d[512+72:], 1<<60) }), diskimage.Boot{}, "is damaged"},
		"a partition at the end of numbers":     {gpt(func(d []byte) { binary.LittleEndian.PutUint64(d[1024+32:], 1<<64-1) }), diskimage.Boot{}, "no boot loader"},
		"no table where one should be":          {partition(0xee), diskimage.Boot{}, "is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := diskimage.BootOf(bytes.NewReader(c.disk), int64(len(c.disk)))
			if c.text == "" && (err != nil || got != c.want) || c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)) {
				t.Errorf("got %+v, %v; want %+v, %q", got, err, c.want, c.text)
			}
		})
	}
}

func TestUEFIIsPreferred(t *testing.T) {
	for boot, want := range map[diskimage.Boot]api.Firmware{{BIOS: true}: api.FirmwareBIOS, {UEFI: true}: api.FirmwareUEFI, {BIOS: true, UEFI: true}: api.FirmwareUEFI} {
		if got := boot.Firmware(); got != want || !boot.Suits(got) {
			t.Errorf("%+v boots by %s, want %s", boot, got, want)
		}
	}
}

func FuzzInspect(f *testing.F) {
	f.Add(qcow2(nil)[:512])
	f.Add(fat(gpt(nil))[:2048])
	f.Fuzz(func(t *testing.T, file []byte) {
		info, err := diskimage.Inspect(bytes.NewReader(file), int64(len(file)))
		if err == nil && (info.DiskBytes < diskimage.MinBytes || info.DiskBytes > diskimage.MaxBytes) {
			t.Errorf("a disk of %d bytes was taken", info.DiskBytes)
		}
		_, _ = diskimage.BootOf(bytes.NewReader(file), int64(len(file)))
	})
}
