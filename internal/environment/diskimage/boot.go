package diskimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/nearmetal/nearmetal/api"
)

// Boot says which firmware boots a disk.
type Boot struct{ BIOS, UEFI bool }

// Suits reports whether a firmware boots the disk.
func (b Boot) Suits(f api.Firmware) bool {
	return f == api.FirmwareBIOS && b.BIOS || f == api.FirmwareUEFI && b.UEFI
}

// Firmware returns the firmware to boot the disk with: UEFI where both do.
func (b Boot) Firmware() api.Firmware {
	if b.UEFI {
		return api.FirmwareUEFI
	}
	return api.FirmwareBIOS
}

// Layout of a master boot record, and of a GUID partition table (UEFI 2.10, section 5).
const (
	mbrCodeBytes    = 440
	mbrTable        = 446
	mbrEntryBytes   = 16
	typeESP         = 0xef
	typeProtective  = 0xee
	gptMaxEntries   = 1024
	gptMinEntry     = 128
	gptMaxEntry     = 4096
	gptSignature    = "EFI PART"
	gptHeaderSector = 1
)

// guidESP is C12A7328-F81F-11D2-BA4B-00A0C93EC93B as it lies on disks: the type of EFI system partitions.
var guidESP = []byte{0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b}

// BootOf looks for a boot loader in the first sector, and for an EFI system partition. A disk that has neither can't be booted, which is an error.
func BootOf(disk io.ReaderAt, size int64) (Boot, error) {
	first := make([]byte, sectorBytes)
	if _, err := disk.ReadAt(first, 0); err != nil {
		return Boot{}, fmt.Errorf("read the disk's first sector: %w", err)
	}
	var b Boot
	if first[510] != 0x55 || first[511] != 0xaa {
		return b, errors.New("it has no boot loader: its first sector is no boot record; give the image of a whole disk that boots, " +
			"not of one file system, of an installer's files or of a part of a disk")
	}
	b.BIOS = !bytes.Equal(first[:mbrCodeBytes], make([]byte, mbrCodeBytes))
	protective := false
	for n := range 4 {
		e := first[mbrTable+n*mbrEntryBytes:]
		switch start := int64(binary.LittleEndian.Uint32(e[8:])) * sectorBytes; e[4] {
		case typeESP:
			b.UEFI = b.UEFI || isFAT(disk, start, size)
		case typeProtective:
			protective = true
		}
	}
	if protective {
		found, err := gptESP(disk, size)
		if err != nil {
			return b, err
		}
		b.UEFI = b.UEFI || found
	}
	if !b.BIOS && !b.UEFI {
		return b, errors.New("it has no boot loader: its first sector has no code, and it has no EFI system partition with a FAT file system")
	}
	return b, nil
}

// gptESP looks for an EFI system partition in a GUID partition table.
func gptESP(disk io.ReaderAt, size int64) (bool, error) {
	h := make([]byte, 92)
	if _, err := disk.ReadAt(h, gptHeaderSector*sectorBytes); err != nil || string(h[:8]) != gptSignature {
		return false, errors.New("its partition table is damaged: it should have a GUID partition table, which begins with no EFI PART")
	}
	start, count, entry := binary.LittleEndian.Uint64(h[72:]), binary.LittleEndian.Uint32(h[80:]), binary.LittleEndian.Uint32(h[84:])
	if start > uint64(size/sectorBytes) || count > gptMaxEntries || entry < gptMinEntry || entry > gptMaxEntry {
		return false, fmt.Errorf("its partition table is damaged: %d entries of %d bytes at sector %d", count, entry, start)
	}
	table := make([]byte, int(count)*int(entry))
	if _, err := disk.ReadAt(table, int64(start)*sectorBytes); err != nil {
		return false, errors.New("its partition table is damaged: it goes beyond the end of the disk")
	}
	for ; len(table) > 0; table = table[entry:] {
		first := binary.LittleEndian.Uint64(table[32:])
		if bytes.Equal(table[:16], guidESP) && first <= uint64(size/sectorBytes) && isFAT(disk, int64(first)*sectorBytes, size) {
			return true, nil
		}
	}
	return false, nil
}

// isFAT reports whether a partition looks like a FAT file system, as EFI system partitions have (UEFI 2.10, section 13.3).
func isFAT(disk io.ReaderAt, start, size int64) bool {
	sector := make([]byte, sectorBytes)
	if start <= 0 || start > size-sectorBytes {
		return false
	}
	if _, err := disk.ReadAt(sector, start); err != nil {
		return false
	}
	return sector[510] == 0x55 && sector[511] == 0xaa && (string(sector[54:57]) == "FAT" || string(sector[82:85]) == "FAT")
}
