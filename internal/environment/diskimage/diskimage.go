// Package diskimage reads the disk image of another system, as a user gave it: which format it has, how large the disk in it is, and how a machine
// boots from it.
//
// It trusts nothing that it reads: sizes and offsets are bounded before they are used, and whatever makes a program that reads the image open
// another file is refused. It is pure: it reads what it is given and opens nothing. Start with Inspect, then BootOf in boot.go.
package diskimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MaxBytes is the largest disk, MinBytes the smallest one that a partition table and a boot loader fit on.
const (
	MaxBytes = 2 << 40
	MinBytes = 64 << 10
)

// sectorBytes is what a disk's size is a multiple of.
const sectorBytes = 512

// Format is the format of a disk image's file.
type Format string

// The formats.
const (
	Raw   Format = "raw"
	QCOW2 Format = "qcow2"
)

// Info is what the head of a disk image says.
type Info struct {
	Format Format
	// DiskBytes is the size of the disk in it.
	DiskBytes int64
}

// others are formats that are recognized to be refused, by what their files begin with.
var others = []struct{ magic, name string }{
	{"KDMV", "VMDK"},
	{"COWD", "VMDK"},
	{"# Disk DescriptorFile", "VMDK"},
	{"vhdxfile", "VHDX"},
	{"conectix", "VHD"},
	{"<<< Oracle VM VirtualBox", "VDI"},
	{"<<< Sun VirtualBox", "VDI"},
	{"\x1f\x8b", "gzip"},
	{"\xfd7zXZ\x00", "xz"},
	{"\x28\xb5\x2f\xfd", "zstd"},
	{"BZh", "bzip2"},
	{"PK\x03\x04", "zip"},
	{"\x7fELF", "ELF"},
	{"LUKS\xba\xbe", "LUKS"},
	{"QFI\xfb\x00\x00\x00\x01", "qcow"},
	{"QED\x00", "QED"},
}

// Inspect reads the head of an image of so many bytes. The error says why the image can't be used.
func Inspect(r io.ReaderAt, size int64) (Info, error) {
	head := make([]byte, 512)
	n, err := r.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return Info{}, fmt.Errorf("read the image: %w", err)
	}
	head = head[:n]
	for _, o := range others {
		if bytes.HasPrefix(head, []byte(o.magic)) {
			return Info{}, fmt.Errorf("it is a file of format %s; give a raw or qcow2 image: 'qemu-img convert -O qcow2 FILE disk.qcow2' makes one of other "+
				"disk images, and compressed files are unpacked first", o.name)
		}
	}
	info := Info{Format: Raw, DiskBytes: size}
	if bytes.HasPrefix(head, []byte(magic)) {
		if info, err = inspectQCOW2(head, size); err != nil {
			return Info{}, err
		}
	}
	switch {
	case info.DiskBytes < MinBytes:
		return Info{}, fmt.Errorf("its disk has %d bytes; a disk that boots has at least %d", info.DiskBytes, MinBytes)
	case info.DiskBytes > MaxBytes:
		return Info{}, fmt.Errorf("its disk has %d GiB; at most %d GiB are supported", info.DiskBytes>>30, int64(MaxBytes>>30))
	case info.DiskBytes%sectorBytes != 0:
		return Info{}, fmt.Errorf("its disk has %d bytes, which is no whole number of sectors; the file is truncated or no disk image", info.DiskBytes)
	}
	return info, nil
}

// magic begins a qcow2 file (QEMU, docs/interop/qcow2.txt), header are the fields that follow it.
const magic = "QFI\xfb"

type header struct {
	Version               uint32
	BackingFileOffset     uint64
	BackingFileSize       uint32
	ClusterBits           uint32
	Size                  uint64
	CryptMethod           uint32
	L1Size                uint32
	L1TableOffset         uint64
	RefcountTableOffset   uint64
	RefcountTableClusters uint32
	Snapshots             uint32
	SnapshotsOffset       uint64
	Incompatible          uint64 // from version 3 on
}

