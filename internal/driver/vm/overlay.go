package vm

import (
	"encoding/binary"
	"errors"
	"os"
)

// A member's own disk is a qcow2 file over the shared image: what the guest writes is there, and nobody writes to the image. It begins with
// nothing of its own (QEMU, docs/interop/qcow2.txt): a header, a table of tables of reference counts, such a table, and a table of tables of
// clusters, a cluster each.
const (
	overlayClusterBits = 16
	overlayCluster     = 1 << overlayClusterBits
	// overlayL1Covers is how much of a disk an entry of the L1 table stands for: a cluster of entries, 8 bytes for each cluster.
	overlayL1Covers = overlayCluster / 8 * overlayCluster
)

// overlay is the head of an empty qcow2 file of a disk, over an image in the same format at a path.
func overlay(size int64, base string) ([]byte, error) {
	l1 := (size + overlayL1Covers - 1) / overlayL1Covers
	if size <= 0 || l1*8 > overlayCluster || len(base) > 1023 {
		return nil, errors.New("the disk is too large for a private copy")
	}
	const (
		headerBytes  = 112
		formatHeader = 0xe2792aca // the backing file's format
		format       = "qcow2"
	)
	file := make([]byte, 4*overlayCluster)
	put32 := func(at int, v uint32) { binary.BigEndian.PutUint32(file[at:], v) }
	put64 := func(at int, v uint64) { binary.BigEndian.PutUint64(file[at:], v) }
	copy(file, "QFI\xfb")
	put32(4, 3) // version
	put32(headerBytes, formatHeader)
	put32(headerBytes+4, uint32(len(format)))
	copy(file[headerBytes+8:], format)
	const name = headerBytes + 8 + 8 + 8 // the format, padded, and the end of header extensions
	copy(file[name:], base)
	put64(8, name)
	put32(16, uint32(len(base)))
	put32(20, overlayClusterBits)
	put64(24, uint64(size))
	put32(36, uint32(l1))
	put64(40, 3*overlayCluster) // L1 table
	put64(48, overlayCluster)   // refcount table
	put32(56, 1)                // of one cluster
	put32(96, 4)                // reference counts of 16 bits
	put32(100, headerBytes)
	put64(overlayCluster, 2*overlayCluster)
	for n := range 4 { // each of the four clusters has one user
		binary.BigEndian.PutUint16(file[2*overlayCluster+2*n:], 1)
	}
	return file, nil
}

// writeOwned makes a file that a user owns and nobody else opens.
func writeOwned(path string, data []byte, user int) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chown(user, user), f.Close())
}