// Bits of header.Incompatible.
const (
	featureDirty = 1 << iota
	featureCorrupt
	featureDataFile
	featureCompression
	featureExtendedL2
)

// Bounds of a qcow2's metadata, those that QEMU has.
const (
	minClusterBits, maxClusterBits = 9, 21
	maxL1Bytes                     = 32 << 20
	maxRefcountTableBytes          = 8 << 20
)

func inspectQCOW2(head []byte, size int64) (Info, error) {
	var h header
	if len(head) < len(magic)+binary.Size(h) {
		return Info{}, errors.New("the file is truncated: a qcow2 image's header is longer than it")
	}
	if _, err := binary.Decode(head[len(magic):], binary.BigEndian, &h); err != nil {
		return Info{}, err
	}
	if h.Version == 2 {
		h.Incompatible = 0 // the header ends before it
	}
	if err := h.check(); err != nil {
		return Info{}, err
	}
	clusterBytes := uint64(1) << h.ClusterBits
	for _, part := range []struct {
		what          string
		offset, bytes uint64
	}{{"L1 table", h.L1TableOffset, uint64(h.L1Size) * 8}, {"refcount table", h.RefcountTableOffset, uint64(h.RefcountTableClusters) * clusterBytes}} {
		if part.offset > uint64(size) || part.bytes > uint64(size)-part.offset {
			return Info{}, fmt.Errorf("the qcow2 image is truncated: its %s ends at byte %d of a file of %d", part.what, part.offset+part.bytes, size)
		}
		if part.offset%clusterBytes != 0 {
			return Info{}, fmt.Errorf("the qcow2 image is damaged: its %s is at byte %d, between two clusters", part.what, part.offset)
		}
	}
	return Info{Format: QCOW2, DiskBytes: int64(h.Size)}, nil
}

// check refuses what a header must not say.
func (h *header) check() error {
	switch {
	case h.Version != 2 && h.Version != 3:
		return fmt.Errorf("it is a qcow image of version %d; versions 2 and 3 are supported", h.Version)
	case h.BackingFileOffset != 0 || h.BackingFileSize != 0:
		return errors.New("the qcow2 image has a backing file, which is no part of it; merge them: qemu-img convert -O qcow2 FILE disk.qcow2")
	case h.Incompatible&featureDataFile != 0:
		return errors.New("the qcow2 image keeps its data in another file, which is no part of it; merge them: qemu-img convert -O qcow2 FILE disk.qcow2")
	case h.CryptMethod != 0:
		return errors.New("the qcow2 image is encrypted; decrypt it first: qemu-img convert")
	case h.Incompatible&featureCorrupt != 0:
		return errors.New("the qcow2 image is marked as damaged; 'qemu-img check -r all FILE' repairs it where that is possible")
	case h.Incompatible&featureDirty != 0:
		return errors.New("the qcow2 image was not closed by the machine that wrote it; 'qemu-img check -r all FILE' repairs it")
	case h.Incompatible&^(featureDirty|featureCorrupt|featureDataFile|featureCompression|featureExtendedL2) != 0:
		return fmt.Errorf("the qcow2 image needs features that are unknown here (%#x)", h.Incompatible)
	case h.ClusterBits < minClusterBits || h.ClusterBits > maxClusterBits:
		return fmt.Errorf("the qcow2 image is damaged: clusters of 2^%d bytes are not allowed", h.ClusterBits)
	case h.Size > MaxBytes:
		return fmt.Errorf("its disk has %d GiB; at most %d GiB are supported", h.Size>>30, int64(MaxBytes>>30))
	case uint64(h.L1Size)*8 > maxL1Bytes:
		return fmt.Errorf("the qcow2 image is damaged: its L1 table has %d entries; at most %d are allowed", h.L1Size, maxL1Bytes/8)
	case uint64(h.RefcountTableClusters)<<h.ClusterBits > maxRefcountTableBytes:
		return fmt.Errorf("the qcow2 image is damaged: its refcount table has %d clusters, more than is allowed", h.RefcountTableClusters)
	}
	return nil
}
